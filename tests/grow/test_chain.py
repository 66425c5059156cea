"""Five generations of a run, batches and trainings in turn: an id is never used for something else, and what was named keeps its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from debgcd.review.log import read_review, reviewed_predictions
from debgcd.run.directory import finished_run

Command = Callable[..., Any]
Later = Callable[..., Path]


def assigned(run: Path) -> dict[str, str]:
    """The category's id of each image, labelled or not."""
    manifest = finished_run(run).manifest
    labels = {str(path): label for path, label in zip(manifest.paths, manifest.labels, strict=True) if label}
    return labels | {row["path"]: row["id"] for row in reviewed_predictions(run)[0]}


def test_ids_over_five_generations(command: Command, run: Path, later: Later, tmp_path: Path) -> None:
    now, used = assigned(run), set(read_review(run).categories)

    def largest() -> int:
        return max(int(id[4:]) for id in used if id.startswith("new-"))

    def step(run: Path, *words: object) -> None:
        """A batch or a training: ids that begin with it were never used."""
        said = command(*words)
        assert said.code == 0, said.err
        begun = set(read_review(run).categories) - used
        assert not begun or min(int(id[4:]) for id in begun) > largest()
        used.update(begun)

    def added(run: Path, batch: Path, *more: object) -> None:
        nonlocal now
        step(run, "add", run, batch, *more)
        before, now = now, assigned(run)
        assert len(now) > len(before) and {image: now[image] for image in before} == before

    added(run, later("first", cat=8, dog=8, owl=8, fox=12), "--new", 1)
    foxes = {image for image, id in now.items() if id == "new-02"}
    assert foxes and command("name", run, "new-02=fox").code == 0
    for generation, more in ((3, {"owl": 8, "cat": 8, "dog": 8, "elk": 10}), (5, {"fox": 10, "dog": 10, "owl": 12})):
        trained = tmp_path / f"run-{generation}"
        k = len(set(now.values()))
        step(trained, "train", "--from", run, "-o", trained, "--epochs", 0, "--k", k, "--no-report")
        before, now, run = now, assigned(trained), trained
        for id in {*before.values()} & {*now.values()}:  # lives on in most of its images
            was = {image for image in before if before[image] == id}
            assert 2 * sum(now[image] == id for image in was) > len(was), id
        added(run, later(f"batch{generation}", **more))
    fox = read_review(run).categories["new-02"]
    assert fox.known and fox.name == "fox" and {now[image] for image in foxes} == {"new-02"}
