"""What `predict` says of a batch: the same however the list was cut into parts, and a table in words at the end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from debgcd.commands.output import three_answers
from debgcd.errors import DataError
from debgcd.infer import predict as module
from debgcd.novelty.so_far import Origin, SoFar
from debgcd.run.categories import Category
from debgcd.run.predictions import NOTHING, Inference
from debgcd.run.so_far_file import SO_FAR, read_so_far, write_so_far


@pytest.fixture
def so_far() -> SoFar:
    rng = torch.Generator().manual_seed(0)
    truth = torch.arange(5).repeat_interleave(40)
    feature = torch.randn(5, 16, generator=rng)[truth] + 0.5 * torch.randn(200, 16, generator=rng)
    return SoFar(16, 200).fit(feature, truth, torch.full_like(truth, Origin.GIVEN))


def asked(so_far: SoFar, points: np.ndarray, start: int) -> np.ndarray:
    model: Any = SimpleNamespace(so_far=so_far)
    inference = Inference(np.zeros((len(points), 1), np.int64), np.ones((len(points), 1), np.float32), None, points)
    said = module.judged(model, inference, start + np.arange(len(points)))
    assert said is not None
    return said


def test_so_many_in_a_row_are_judged_together_however_the_list_is_cut(
    so_far: SoFar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNIT", 40)
    points = so_far.place(torch.randn(90, 16, generator=torch.Generator().manual_seed(1))).numpy().astype(np.float16)
    whole = asked(so_far, points, 0)
    parts = [asked(so_far, points[start:end], start) for start, end in ((0, 40), (40, 80), (80, 90))]
    assert (whole == np.concatenate(parts)).all()
    together = so_far.judge(torch.from_numpy(points[:40]).float()).none_p
    assert whole[:40] == pytest.approx(together.numpy(), abs=1e-6)
    model: Any = SimpleNamespace(so_far=None)
    assert module.judged(model, None, np.arange(0)) is None  # a model of an earlier version


def test_the_voters_are_read_back_or_refused(so_far: SoFar, tmp_path: Path) -> None:
    sha256 = write_so_far(tmp_path, so_far)
    found = read_so_far(tmp_path, sha256, 16)
    assert found is not None
    points = torch.randn(40, 16, generator=torch.Generator().manual_seed(2))
    assert torch.equal(found(points).none_p, so_far(points).none_p)
    assert read_so_far(tmp_path, None, 16) is None
    for width, content in ((17, None), (16, b"damaged")):
        if content is not None:
            (tmp_path / SO_FAR).write_bytes(content)
        with pytest.raises(DataError, match=SO_FAR):
            read_so_far(tmp_path, sha256, width)


def test_the_end_says_what_came_and_what_grew() -> None:
    found = [Category(0, "cat", "cat", True), Category(1, "new-01", "lynx", False)]
    found += [Category(2, "new-02", "lynx", False, "new-01"), Category(3, "new-03", "new-03", False)]
    lines = three_answers(Counter({"cat": 3, "new-01": 2, NOTHING: 4}), found, {"cat": 10, "new-01": 6})
    assert lines[0] == "3 show a known class, 2 a category found before, 4 none of these"
    assert [line.split() for line in lines[1:]] == [
        ["category", "new", "before", "now"],
        ["cat", "known", "+3", "10", "13"],
        ["lynx", "found", "+2", "6", "8"],
    ]
    assert three_answers({NOTHING: 2}, found, None) == [
        "0 show a known class, 0 a category found before, 2 none of these"
    ]
    many = {f"new-{i:02d}": 1 for i in range(40)}
    lines = three_answers(many, [Category(i, id, id, False) for i, id in enumerate(many)], None)
    assert lines[-1] == "... and 10 more" and len(lines) == 33
