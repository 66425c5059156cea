"""The paper's figures, each a function of one or two finished runs, and the scores of K; drawn with matplotlib (extra `figures`)."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from debgcd.cluster.estimate_k import Estimate
from debgcd.data.loader import from_files
from debgcd.data.views import CENTRE, PLAIN
from debgcd.errors import DataError, UsageError
from debgcd.estimate import from_run
from debgcd.infer.infer import features, infer
from debgcd.infer.where import lit
from debgcd.model.vit import VitBackbone
from debgcd.novelty.base import DETECTOR
from debgcd.report.describe import project
from debgcd.review.log import reviewed_predictions
from debgcd.run.directory import Run
from debgcd.system.files import parse_json, readable, write_bytes
from debgcd.system.machine import optional
from debgcd.system.progress import escaped
from debgcd.train.finish import read_evaluation
from debgcd.train.plan import run_backbone
from debgcd.train.setup import fresh_tokens
from debgcd.train.train import open_setup

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FACES = 6  # images


def attention(figure: Figure, runs: Sequence[Run], cache: Path) -> None:
    """Figure 7: attention of the last block's CLS token, mean over heads, over the image: untuned beside tuned."""
    columns = 1 + 2 * len(runs)
    figure.set_size_inches(1.9 * columns, 2.0 * FACES)
    grid: Any = figure.subplots(FACES, columns, squeeze=False)
    for at, run in enumerate(runs):
        setup = open_setup(run, run.manifest, cache)
        tuned = setup.network.backbone
        if not isinstance(tuned, VitBackbone):
            raise UsageError(
                f"the backbone {run.config.backbone.name} of {run.folder} is no vision transformer and has no attention to show"
            )
        untuned = run_backbone(run, cache).to(setup.device)
        free = np.flatnonzero(setup.label < 0)
        chosen = free[np.linspace(0, len(free) - 1, FACES).round().astype(int)]
        images = from_files([setup.paths[i] for i in chosen], run.config.views)
        for row in range(FACES):
            pixels = images[row, CENTRE, (PLAIN,)]
            if isinstance(pixels, str):
                raise DataError(pixels)
            face = pixels[0].permute(1, 2, 0).numpy()
            if at == 0:
                grid[row, 0].imshow(face)
            for place, network in ((1 + 2 * at, untuned), (2 + 2 * at, tuned)):
                assert isinstance(network, VitBackbone)
                seen = network.attention(network.trunk(pixels)).mean(1)[0].detach().cpu().numpy()
                grid[row, place].imshow(lit(face, seen))
        for place, what in ((1 + 2 * at, "untuned"), (2 + 2 * at, "tuned")):
            grid[0, place].set_title(f"{title_of(run)}\n{what}", fontsize=9)
    for axis in grid.flat:
        axis.set_axis_off()


def title_of(run: Run) -> str:
    """The name of a run in a figure; its folder's too, unless that only repeats the seed, as in a grid of runs."""
    said, folder = f"{run.config.method}, seed {run.config.seed}", run.folder.resolve().name
    return said if folder == f"seed-{run.config.seed}" else plain(f"{folder} ({said})")


OLD, NEW = "#0072b2", "#d55e00"  # of Okabe and Ito: told apart by all eyes
CLASSES = 20  # of the t-SNE: half old, half new
SUFFIXES = (".png", ".svg")
BINS = np.linspace(0, 1, 31)
BARS, LONGEST_LABEL = 40, 30  # categories of a bar chart, characters of the name of one


def draw(name: str, runs: Sequence[Run], cache: Path) -> Figure:
    """The figure of this name, one column per run."""
    if name not in FIGURES:
        raise UsageError(f"there is no figure {name!r}; choose one of {', '.join(FIGURES)}")
    figure = new_figure(f"the figure {name}")
    FIGURES[name](figure, runs, cache)
    return figure


def new_figure(what: str) -> Figure:
    """An empty figure; without matplotlib an error that says that `what` needs it."""
    figure: Figure = optional("matplotlib.figure", "figures", what).Figure(layout="constrained")
    return figure


def image_file(figure: Figure, suffix: str) -> bytes:
    """The figure as a PNG or SVG file, the same bytes each time."""
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "debgcd", "savefig.dpi": 150}):
        figure.savefig(content, format=suffix[1:], metadata={"Date": None} if suffix == ".svg" else None)
    return content.getvalue()


