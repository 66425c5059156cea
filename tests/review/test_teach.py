"""Which images to label next: shared among the categories by doubt, typical ones, one per scene; open ones alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from debgcd.review.log import Log, read_review, reviewed_predictions
from debgcd.review.next_images import next_images
from debgcd.review.state import OPEN
from debgcd.review.teach import FLOOR, _turns, teach_most
from debgcd.run.directory import finished_run

Command = Callable[..., Any]


def blobs(sizes: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit features around one axis per category."""
    random = np.random.default_rng(seed)
    category = np.repeat(np.arange(len(sizes)), sizes)
    points = np.eye(8)[category] + 0.05 * random.normal(size=(len(category), 8))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32), category


def test_answers_go_where_the_doubt_is() -> None:
    feature, category = blobs([20, 20, 20])
    lead = np.where(category == 1, 0.1, 1.0)  # the second category is in doubt
    chosen = teach_most(feature, category, lead, [None] * 60, 12)
    assert category[chosen[0]] == 1 and len(set(chosen)) == 12
    share = (FLOOR + 0.9) / (3 * FLOOR + 0.9)
    assert abs((category[chosen] == 1).sum() - 12 * share) <= 1


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 6)), min_size=1, max_size=6), st.integers(0, 40))
@settings(max_examples=50, deadline=None)
def test_turns_are_those_of_highest_averages(given_: list[tuple[float, int]], count: int) -> None:
    """As seats by d'Hondt's method, by hand: the largest quotients doubt / 1, doubt / 2, ... up to each category's images."""
    doubt, size = np.array([d for d, _ in given_]), np.array([n for _, n in given_])
    quotients = sorted(((-d / (i + 1), c) for c, (d, n) in enumerate(given_) for i in range(n)))[:count]
    turns = _turns(doubt, size, count)
    assert sorted(-doubt[c] / (i + 1) for c in set(turns) for i in range(turns.count(c))) == sorted(
        q for q, _ in quotients
    )
    assert all(turns.count(c) <= size[c] for c in turns) and len(turns) == min(count, int(size.sum()))


def test_a_typical_image_of_each_part_is_asked_for() -> None:
    """A category of two parts with an outlier: two answers are one of each part, and never the outlier."""
    random = np.random.default_rng(0)
    points = np.concatenate([np.tile([1, 0, 0.3], (10, 1)), np.tile([0, 1, 0.3], (8, 1)), [[-1, -1, 0]]])
    points[:18] += 0.02 * random.normal(size=(18, 3))
    feature = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    chosen = teach_most(feature, np.zeros(19, np.int64), np.ones(19), [None] * 19, 3)
    assert chosen[0] < 10 <= chosen[1] < 18
    first = feature[:10] @ feature[:10].sum(0)
    assert chosen[0] == int(first.argmax())


def test_one_per_scene_unless_there_is_nothing_else() -> None:
    feature, category = blobs([6])
    scene: list[str | None] = ["burst", "burst", "burst", "burst", None, "other"]
    chosen = teach_most(feature, category, np.ones(6), scene, 3)
    assert sorted(str(scene[i]) for i in chosen) == ["None", "burst", "other"]
    assert sorted(teach_most(feature, category, np.ones(6), scene, 9)) == list(range(6))


def test_images_without_features_are_left_out() -> None:
    feature, category = blobs([5, 5])
    feature[:5] = 0  # their files cannot be read any more
    assert set(teach_most(feature, category, np.zeros(10), [None] * 10, 30)) == set(range(5, 10))
    assert teach_most(feature[:0], category[:0], np.zeros(0), [], 30) == []


def test_the_command_prints_open_images_alone(command: Command, finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished / "run", tmp_path / "run"))
    every = [row["path"] for row in reviewed_predictions(run)[0]]
    with Log(run) as log:
        log.act({"act": "accept", "images": every[:50]})
    found = next_images(finished_run(run), tmp_path / "cache", 30)
    assert {row["path"] for row in found} == set(every[50:]) and all(row["review"] == OPEN for row in found)
    said = command("review", run, "--next", 4, "--cache", tmp_path / "cache")
    assert said.code == 0 and len(said.out.splitlines()) == 5 and Path(found[0]["path"]).name[:3] in said.out
    assert "--next must be 1 or more" in command("review", run, "--next", 0).complaint
    with Log(run) as log:
        log.act({"act": "accept", "images": every[50:]})
    assert command("review", run, "--next", 4, "--cache", tmp_path / "cache").out == "every image is reviewed\n"
    assert read_review(run).reviewed == 60
