"""The watch over a run: each sign, what it says, and that a failing run goes back to the best state seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from miniatures import draw

from debgcd.train import watch as health
from debgcd.train.setup import held_out
from debgcd.train.watch import Signs, by_the_nearest, effective_rank, names_lost, problem

FINE = Signs(rank=20.0, largest=0.2, spread=0.3, held_out=0.9, agreement=0.9)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (replace(FINE, rank=1.5), "look alike"),
        (replace(FINE, spread=0.001), "novelty is nearly the same"),
        (replace(FINE, largest=0.8), "80 % of the images are in one category (20 % at the start)"),
        (replace(FINE, held_out=0.7), "fell from 90 to 70 %"),
        (replace(FINE, agreement=0.6), "agree on 60 % of them (90 % at the start)"),
    ],
)
def test_each_sign_is_said(now: Signs, words: str) -> None:
    assert problem(FINE, FINE, 100, 500) is None
    assert words in (problem(now, FINE, 100, 500) or "")


@pytest.mark.parametrize(
    "now",
    [
        replace(FINE, largest=0.44),  # below half
        replace(FINE, held_out=0.84),  # within chance for 100 images
        replace(FINE, agreement=0.8),
        Signs(rank=20.0, largest=None, spread=None, held_out=None, agreement=None),
    ],
)
def test_what_chance_may_do_is_no_problem(now: Signs) -> None:
    assert problem(now, FINE, 100, 500) is None


def test_a_large_category_that_was_large_at_the_start_is_no_problem() -> None:
    """Two known classes, and nine of ten images in one new one."""
    assert problem(replace(FINE, largest=0.9), replace(FINE, largest=0.88), 100, 500) is None


def test_effective_rank_counts_dimensions() -> None:
    rng = torch.Generator().manual_seed(0)
    assert effective_rank(torch.randn(4000, 5, generator=rng)) == pytest.approx(5, abs=0.1)
    line = torch.cat([torch.ones(300, 1), torch.rand(300, 1, generator=rng)], 1)
    assert effective_rank(line) == pytest.approx(1, abs=0.05)
    assert effective_rank(torch.ones(50, 8)) == 1.0
    assert effective_rank(torch.randn(6, 400, generator=rng)) == pytest.approx(5, abs=0.5)


def test_labels_are_held_out_where_a_class_has_some_to_spare() -> None:
    label = np.repeat([0, 1, 2, -1], [60, 45, 9, 30])
    held = held_out(label, 0.1, 0)
    assert [int(held[label == name].sum()) for name in (0, 1, 2, -1)] == [6, 4, 0, 0]
    assert not np.array_equal(held, held_out(label, 0.1, 1)) and np.array_equal(held, held_out(label, 0.1, 0))
    assert not held_out(label, 0.0, 0).any()
    assert not held_out(label[:60], 0.1, 0).any()  # six images say nothing


def test_a_group_is_held_out_as_a_whole_or_not() -> None:
    label = np.repeat([0, 1, -1], [60, 60, 30])
    group = np.where(np.arange(150) % 10 < 7, np.arange(150) // 10, -1)
    group[[55, 65]] = 99  # two classes in one scene
    held = held_out(label, 0.3, 0, group)
    assert 24 <= held.sum() <= 36 and not held[label < 0].any()
    assert any(held[group == name].any() for name in range(12))
    for name in np.unique(group[group >= 0]):
        assert len(set(held[(group == name) & (label >= 0)])) <= 1


def test_a_run_is_looked_at_before_its_first_step_and_six_times_after(
    train: Callable[..., object], shared_csv: Path, tmp_path: Path
) -> None:
    train(shared_csv, tmp_path / "run", schedule__steps=12)
    found = json.loads((tmp_path / "run" / "health.json").read_text())
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["health"] == found
    assert list(found["signs"]) == ["0", "2", "4", "6", "8", "10", "12"]


def test_names_are_lost_where_the_nearest_labelled_images_know_better() -> None:
    assert names_lost(replace(FINE, neighbours=0.95), 100) is None
    assert names_lost(replace(FINE, held_out=0.7, neighbours=0.95), 100) is None  # 0.2 and what chance explains
    said = names_lost(replace(FINE, held_out=0.5, neighbours=0.95), 100)
    assert said is not None and "gives 50 % their class, their nearest labelled images 95 %" in said
    assert names_lost(replace(FINE, held_out=0.5), 100) is None  # no other labelled image


def test_the_nearest_other_labelled_image_decides() -> None:
    feature = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9], [1.0, 0.05]])
    label, held = torch.tensor([0, 1, 1, 1, 0]), torch.tensor([False, True, False, True, False])
    assert by_the_nearest(feature, label, held) == 0.5  # the second lies among the images of class 0
    assert by_the_nearest(feature, label, label >= 0) is None


def test_lost_names_are_said_once_at_the_end(
    train: Callable[..., object], shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "names_lost", lambda end, held_out: "the test says so")
    said = train(shared_csv, tmp_path / "run", schedule__steps=2)
    found = json.loads((tmp_path / "run" / "health.json").read_text())
    assert found["labels"] == ["the test says so"] and not found["healthy"]
    assert said.err.count("warning: the test says so") == 1 and "Warning: the test says so." in said.out


def failing_after(step: int) -> Callable[[Signs, Signs, int, int], str | None]:
    looks = iter(range(100))
    return lambda now, start, held, free: "the test says so" if next(looks) * 2 >= step else None


def test_a_run_that_fails_goes_back_and_ends_with_a_warning(
    train: Callable[..., object], shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model is that of the best state seen, which is the last healthy one here: the signs do not change."""
    monkeypatch.setattr(Signs, "score", property(lambda signs: 0.0))
    monkeypatch.setattr(health, "problem", failing_after(6))
    said = train(shared_csv, tmp_path / "run", schedule__steps=12, run__watch="act")
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())["health"]
    assert (found["healthy"], found["problem"], found["kept_step"]) == (False, "the test says so", 4)
    assert said.code == 0 and "warning: after 6 steps the test says so" in said.err
    assert "Warning: in training, the test says so." in said.out
    kept = tmp_path / "run" / "checkpoints" / "healthy" / "step-00000004" / "state.safetensors"
    from safetensors.torch import load_file

    state, model = load_file(kept), load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert torch.equal(state["heads.classifier.weight"], model["heads.classifier.weight"])