def write_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the file's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, image_file(figure, path.suffix.lower()))


def tsne(figure: Figure, runs: Sequence[Run], cache: Path) -> None:
    """Figure 3: t-SNE of the features of 20 classes, half old, half new; of the largest categories without truth."""
    for run, axes in _columns(figure, runs, 1, 5.5):
        ids, known, named = _classes(run)
        sizes = np.bincount(ids[ids >= 0])
        chosen: list[int] = []
        for old in (True, False):
            side = [c for c in range(len(sizes)) if (c < known) is old and sizes[c]]
            chosen += sorted(side, key=lambda c: -sizes[c])[: CLASSES // 2]
        rows = np.flatnonzero(np.isin(ids, chosen))
        setup = open_setup(run, run.manifest, cache)
        feature = torch.nn.functional.normalize(features(setup.network, setup.tokens.centre(rows)), dim=1)
        if len(rows) > 10:
            optional("openTSNE", "figures", "the figure tsne")
        flat, _ = project(feature.cpu().numpy(), run.config.seed)
        shades = _colours(len(chosen))
        for c, colour in zip(chosen, shades, strict=True):
            here = ids[rows] == c
            axes[0].scatter(*flat[here].T, s=9, color=colour, marker="o" if c < known else "^", linewidths=0)
        axes[0].set(xticks=[], yticks=[], title=f"{title_of(run)}: {named} (● old, ▲ new)")


def utilisation(figure: Figure, runs: Sequence[Run], cache: Path) -> None:
    """Figure 4: the share of unlabelled images that teach the debiased classifier, over the epochs."""
    for run, (axes,) in _columns(figure, runs, 1, 3.6):
        lines = [line for line in _metrics(run) if "used" in line]
        if not lines:
            raise DataError(f"{run.folder}: {run.config.method} has no hard labels, so there is no utilisation to show")
        truth = any(line.get("used_old") is not None for line in lines)
        sides = (
            (("used_old", "Old", OLD), ("used_new", "New", NEW))
            if truth
            else (("used", "all (truth is not known)", OLD),)
        )
        for key, label, colour in sides:
            there = [(line["epoch"], line[key]) for line in lines if line.get(key) is not None]
            epoch, share = np.array(there).T
            axes.plot(epoch, _smooth(share), color=colour, label=label)
        axes.set(xlabel="epoch", ylabel="share used", ylim=(0, 1), title=title_of(run))
        axes.legend()


def classifiers(figure: Figure, runs: Sequence[Run], cache: Path) -> None:
    """Figure 5: accuracy of the classifiers over the epochs, old and new, unlabelled and test; confidence without truth."""
    parts = _parts(runs)
    for run, axes in _columns(figure, runs, len(parts), 3.2 * len(parts)):
        lines = _metrics(run)
        per_epoch = next((line["step"] / line["epoch"] for line in lines if line.get("epoch")), 1.0)
        found = [(line["step"] / per_epoch, line["evaluation"]) for line in lines if line.get("evaluation")]
        if not found:
            _confidence(axes[0], run)
            continue
        for part, axis in zip(parts, axes, strict=True):
            for classifier, style in (("gcd", "-"), ("debiased", "--")):
                for side, colour in (("old", OLD), ("new", NEW)):
                    there = [
                        (e, scores[part][classifier]["accuracy"][side])
                        for e, scores in found
                        if classifier in scores.get(part, {})
                    ]
                    there = [(e, value) for e, value in there if value is not None]
                    if there:
                        marks = {"color": colour, "linestyle": style, "marker": "o", "markersize": 3}
                        axis.plot(*np.array(there).T, **marks, label=f"{classifier}, {side.title()}")
            axis.set(xlabel="epoch", ylabel="accuracy", ylim=(0, 1), title=f"{title_of(run)}, {part}")
            axis.legend(fontsize=8)


def novelty(figure: Figure, runs: Sequence[Run], cache: Path) -> None:
    """Figure 6: histograms of the novelty of old and new images, unlabelled and test; by category without truth."""
    parts = _parts(runs)
    for run, axes in _columns(figure, runs, len(parts), 3.2 * len(parts)):
        manifest, known = run.manifest, len(run.manifest.classes)
        rows, _ = reviewed_predictions(run.folder)
        if not rows or rows[0]["novelty"] is None:
            raise DataError(
                f"{run.folder}: {run.config.method} gives no novelty score, so there is no histogram to show"
            )
        truth = manifest.truth_ids(manifest.training_rows)[manifest.training_labels < 0]
        score = np.array([row["novelty"] for row in rows])
        said = "" if (truth >= 0).any() else " by category (truth is not known)"
        new = truth >= known if not said else np.array([not row["known"] for row in rows])
        have = truth >= 0 if not said else np.ones(len(rows), bool)
        _two(axes[0], score[have], new[have], f"{title_of(run)}, unlabelled{said}")
        truth = manifest.truth_ids(manifest.test_rows)
        if not (truth >= 0).any():
            continue
        setup = open_setup(run, run.manifest, cache)
        source = fresh_tokens(run.config, manifest, setup.network.backbone, manifest.test_rows)
        heads = (*setup.method.final_answers, DETECTOR)
        found = infer(setup.network, setup.method, source.centre(np.arange(len(truth))), heads)
        assert found.novelty is not None
        _two(axes[1], found.novelty[truth >= 0], (truth >= known)[truth >= 0], f"{title_of(run)}, test")


def errors(figure: Figure, runs: Sequence[Run], cache: Path) -> None:
    """Figure 8: the four kinds of error of one run, or of two side by side; the sizes of the categories without truth."""
    kinds = {"true_old": "True Old", "false_new": "False New", "false_old": "False Old", "true_new": "True New"}
    found = [read_evaluation(run).get("unlabelled") if run.evaluation.exists() else None for run in runs]
    if not all(found):
        sizes(figure, runs, cache)
        return
    figure.set_size_inches(6.4, 3.6)
    axis: Any = figure.subplots()
    for i, (run, scores) in enumerate(zip(runs, found, strict=True)):
        assert scores is not None
        values = [100 * (scores["gcd"]["errors"][kind] or 0) for kind in kinds]
        place = np.arange(len(kinds)) + (i - (len(runs) - 1) / 2) * 0.38
        bars = axis.bar(place, values, 0.36, color=(OLD, NEW)[i], label=title_of(run))
        axis.bar_label(bars, fmt="%.1f", fontsize=8)
    axis.set(ylabel="per cent of Old (left two) or New images")
    axis.set_xticks(range(len(kinds)), list(kinds.values()))
    axis.legend()


def sizes(figure: Figure, runs: Sequence[Run], cache: Path) -> None:
    """The unlabelled images of each category, by name; of many, the largest."""
    found = []
    for run in runs:
        rows, categories = reviewed_predictions(run.folder)
        count = Counter(row["category"] for row in rows)
        living = [one for one in categories if one.merged_into is None]
        found.append(sorted(((one.name, one.known, count[one.category]) for one in living), key=lambda bar: -bar[2]))
    most = min(BARS, max(map(len, found)))
    for (run, (axis,)), bars in zip(_columns(figure, runs, 1, 1.2 + 0.2 * most), found, strict=True):
        shown = bars[:BARS][::-1]  # the first bar is at the bottom
        for is_known, colour, label in ((True, OLD, "known classes"), (False, NEW, "new categories")):
            values = [(i, size) for i, (_, known, size) in enumerate(shown) if known is is_known]
            if values:
                axis.barh(*np.array(values).T, color=colour, label=label)
        axis.set_yticks(range(len(shown)), [_label(name) for name, _, _ in shown], fontsize=8)
        more = f", the {BARS} largest of {len(bars)}" if len(bars) > BARS else ""
        axis.set(xlabel="unlabelled images", title=f"{title_of(run)}{more}")
        axis.legend(fontsize=8)


def plain(text: str) -> str:
    """Text as matplotlib shows it as it is: what is between two dollars would be set as a formula."""
    return escaped(text).replace("$", r"\$")


def _label(name: str) -> str:
    return plain(name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1]}…")


