"""A finished run in sentences: how many categories, how often `looks_new` errs, how training went, and what is not known."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from debgcd.cluster.estimate_k import Estimate
from debgcd.novelty.base import NoveltyThreshold
from debgcd.review.state import OPEN
from debgcd.run.categories import Category
from debgcd.run.directory import Run
from debgcd.run.model_folder import read_novel
from debgcd.run.predictions import Prediction
from debgcd.system.files import read_json
from debgcd.train.finish import read_health

WARNING = "Warning: "  # how such a line begins
TOO_OFTEN = 0.25  # an expected error above which `looks_new` is not to be relied on


def summary(run: Run, rows: Sequence[Prediction], categories: Sequence[Category]) -> list[str]:
    """What to know of a finished run, one sentence or two per line; rows, categories: as a reviewer left them."""
    continued = run.config.prune and run.before.exists()
    lines = [number_of_categories(categories, read_estimate(run), run.config.k_times, continued)]
    lines += errors_of_looks_new(rows, read_novel(run.model))
    return lines + course_of_training(read_health(run), run.evaluation.exists())


def next_steps(folder: Path, rows: Sequence[Prediction]) -> list[tuple[str, str]]:
    """What a person can do now with the run in `folder`, and the command for it; the most important first."""
    place = shlex.quote(str(folder))
    steps = [("look through the categories; name, merge and split them", f"debgcd review {place}")]
    if any(row["review"] != OPEN for row in rows):
        steps.append(("train again with what was said in the review", f"debgcd train --from {place}"))
    return [*steps, ("sort new images into the same categories", f"debgcd predict {place} PATH -o out.csv")]


def read_estimate(run: Run) -> Estimate | None:
    """The estimate of K that the run began with; None where K was given, or if the file cannot be read."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = read_json(run.estimate)
        return Estimate(**{name: found[name] for name in Estimate.__dataclass_fields__})
    return None


def number_of_categories(
    categories: Sequence[Category], estimate: Estimate | None, times: int = 1, continued: bool = False
) -> str:
    """How many categories there are, where the number comes from, and what was merged.

    times: a factor that was asked for; continued: whether it is that of an earlier run and what was found since.
    """
    living = [one for one in categories if one.merged_into is None]
    known = sum(one.known for one in living)
    text = f"{len(living)} categories: {known} known classes and {len(living) - known} new."
    factor = f", and {times} times that were asked for" if times > 1 else ""
    if estimate is None and continued:
        text += f" It is that of the run before and what was in images of none of its categories{factor}."
    elif estimate is None:
        text += " Their number was given."
    else:
        text += f" The estimate was {estimate.k} (90 % interval {estimate.low} to {estimate.high}){factor}."
    name = {one.id: one.name for one in living}
    merged = [f"{one.id} into {name.get(one.merged_into, one.merged_into)}" for one in categories if one.merged_into]
    return f"{text} Merged in the review: {', '.join(merged)}." if merged else text


def errors_of_looks_new(rows: Sequence[Prediction], novel: NoveltyThreshold | None) -> list[str]:
    """How many images look new, and how often that is expected to be wrong; nothing without novelty."""
    known = [row["looks_new"] for row in rows if row["looks_new"] is not None]
    if not known or novel is None:
        return []
    text = f"{sum(known)} of {len(known)} images look new"
    if novel.error_known is None:
        return [f"{text}; there are too few labels to tell how often that is wrong."]
    errors = f"{_share(novel.error_known)} of the known images"
    errors += ", not known for new ones" if novel.error_new is None else f", {_share(novel.error_new)} of the new ones"
    often = " That is too often to rely on." if max(novel.error_known, novel.error_new or 0) > TOO_OFTEN else ""
    return [f"{text} (expected errors: {errors}).{often}"]


def course_of_training(health: dict[str, Any] | None, measured: bool) -> list[str]:
    """Warnings, or that training behaved normally; and that whether the categories are right was not measured, if so."""
    lines = []
    normal = False
    if health is not None:
        lines += [f"{WARNING}{warning}." for warning in health.get("labels", [])]
        normal = bool(health["healthy"])
        if health["problem"] is not None:
            lines.append(f"{WARNING}in training, {health['problem']}.")
        if health["kept_step"] is not None:
            lines.append(f"The model is that of step {health['kept_step']}, the best seen.")
    if normal:
        lines.append("Training behaved normally.")
    if not measured:
        start = "Whether the categories are right is not known"
        lines.append(f"{start}: the truth was not given, and confidence and trust are the model's own view.")
    return lines


def _share(value: float) -> str:
    return "under 1 %" if value < 0.01 else f"{100 * value:.0f} %"
