"""The report: one HTML file that needs nothing else. `page_data` is what its gallery, map and table show."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

from debgcd import __version__
from debgcd.data.copies import copies_in_words, duplicates, find_copies, fingerprints, names_in_words
from debgcd.data.image.crop import Picture
from debgcd.data.thumbnails import thumbnails
from debgcd.errors import DataError, DebgcdError
from debgcd.report.describe import CERTAIN, IMAGES_ON_PAGE, UNSURE, Description, describe, project
from debgcd.report.look import Look, look
from debgcd.report.plots import draw, image_file, k_figure
from debgcd.report.suggest import sentence
from debgcd.report.summary import WARNING, next_steps, read_estimate, summary
from debgcd.report.trust import order_of_interest
from debgcd.run.directory import Run, unusable_images
from debgcd.system.files import csv_field, readable, write_text
from debgcd.system.progress import progress
from debgcd.train.finish import read_evaluation

TEMPLATES = Path(__file__).parent / "templates"
TRUSTED = 0.7  # trust of a category
FIGURES = {
    "utilisation": "Share of the unlabelled images that teach the debiased classifier, over the epochs.",
    "classifiers": "Accuracy of the two classifiers over the epochs.",
    "errors": "Kinds of error: Old images in another Old class or in a new one, New images in an Old class or in another new one.",
}
WITHOUT_TRUTH = {"sizes": "Unlabelled images per category."}
K_CAPTION = "How well each number of categories fits the images; the dashed line is the estimate."


def write_report(run: Run, out: Path, cache: Path) -> None:
    """Write the report of a finished run, atomically."""
    seen = look(run, cache)
    write_text(out, render(seen, page_data(seen, cache), _figures(run, cache), _labels(seen, cache)))


def render(
    look: Look,
    data: dict[str, Any],
    figures: Sequence[dict[str, str]] = (),
    labels: Sequence[dict[str, Any]] = (),
) -> str:
    """The page, from what `page_data` returns; figures and labels that look wrong, with pictures in base64."""
    loader = FileSystemLoader(TEMPLATES)
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    script, style = (TEMPLATES / "gallery.js").read_text("utf-8"), (TEMPLATES / "report.css").read_text("utf-8")
    script += (TEMPLATES / "report.js").read_text("utf-8").removeprefix('"use strict";\n')
    run, rows = look.run, list(look.rows.values())
    said = summary(run, rows, look.every)
    warnings = [line.removeprefix(WARNING) for line in said if line.startswith(WARNING)]
    return templates.get_template("report.html").render(
        title=run.folder.resolve().name,
        version=__version__,
        hash=_hash,
        style=style,
        script=script,
        sentence=_sentence(look),
        cards=_cards(look),
        suggestions=[sentence(one, look.categories, look.size) for one in look.suggestions],
        said=[line for line in said if not line.startswith(WARNING)],
        steps=next_steps(Path(run.folder.resolve().name), rows),
        warnings=[f"{line[0].upper()}{line[1:]}" for line in warnings] + _warnings(look, data),
        labels=labels,
        figures=figures,
        skipped=_skipped(run),
        config=(run.folder / "config.yaml").read_text("utf-8"),
        environment=(run.folder / "environment.json").read_text("utf-8"),
        data=data,
    )


def page_data(look: Look, cache: Path) -> dict[str, Any]:
    """All that the gallery, the map and the table of a run need, as JSON data; images are numbered from 0.

    categories, in their order: id, name, known, size, trust and its parts, confidence, novelty, like (the known class that it
    looks like most), alike (the cosine between their means), group, and lists of images: certain, typical (with part_sizes), borderline, outliers,
    labelled. images: one list per column.
    order: the categories by interest. duplicates: groups of images. shown: how many of the certain images. unsure: confidence
    below which the group is safer.
    """
    described = describe(look)
    chosen = _chosen(look, described)
    number = {image: i for i, image in enumerate(chosen)}
    paths = [look.paths[image] for image in chosen]
    reasons = unusable_images(look.run, look.run.manifest.training_rows[chosen], cache)
    with progress("thumbnails") as report:
        made = iter(thumbnails([path for path, why in zip(paths, reasons, strict=True) if not why], cache, report))
    pictures = [why or next(made) for why in reasons]
    labelled = look.label[chosen] >= 0
    place, how = _places(look, chosen)
    rows = [look.rows.get(image, {}) for image in chosen]
    index = {category.id: category.category for category in look.categories}

    def column(name: str, rounded: int = 4) -> list[float | None] | None:
        """A column of predictions.csv; None if the run has no such numbers."""
        values = [row.get(name) for row in rows]
        return [None if v is None else round(v, rounded) for v in values] if set(values) - {None} else None

    looks_new = [row.get("looks_new") for row in rows]
    truths = [look.run.manifest.truths[row] for row in look.run.manifest.training_rows[chosen]]
    images = {
        "path": [_shown_name(look, path) for path in paths],
        "labelled": labelled.tolist(),
        "category": look.category[chosen].tolist(),
        "confidence": column("confidence"),
        "novelty": column("novelty"),
        "looks_new": [value is True for value in looks_new] if set(looks_new) - {None} else None,
        "added": [row.get("added") for row in rows] if look.run.added else None,
        "next": [_next(row, index) for row in rows],
        "truth": truths if look.run.manifest.has_truth else None,
        "x": place[0],
        "y": place[1],
        "thumb": [base64.b64encode(p).decode() if isinstance(p, bytes) else "" for p in pictures],
        "reason": [p if isinstance(p, str) else "" for p in pictures],
    }
    twins = [group for group in duplicates(fingerprints(pictures)) if not labelled[group].all()]
    return {
        "contradictions": _contradictions(look, cache),
        "categories": [_category(look, c, one, number) for c, one in enumerate(described)],
        "images": images,
        "order": order_of_interest(look.trust, look.size, len(look.run.manifest.classes)),
        "duplicates": twins,
        "shown": CERTAIN,
        "unsure": UNSURE,
        "map": how,
    }


def _category(look: Look, c: int, described: Description, number: dict[int, int]) -> dict[str, Any]:
    rows = [look.rows[image] for image in look.members[c].tolist()]
    novelty = [row["novelty"] for row in rows if row["novelty"] is not None]
    category = look.categories[c]
    return {
        "id": category.id,
        "name": category.name,
        "known": category.known,
        "size": len(rows),
        "trust": _number(look.trust[c]),
        "parts": {name: _number(part[c]) for name, part in look.parts.items()},
        "confidence": _number(np.mean([row["confidence"] for row in rows])) if rows else None,
        "novelty": _number(np.mean(novelty)) if novelty else None,
        "like": described.like,
        "alike": None if described.like is None else _cosine(look.means[c], look.means[described.like]),
        "group": described.group,
        **{
            name: [number[image] for image in getattr(described, name)]
            for name in ("certain", "typical", "borderline", "outliers", "labelled")
        },
        "part_sizes": described.part_sizes,
    }


def _chosen(look: Look, described: Sequence[Description]) -> list[int]:
    """The images on the page: all unlabelled ones if they are few, else a part of each; and some labelled ones of each class."""
    picked = {image for one in described for image in (*one.certain, *one.typical, *one.borderline, *one.outliers)}
    free = np.flatnonzero(look.label < 0)
    if len(free) > IMAGES_ON_PAGE:
        others = np.random.default_rng(look.run.config.seed).permutation(np.setdiff1d(free, list(picked)))
        free = np.sort(np.concatenate([list(picked), others[: max(0, IMAGES_ON_PAGE - len(picked))]]).astype(np.int64))
    return [*free.tolist(), *(image for one in described for image in one.labelled)]


def _places(look: Look, chosen: list[int]) -> tuple[list[list[float | None]], str]:
    """x and y on the map, 0..1000, of the unlabelled images that are there; None for the others."""
    at = {int(image): i for i, image in enumerate(look.there)}
    drawn = [image for image in chosen if image in at and look.label[image] < 0]
    if not drawn:
        return [[None] * len(chosen)] * 2, "none of the images can be read"
    flat, how = project(look.feature[[at[image] for image in drawn]], look.run.config.seed)
    span = np.maximum(flat.max(0) - flat.min(0), 1e-12)
    scaled = dict(zip(drawn, ((flat - flat.min(0)) / span * 1000).round(1).tolist(), strict=True))
    return [[scaled[image][axis] if image in scaled else None for image in chosen] for axis in (0, 1)], how


def _next(row: dict[str, Any], index: dict[str, int]) -> list[list[float]]:
    """The second and third category and their probabilities."""
    return [[index[row[f"top{i}_id"]], round(row[f"top{i}_p"], 4)] for i in (2, 3) if row.get(f"top{i}_id")]


def _sentence(look: Look) -> str:
    known = len(look.run.manifest.classes)
    used = look.size > 0
    inside = int(look.size[known:].sum())
    return (
        f"{look.size.sum():,} unlabelled images: {look.size.sum() - inside:,} in {used[:known].sum()} of {known} known classes, "
        f"{inside:,} in {used[known:].sum()} new categories. Method {look.run.config.method}, backbone "
        f"{Path(str(look.run.config.backbone.name)).name}, seed {look.run.config.seed}."
    )


def _cards(look: Look) -> list[tuple[str, object, str]]:
    """What was found at a glance: name, value, detail."""
    known, size = len(look.run.manifest.classes), look.size
    trusted = int((np.nan_to_num(look.trust[known:]) >= TRUSTED).sum())
    skipped = len(_skipped(look.run))
    cards: list[tuple[str, object, str]] = [
        ("known classes", known, f"{size[:known].sum():,} unlabelled images in them"),
        ("new categories", int((size[known:] > 0).sum()), f"{size[known:].sum():,} images in them"),
        ("trusted new categories", trusted, f"at least {10 * TRUSTED:.0f} in 10 of their images belong together"),
        ("skipped files", skipped, "see Setup" if skipped else "every file could be used"),
    ]
    if look.run.added:
        came = ", ".join(f"{len(batch.manifest)} in {batch.number}" for batch in look.run.added)
        cards.append(("added since", sum(len(batch.manifest) for batch in look.run.added), f"images: {came}"))
    if look.run.evaluation.exists():
        accuracy = read_evaluation(look.run).get("unlabelled", {}).get("gcd", {}).get("accuracy", {})
        shown = {name: f"{100 * value:.1f}" for name, value in accuracy.items() if value is not None}
        if "all" in shown:
            parts = [f"{name.title()} {shown[name]}" for name in ("old", "new") if name in shown]
            cards.append(("accuracy", f"{shown['all']} %", ", ".join(parts)))
    return cards


def _labels(look: Look, cache: Path) -> list[dict[str, Any]]:
    """The labels that look wrong, each with its image."""
    here = {str(path): i for i, path in enumerate(look.paths)}
    paths = [look.paths[here[doubt.file]] for doubt in look.doubts]
    rows = look.run.manifest.training_rows[[here[doubt.file] for doubt in look.doubts]]
    made = zip(thumbnails(paths, cache), unusable_images(look.run, rows, cache), strict=True)
    pictures = [base64.b64encode(one).decode() if isinstance(one, bytes) and not why else "" for one, why in made]
    return [
        {**vars(doubt), "file": _shown_name(look, doubt.file), "thumb": picture}
        for doubt, picture in zip(look.doubts, pictures, strict=True)
    ]


def _contradictions(look: Look, cache: Path) -> list[str]:
    """Copies among the images that can be read, and class names that look the same."""
    manifest = look.run.manifest.select(look.run.manifest.training_rows[look.there])
    try:
        copies = find_copies(manifest, cache)
    except DataError:  # a file is gone since
        copies = []
    shown = [replace(one, files=[_shown_name(look, file) for file in one.files]) for one in copies]
    return copies_in_words(shown) + names_in_words(manifest.classes)


def _warnings(look: Look, data: dict[str, Any]) -> list[str]:
    found = [f"{line[0].upper()}{line[1:]}." for line in data["contradictions"]]
    on_page = sum(not labelled for labelled in data["images"]["labelled"])
    if on_page < len(look.rows):
        found.append(
            f"This page shows {on_page:,} of the {len(look.rows):,} unlabelled images; predictions.csv has all."
        )
    gone = sum(bool(reason) for reason in data["images"]["reason"])
    if gone:
        found.append(
            f"{gone} images cannot be read any more or are not what they were; they are grey here and were left out of trust and map."
        )
    return found


def _figures(run: Run, cache: Path) -> list[dict[str, str]]:
    """Those figures that take no time and that mean something for this run; none without matplotlib."""
    measured = run.evaluation.exists()
    wanted = {
        caption: partial(draw, name, [run], cache) for name, caption in (FIGURES if measured else WITHOUT_TRUTH).items()
    }
    estimate = read_estimate(run)
    if estimate is not None:
        wanted[K_CAPTION] = partial(k_figure, estimate)
    found = []
    for caption, make in wanted.items():
        with suppress(DebgcdError):
            found.append({"caption": caption, "svg": base64.b64encode(image_file(make(), ".svg")).decode()})
    return found


def _skipped(run: Run) -> list[list[str]]:
    """The rows of skipped.csv."""
    place = run.folder / "skipped.csv"
    advice = "restore it, or delete the folder and train again"
    with readable(place, advice), open(place, encoding="utf-8", newline="") as file:
        return [[csv_field(value) for value in row[:2]] for row in list(csv.reader(file))[1:] if len(row) >= 2]


def _shown_name(look: Look, path: Picture | str) -> str:
    """The path within the folder that all images are in, and the box if there is one: a report that is sent tells no more."""
    return os.path.relpath(str(path), look.base)


def _number(value: float | np.floating[Any]) -> float | None:
    return None if np.isnan(value) else round(float(value), 4)


def _cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return round(float(one @ other) / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-12), 2)


def _hash(text: str) -> str:
    """The source that a Content-Security-Policy allows."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