def test_a_run_that_looks_wrong_from_the_start_ends_with_its_start(
    train: Callable[..., object], shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "problem", failing_after(0))
    said = train(shared_csv, tmp_path / "run", schedule__steps=12, run__watch="act")
    found = json.loads((tmp_path / "run" / "health.json").read_text())
    assert said.code == 0 and (found["healthy"], found["kept_step"]) == (False, 0)


def test_where_it_only_warns_training_goes_on(
    train: Callable[..., object], shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(shared_csv, tmp_path / "healthy", schedule__steps=12)
    monkeypatch.setattr(health, "problem", failing_after(6))
    said = train(shared_csv, tmp_path / "run", schedule__steps=12)
    assert "warning: after 6 steps the test says so" in said.err
    same = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("healthy", "run")]
    assert same[0] == same[1]
    assert not (tmp_path / "run" / "checkpoints" / "healthy").exists()


def test_a_collapse_is_seen(
    train: Callable[..., object], shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels that hardly vary, stretched to the spread of the others as once they were, and a large step: rank one."""
    from debgcd.model import network

    monkeypatch.setattr(network, "LEAST_SPREAD", 0.0)
    said = train(
        shared_csv,
        tmp_path / "run",
        schedule__steps=12,
        schedule__lr=50.0,
        schedule__tail_lr=1.0,
        run__watch="act",
    )
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())["health"]
    assert said.code == 0 and not found["healthy"] and found["kept_step"] is not None, found


def test_labels_that_contradict_the_images_are_said_before_and_after(
    command: Callable[..., Any], tmp_path: Path, arguments: Callable[..., list[str]]
) -> None:
    """Half of the cats are called dogs, and the other way round: the accuracy by matching would not notice."""
    for i in range(48):
        kind, labelled = ("cat", "dog")[i % 2], i < 24
        name = ("cat", "dog")[i // 2 % 2]
        draw(tmp_path / "images" / (f"labelled/{name}" if labelled else "unlabelled") / f"{i:02d}.png", kind, i)
    run = tmp_path / "run"
    said = command(*arguments(tmp_path / "images", run, "--method", "debgcd", schedule__steps=6))
    words = "the 24 labels contradict the images"
    assert said.code == 0 and f"warning: {words}" in said.err
    assert f"Warning: {words}" in said.out and "Training behaved normally" not in said.out
    health = json.loads((run / "health.json").read_text("utf-8"))
    assert not health["healthy"] and words in health["labels"][0]
    assert command("report", run).code == 0 and "The 24 labels contradict" in (run / "report.html").read_text("utf-8")
    assert words in command("check", tmp_path / "images", "--labels", "--k", 3, "--preset", "small").out
