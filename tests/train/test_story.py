"""Nothing is computed twice before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from debgcd.model.backbone import Backbone
from debgcd.tokens.bank import BankTokens
from debgcd.train import loop

IMAGES = 24  # of training, in the shared CSV


@pytest.mark.parametrize("method", ["debgcd", "opencon"])
def test_one_pass_over_the_images_and_one_look_at_the_tokens_shape(
    train: Callable[..., Any], shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """K, standardisation, warm start, novelty, the first look and the first evaluation share the features of the start."""
    crops, shapes, counting = [0], [0], [True]
    centre, trunk, step = BankTokens.centre, Backbone.trunk, loop.step

    def count_crops(self: BankTokens, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
        crops[0] += counting[0] * len(numbers)
        return centre(self, numbers)

    def count_shapes(self: Backbone, images: Tensor) -> Tensor:
        shapes[0] += counting[0] and len(images) == 1
        return trunk(self, images)

    def first_step(*given: Any) -> Any:
        counting[0] = False
        return step(*given)

    monkeypatch.setattr(BankTokens, "centre", count_crops)
    monkeypatch.setattr(Backbone, "trunk", count_shapes)
    monkeypatch.setattr(loop, "step", first_step)
    words = ("--method", method, "--k", "auto", "--bank", "on", "--cache", tmp_path / "cache")
    said = train(shared_csv, tmp_path / "run", *words, schedule__steps=2, heads__warm_start="true")
    assert said.code == 0, said.err
    assert not counting[0]
    assert crops[0] == IMAGES
    assert shapes[0] == 1
