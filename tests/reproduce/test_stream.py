"""`debgcd reproduce stream`: which images come in which stage, and what is measured after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import miniatures
import pytest
from miniatures import draw

from debgcd import config as configuration
from debgcd.data.manifest import Manifest
from debgcd.errors import DataError
from debgcd.reproduce import stream
from debgcd.reproduce.stream import (
    LABELLED,
    PUBLISHED,
    STAGES,
    Stream,
    Wish,
    matched,
    measured,
    published,
    reproduce,
    table,
)

NAMES = [f"kind {i:02d}" for i in range(20)]
COLOURS = {"cat": (210, 60, 50), "dog": (60, 190, 70), "fox": (230, 200, 40), "elk": (200, 60, 200)}


def listed(each: int, test: int) -> Manifest:
    """Half of the classes known; the labels are those of another split."""
    names = [name for name in NAMES for _ in range(each + test)]
    known = set(NAMES[::2])
    return Manifest(
        tuple(Path(f"{i}.png") for i in range(len(names))),
        tuple(name if name in known and i % 2 else None for i, name in enumerate(names)),
        tuple(names),
        tuple("train" if i % (each + test) < each else "test" for i in range(len(names))),
        (None,) * len(names),
    )


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_stage_has_new_classes_and_some_of_the_earlier_ones(scale: str, seed: int) -> None:
    manifest, counts = listed(30, 6), PUBLISHED["cub"]
    known = set(manifest.classes)
    stages, test = published(manifest, counts, seed) if scale == "full" else stream._small(manifest, seed)
    paths = [path for stage in stages for path in stage.paths]
    assert len(stages) == 1 + STAGES and len(set(paths)) == len(paths) and not set(paths) & set(test.paths)
    assert set(test.truths) == set(NAMES) and not any(test.labels)
    assert set(stages[0].truths) == known
    labelled = Counter(label for label in stages[0].labels if label)
    own = Counter(stages[0].truths)
    assert set(labelled) == known
    assert all(labelled[name] == round(LABELLED * (30 if scale == "full" else own[name])) < own[name] for name in known)
    so_far, begun = set(known), []
    for stage in stages[1:]:
        assert not any(stage.labels)
        came = Counter(stage.truths)
        new = set(came) - so_far
        begun.append(len(new))
        if scale == "full":
            assert all(came[name] == counts.new for name in new)
            assert all(came[name] <= (counts.old if name in known else counts.earlier) for name in so_far)
        so_far |= new
    assert begun == [2] * STAGES and so_far == set(NAMES)
    # each stage draws anew, so most of the few images of an old class are there after the first one
    assert set(stages[1].truths) > known


def test_ids_of_another_clustering_are_matched_by_their_images() -> None:
    before = {"a": "x", "b": "x", "c": "y"}
    assert matched(before, {"a": "1", "b": "1", "c": "0", "d": "0", "e": "2"}) == {
        "a": "x", "b": "x", "c": "y", "d": "y", "e": "unmatched 2"
    }  # fmt: skip


def test_each_way_is_asked_about_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds are known; one more comes in each of two stages."""
    monkeypatch.setattr(stream, "STAGES", 2)
    monkeypatch.setattr(miniatures, "COLOURS", COLOURS)

    def batch(seed: int, **count: int) -> Manifest:
        kinds = [kind for kind, many in count.items() for _ in range(many)]
        paths = [draw(tmp_path / f"{seed}-{i}.png", kind, 100 * seed + i) for i, kind in enumerate(kinds)]
        labels = tuple(kind if seed == 0 and i % 2 else None for i, kind in enumerate(kinds))
        return Manifest(tuple(paths), labels, tuple(kinds), ("train",) * len(kinds), (None,) * len(kinds))

    stages = [batch(0, cat=16, dog=16), batch(1, cat=8, dog=8, fox=14), batch(2, cat=8, fox=8, elk=14)]
    test = batch(3, cat=5, dog=5, fox=5, elk=5)
    quick = {"views": {"size": 32, "resize": 36}, "run": {"workers": 0, "cache": str(tmp_path / "cache")}}
    config = configuration.override(configuration.compose("small", method="pim"), quick, "test")
    ways = {
        way: measured(way, Stream(stages, test, 2, config, True, tmp_path / way, tmp_path / "cache"))
        for way in stream.STEPS
    }
    assert [stage["classes"] for stage in ways["add"]] == [2, 3, 4] and len(ways["all data"]) == 1
    assert [stage["k"] for stage in ways["add"]] == [2, 3, 4] == [stage["k"] for stage in ways["train --from"]]
    assert [stage["churn"] for stage in ways["add"]] == [0, 0, 0]
    assert all(way[0]["old"] == 1 for name, way in ways.items() if name != "all data")  # the colours are far apart
    assert ways["closed set"][-1]["new"] == 0 < ways["add"][-1]["new"] and ways["train --from"][-1]["all"] >= 0.9
    runs = [{"set": "pets", "seed": 0, "way": way, "stages": stages} for way, stages in ways.items()]
    assert len(table(runs).split("\n")) == 2 + len(ways) and "2, 4 |" in table(runs)


def test_what_cannot_be_reproduced_is_refused(command: Callable[..., Any], tmp_path: Path) -> None:
    assert (
        "give --root" in command("reproduce", "stream").complaint
        or "--root DIR" in command("reproduce", "stream").complaint
    )
    assert (
        "--methods has no meaning" in command("reproduce", "stream", "--root", tmp_path, "--methods", "gcd").complaint
    )
    with pytest.raises(DataError, match="no numbers of images for pets at full scale; choose from cifar100, cub"):
        reproduce(Wish((tmp_path,), tmp_path / "out", tmp_path, sets=("pets",)))
    assert not (tmp_path / "out").exists()
    missing = command("reproduce", "stream", "--root", tmp_path, "--sets", "cub", "-o", tmp_path / "out")
    assert missing.code == 3 and "CUB" in missing.complaint
