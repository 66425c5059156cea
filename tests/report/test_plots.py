"""The paper's figures: each can be drawn, says what it shows, and comes out the same twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from debgcd.cluster.estimate_k import Estimate
from debgcd.commands.report import FIGURES as NAMED
from debgcd.errors import DataError, UsageError
from debgcd.report.plots import FIGURES, draw, image_file, k_figure, title_of
from debgcd.run.directory import Run

Command = Callable[..., Any]


def titles(figure: Any) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def test_the_help_names_every_figure() -> None:
    assert ", ".join(FIGURES) == NAMED


@pytest.mark.parametrize("name", ["tsne", "utilisation", "classifiers", "novelty", "errors"])
def test_two_runs_side_by_side(run: Run, tmp_path: Path, name: str) -> None:
    figure = draw(name, [run, run], tmp_path)
    assert len(figure.axes) == {"tsne": 2, "utilisation": 2, "classifiers": 4, "novelty": 4, "errors": 1}[name]
    assert image_file(figure, ".png").startswith(b"\x89PNG")
    assert b"<svg" in image_file(figure, ".svg")


def test_the_same_figure_twice_is_the_same_file(run: Run, tmp_path: Path) -> None:
    once, again = (image_file(draw("utilisation", [run], tmp_path), ".svg") for _ in range(2))
    assert once == again


def test_errors_are_those_of_the_evaluation(run: Run, tmp_path: Path) -> None:
    (axes,) = draw("errors", [run], tmp_path).axes
    written = json.loads(run.evaluation.read_text())["unlabelled"]["gcd"]["errors"]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([100 * written[kind] for kind in written])


def test_runs_are_told_apart_by_their_folders_which_are_no_formulas(run: Run, tmp_path: Path) -> None:
    named = replace(run, folder=tmp_path / "$x_{$")
    assert title_of(named) == r"\$x_{\$ (debgcd, seed 0)" != title_of(run) == "run (debgcd, seed 0)"
    assert title_of(replace(run, folder=tmp_path / "seed-0")) == "debgcd, seed 0"
    (axes,) = draw("errors", [run], tmp_path).axes
    axes.set_title(title_of(named))
    assert image_file(axes.figure, ".png").startswith(b"\x89PNG")


def test_novelty_counts_old_and_new_images_of_both_parts(run: Run, tmp_path: Path) -> None:
    unlabelled, test = draw("novelty", [run], tmp_path).axes
    for axes, old, new in ((unlabelled, 47, 23), (test, 4, 2)):  # cats and dogs are old, owls new
        heights = [sum(bar.get_height() for bar in group) for group in axes.containers]
        assert heights == [old, new]


def test_without_truth_what_is_known_instead(run: Run, tmp_path: Path) -> None:
    blank = replace(run, manifest=replace(run.manifest, truths=(None,) * len(run.manifest)), folder=tmp_path)
    for name in ("model", "predictions.csv", "metrics.jsonl", "images.sha256"):
        (tmp_path / name).symlink_to(run.folder / name)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    (tmp_path / "metrics.jsonl").unlink()
    kept = [{k: v for k, v in line.items() if k not in ("used_old", "used_new")} for line in lines if "loss" in line]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert "categories" in titles(draw("tsne", [blank], tmp_path))[0]
    assert "so confidence" in titles(draw("classifiers", [blank], tmp_path))[0]
    assert "by category" in titles(draw("novelty", [blank], tmp_path))[0]
    (axis,) = draw("errors", [blank], tmp_path).axes
    assert axis.get_xlabel() == "unlabelled images"
    assert {"dog", "new-01"} < {label.get_text() for label in axis.get_yticklabels()}
    assert draw("utilisation", [blank], tmp_path).axes[0].get_legend().get_texts()[0].get_text().startswith("all")


def test_what_a_method_does_not_have_is_said(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no vision transformer"):
        draw("attention", [run], tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0, "epoch": 1}\n')
    with pytest.raises(DataError, match="no hard labels"):
        draw("utilisation", [replace(run, folder=tmp_path)], tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        draw("utilisation", [replace(run, folder=tmp_path)], tmp_path)


def test_the_score_of_each_k(command: Command, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "k.svg"
    assert command("report", run.folder, "--figure", "k", "-o", out, "--cache", tmp_path / "cache").code == 0
    assert b"<svg" in out.read_bytes()


@pytest.mark.parametrize(("low", "k", "high"), [(8, 10, 20), (10, 10, 10), (5, 5, 40), (5, 40, 40)])
def test_the_plot_of_an_estimate_shades_its_interval_and_marks_k(low: int, k: int, high: int) -> None:
    curve = [(n, 1.0 if n == 10 else 0.25) for n in range(5, 41)]
    figure = k_figure(Estimate(k, low, high, "ward", {"ward": curve}, {"ward": k}, 1.0))
    (axes,) = figure.axes
    (shaded,) = axes.patches
    assert (shaded.get_x(), shaded.get_x() + shaded.get_width()) == (low, high)
    drawn, estimate = axes.lines
    assert np.array(drawn.get_data()).T.tolist() == [list(point) for point in curve]
    assert list(estimate.get_xdata()) == [k, k]
    assert image_file(figure, ".png").startswith(b"\x89PNG")


def test_an_estimate_of_one_candidate_can_be_plotted() -> None:
    only = Estimate(3, 3, 3, "brent", {"brent": [(3, 0.5)]}, {"brent": 3}, 0.1)
    assert image_file(k_figure(only), ".png").startswith(b"\x89PNG")


def test_attention_tuned_and_untuned(vit_run: Run, tmp_path: Path) -> None:
    figure = draw("attention", [vit_run], tmp_path)
    assert len(figure.axes) == 3 * 6 and "untuned" in titles(figure)[1]
    shown = [axes.get_images()[0].get_array() for axes in figure.axes[:3]]
    assert not np.array_equal(shown[0], shown[1])


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_attention_is_the_models_own(tmp_path: Path, kind: str) -> None:
    model = tiny.hub_model(kind, tmp_path)
    model.set_attn_implementation("eager")
    backbone = tiny.load(tmp_path, tuned_blocks=2)
    pixels = tiny.images()
    with torch.no_grad():
        theirs = model(pixels, output_attentions=True).attentions[-1][:, :, 0]
        ours = backbone.attention(backbone.tokens(pixels))
    patches = tiny.SIDE**2
    assert torch.allclose(ours.flatten(2), theirs[:, :, -patches:], atol=1e-5)
