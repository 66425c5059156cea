"""The model card: README.md of a model folder, with the header that Hugging Face reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from debgcd.machine import versions
from debgcd.options import Config
from debgcd.progress import escaped

LICENCES = {  # by the beginning of the backbone's name: (Hugging Face's id, words)
    "lite": ("apache-2.0", "Apache-2.0"),
    "facebook/dino-": ("apache-2.0", "Apache-2.0"),
    "facebook/dinov2": ("apache-2.0", "Apache-2.0"),
    "facebook/dinov3": ("other", "the DINOv3 License of Meta"),
}
SHOWN = 50  # class names


def model_card(
    config: Config,
    known: Sequence[str],
    new: int,
    images: int,
    labelled: int | None = None,
    scores: Mapping[str, Any] | None = None,
) -> str:
    """The card of a model with these known classes and so many new categories, trained on so many images.

    labelled: how many of them had a label, if that is known; scores: evaluation.json, if the truth was known.
    """
    backbone = str(config.backbone.name)
    licence, words = next(
        (found for start, found in LICENCES.items() if backbone.startswith(start)),
        ("other", "that of its authors; look at where the weights came from"),
    )
    hub = f"\nbase_model: {json.dumps(backbone)}" if "/" in backbone and not backbone.startswith(("/", ".")) else ""
    names = ", ".join(map(_code, known[:SHOWN])) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
    marked = "" if labelled is None else f", {labelled} of them with a label"
    software = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"""---
license: {licence}
library_name: debgcd
pipeline_tag: image-classification{hub}
tags:
- image-classification
- generalized-category-discovery
- debgcd
---

# A category-discovery model

It assigns an image to one of {len(known) + new} categories: {len(known)} known classes, and {new} categories that were discovered among unlabelled
images and have no name unless somebody gave them one (`categories.json`; an id such as `new-01` never changes its meaning).

Use it: `debgcd predict RUN PATH -o out.csv`, or in Python `debgcd.Discoverer.load("RUN/model").predict(paths)`.

## Data

{images} training images{marked}. Short side resized to {config.views.short_side} pixels, centre crop {config.views.crop}; {views_label(config)}.

Known classes: {names or "none"}.

## Method

`{config.method}`, preset `{config.preset}`, seed {config.seed}, K = {len(known) + new}. `config.json` has every setting.

Backbone: {_code(backbone)}, sha256 `{config.backbone.sha256}`; only its tuned part is stored here. Its licence: {words}.

## Metrics

{_metrics(scores)}

## Limits

- Every image gets a category, also one that shows none of them. A low confidence or a high novelty says so; neither is proof.
- New categories are clusters: one may mix several classes, or be part of one. Look at them (`debgcd report RUN`) before using them.
- It has seen only images like those it was trained on; accuracy on others is unknown.
- What the backbone learned from its own training images, including their biases, is in the answers.

## Versions

{software}.
"""


def views_label(config: Config) -> str:
    """How the run saw its images; every table of results says this."""
    decode = f", decode {config.views.decode}"
    if config.views.bank != "on":
        return f"views: fresh{decode}"
    if not config.views.bank_views:
        return f"views: centre crop{decode}"
    share = f", {100 * config.views.fresh:g} % fresh" if config.views.fresh else ""
    return f"views: bank {config.views.bank_views}{share}{decode}"


def _metrics(scores: Mapping[str, Any] | None) -> str:
    lines = []
    for part in ("unlabelled", "test"):
        found = (scores or {}).get(part)
        if found:
            accuracy = found["gcd"]["accuracy"]
            values = [*(accuracy[name] for name in ("all", "old", "new")), found["auroc"]]
            cells = " | ".join("–" if value is None else f"{100 * value:.1f}" for value in values)
            lines.append(f"| {part} | {found['gcd']['images']} | {cells} |")
    if not lines:
        return "Not measured: the truth of the unlabelled images was not given."
    head = "| images | number | All | Old | New | AUROC of novelty |\n|---|---|---|---|---|---|"
    return "\n".join(
        [head, *lines, "", "Accuracy in per cent after the best one-to-one matching of categories to classes."]
    )


def _code(name: str) -> str:
    """A name as code: no character of it is Markdown or HTML."""
    plain = escaped(name).replace("`", "'").replace("<", "&lt;")
    return f"`{plain}`"