def k(figure: Figure, runs: Sequence[Run], cache: Path) -> None:
    """The score of each number of categories, from the frozen features of the run's images."""
    for run, (axes,) in _columns(figure, runs, 1, 3.8):
        _scores_of_k(axes, from_run(run.folder, {"run": {"cache": str(cache)}}, "consensus"), title_of(run))


def k_figure(estimate: Estimate) -> Figure:
    """The score of each number of categories of one estimate."""
    figure = new_figure("the plot of K")
    figure.set_size_inches(6, 3.2)
    _scores_of_k(figure.subplots(), estimate, f"about {estimate.k} categories ({estimate.low} to {estimate.high})")
    return figure


def _scores_of_k(axes: Any, estimate: Estimate, title: str) -> None:
    """Each curve against K on a log scale, the interval shaded, the estimate as a vertical line."""
    for way, colour in zip(estimate.curves, (OLD, NEW, "#009e73"), strict=False):
        axes.plot(*np.array(estimate.curves[way]).T, color=colour, label=way)
    axes.axvspan(estimate.low, estimate.high, color="#cccccc", alpha=0.5, label="90 % interval")
    axes.axvline(estimate.k, color="black", linestyle="--", label=f"estimate {estimate.k}")
    axes.set(xscale="log", xlabel="categories in all", ylabel="score", title=title)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_minor_formatter("{x:.0f}")
    axes.legend(fontsize=8)


