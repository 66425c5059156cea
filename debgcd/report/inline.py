"""A run inside a notebook: the categories with their most certain images as HTML, and the report in a frame."""

from __future__ import annotations

import base64
from collections import defaultdict
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from debgcd.data.thumbnails import thumbnails
from debgcd.review.log import reviewed_predictions
from debgcd.run.directory import Run, unusable_images
from debgcd.run.predictions import Prediction

CATEGORIES, IMAGES = 30, 8  # shown: the largest categories, of each the most certain images
HEIGHT = 800  # pixels of the frame


@dataclass(frozen=True)
class Page:
    """A written report: shown in a notebook, a path elsewhere."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        """The whole page in a frame of its own, which may run its script and nothing else of the notebook."""
        page = escape(self.path.read_text("utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'


def gallery(run: Run, cache: Path) -> str:
    """A row per category, the new ones first, then the largest: its name, its number of images, and its most certain ones."""
    rows, categories = reviewed_predictions(run.folder)
    members: dict[int, list[Prediction]] = defaultdict(list)
    for row in rows:
        members[row["category"]].append(row)
    used = sorted(
        (one for one in categories if members[one.category]), key=lambda c: (c.known, -len(members[c.category]))
    )
    shown = {
        one.category: sorted(members[one.category], key=lambda row: -row["confidence"])[:IMAGES]
        for one in used[:CATEGORIES]
    }
    pictures = _pictures(run, cache, {row["path"] for some in shown.values() for row in some})
    lines = [
        f"<tr><td>{escape(one.name)}</td><td>{'known' if one.known else 'new'}</td>"
        f"<td style='text-align: right'>{len(members[one.category])}</td>"
        f"<td>{''.join(pictures[row['path']] for row in shown[one.category])}</td></tr>"
        for one in used[:CATEGORIES]
    ]
    more = f"<p>and {len(used) - CATEGORIES} more</p>" if len(used) > CATEGORIES else ""
    head = "<tr><th>category</th><th></th><th>images</th><th>the most certain of them</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>{more}"


def _pictures(run: Run, cache: Path, wanted: set[str]) -> dict[str, str]:
    """An <img> for each of these images; nothing for one that is not what it was."""
    paths = run.manifest.training_paths
    numbers = np.array([i for i, path in enumerate(paths) if str(path) in wanted], np.int64)
    reasons = unusable_images(run, run.manifest.training_rows[numbers], cache)
    there = [paths[i] for i, why in zip(numbers.tolist(), reasons, strict=True) if not why]
    found = dict.fromkeys(wanted, "")
    for path, made in zip(there, thumbnails(there, cache), strict=True):
        if isinstance(made, bytes):
            source = base64.b64encode(made).decode()
            found[str(path)] = f'<img src="data:image/webp;base64,{source}" title="{escape(path.name)}" alt="">'
    return found