FIGURES: dict[str, Callable[[Figure, Sequence[Run], Path], None]] = {
    "tsne": tsne,
    "utilisation": utilisation,
    "classifiers": classifiers,
    "novelty": novelty,
    "attention": attention,
    "errors": errors,
    "sizes": sizes,
    "k": k,
}


def _columns(figure: Figure, runs: Sequence[Run], rows: int, height: float) -> list[tuple[Run, Any]]:
    """Each run and its axes, from top to bottom."""
    figure.set_size_inches(5.6 * len(runs), height)
    grid: Any = figure.subplots(rows, len(runs), squeeze=False)
    return [(run, grid[:, i]) for i, run in enumerate(runs)]


def _parts(runs: Sequence[Run]) -> tuple[str, ...]:
    """The rows of a figure: test only if all runs have a test split with a truth."""
    tested = all((run.manifest.truth_ids(run.manifest.test_rows) >= 0).any() for run in runs)
    return ("unlabelled", "test") if tested else ("unlabelled",)


def _metrics(run: Run) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    with readable(run.metrics, "restore it or train again"):
        return [parse_json(line) for line in run.metrics.read_bytes().splitlines()]


def _classes(run: Run) -> tuple[NDArray[np.int64], int, str]:
    """The class of each training image if it is unlabelled, else -1; how many are old; and what the classes are."""
    manifest, known = run.manifest, len(run.manifest.classes)
    label = manifest.training_labels
    truth = manifest.truth_ids(manifest.training_rows)
    if (truth[label < 0] >= 0).any():
        return np.where(label < 0, truth, -1), known, "true classes"
    ids = np.full(len(label), -1)
    ids[label < 0] = [row["category"] for row in reviewed_predictions(run.folder)[0]]
    return ids, known, "categories"


def _smooth(share: NDArray[np.float64], over: int = 9) -> NDArray[np.float64]:
    """A running mean: the share of a single batch varies."""
    over = max(1, min(over, len(share) // 4))
    return np.convolve(np.pad(share, (over // 2, over - 1 - over // 2), "edge"), np.ones(over) / over, "valid")


def _two(axis: Any, score: NDArray[Any], new: NDArray[np.bool_], title: str) -> None:
    for side, colour, label in ((~new, OLD, "Old"), (new, NEW, "New")):
        axis.hist(score[side], BINS, color=colour, alpha=0.6, label=label)
    axis.set(xlabel="novelty", ylabel="images", title=title)
    axis.legend()


def _confidence(axis: Any, run: Run) -> None:
    rows, _ = reviewed_predictions(run.folder)
    for known, colour, label in ((True, OLD, "known classes"), (False, NEW, "new categories")):
        values = [row["confidence"] for row in rows if row["known"] is known]
        axis.hist(values, BINS, color=colour, alpha=0.6, label=label)
    axis.set(xlabel="confidence", ylabel="images", title=f"{title_of(run)}: truth is not known, so confidence")
    axis.legend()


def _colours(count: int) -> list[Any]:
    import matplotlib

    return [matplotlib.colormaps["tab20"](i % 20) for i in range(count)]
