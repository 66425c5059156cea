"""The trained model on disk: tail and heads as safetensors, the rest as JSON, and a model card. The frozen trunk is named, not stored.

Its categories are the known classes, then the discovered ones, with ids that never change their meaning.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.manifest import text
from debgcd.errors import DataError, UsageError
from debgcd.methods import METHODS, create
from debgcd.methods.base import Method, Sizes
from debgcd.model.backbone import pick_device, pick_precision
from debgcd.model.heads import classifiers
from debgcd.model.load import load_backbone
from debgcd.model.network import Network
from debgcd.model.parts import Parts
from debgcd.novelty.base import DETECTOR, NoveltyThreshold
from debgcd.novelty.so_far import SoFar
from debgcd.run.categories import RESTORE, Category, own_categories, read_categories
from debgcd.run.parts_file import read_parts
from debgcd.run.so_far_file import read_so_far, write_so_far
from debgcd.system.files import new_folder, read_json, readable, write_json, write_text
from debgcd.system.machine import versions
from debgcd.system.progress import escaped, say

FORMAT = 2  # raise it when what is in the folder changes its meaning
LABELS = "labels.json"  # only where a class's label was not text
Label = int | float | bool | str


@dataclass(frozen=True)
class Model:
    """A trained model in memory."""

    network: Network
    method: Method
    config: Config
    categories: list[Category]
    images: int  # number of training images
    sha256: str  # of model.safetensors
    labels: tuple[Label, ...] | None = None  # of the known classes, as given in Python; None: their ids
    novel: NoveltyThreshold | None = None  # None without a detector
    parts: Parts | None = None  # of categories that a reviewer split; these come after those of the network
    so_far: SoFar | None = (
        None  # the images of all categories, by which others look new; None in a model of an earlier version
    )
    reviewed: Counter[str] | None = None  # how many images each category of its run has after a review

    @property
    def sizes(self) -> Counter[str] | None:
        """How many images each category has, by its id; None if that is not in the model."""
        if self.reviewed is not None:
            return self.reviewed
        if self.so_far is None or len(self.so_far.category) < self.images:
            return None
        ids = [each.merged_into or each.id for each in self.categories]
        return Counter(ids[number] for number in self.so_far.category.tolist())


@dataclass(frozen=True)
class Grown:
    """What was added to a model since it was trained."""

    heads: dict[str, Tensor]  # the tensors that have more rows, by name
    categories: list[Category]  # all of them
    so_far: Callable[[int], SoFar]  # the images of all of them, for features of this width


def save_model(
    folder: Path,
    tensors: dict[str, Tensor],
    config: Config,
    categories: Sequence[Category],
    images: int,
    labels: Sequence[Label] | None = None,
    novel: NoveltyThreshold | None = None,
    labelled: int | None = None,
    scores: Mapping[str, Any] | None = None,
    so_far: SoFar | None = None,
) -> None:
    """Write a model folder beside its place and rename it, so it is complete or absent.

    images: number of training images. labels, novel, so_far: see `Model`. labelled, scores: for the card, see `model_card`.
    """
    known = sum(category.known for category in categories)
    with new_folder(folder) as new:
        content = save_tensors({name: value.cpu().contiguous() for name, value in tensors.items()})
        # not safetensors' save_file, whose error does not say that the disk is full
        (new / "model.safetensors").write_bytes(content)
        facts: dict[str, Any] = {
            "format": FORMAT,
            "known": known,
            "images": images,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        facts["novel"] = None if novel is None else asdict(novel)
        facts["so_far"] = None if so_far is None else write_so_far(new, so_far)
        write_json(new / "config.json", {**facts, "config": configuration.to_dict(config)})
        write_json(new / "categories.json", [category.to_json() for category in categories])
        if labels is not None:
            write_json(new / LABELS, labels)
        names = [category.id for category in categories if category.known]
        card = model_card(config, names, len(own_categories(categories)) - known, images, labelled, scores)
        write_text(new / "README.md", card)


def load_model(
    folder: Path, *, backbone: str | None, cache: Path, device: str = "auto", grown: Grown | None = None
) -> Model:
    """Read a model folder. The trunk comes from the backbone that the model names, or from `backbone` with equal weights."""
    try:
        with readable(
            f"the model in {folder}", "restore it or train again", UsageError, SafetensorError, missing=False
        ):
            facts = read_json(folder / "config.json")
            if facts["format"] != FORMAT:
                raise ValueError(f"it has format {facts['format']}, this version of debgcd reads {FORMAT}")
            for name in ("known", "images"):
                if type(facts[name]) is not int or facts[name] < 0:
                    raise ValueError(f"{name} in config.json must be a whole number, not {facts[name]!r:.50}")
            novel = None if facts.get("novel") is None else NoveltyThreshold(**facts["novel"])
            categories = read_categories(folder, facts["known"])
            tensors = _read_tensors(folder, facts["sha256"])
            config = configuration.from_dict(facts["config"], where=str(folder / "config.json"))
            if config.k != len(own_categories(categories)) or None in (
                config.backbone.name,
                config.backbone.tuned_blocks,
            ):
                raise ValueError("config.json and categories.json are not of one model")
            if grown is not None:
                tensors, categories = tensors | grown.heads, grown.categories
                config = replace(config, k=len(own_categories(categories)))
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} holds no model: {Path(error.filename).name} is missing; has the run finished?"
        ) from error
    assert config.backbone.name is not None and config.backbone.tuned_blocks is not None
    trunk = load_backbone(
        backbone or config.backbone.name,
        tuned_blocks=config.backbone.tuned_blocks,
        image_size=config.views.crop,
        revision=None if backbone else config.backbone.revision,
        cache=cache,
        # a run in bfloat16 is read in single precision on a device without it: equal up to rounding
        precision=pick_precision("auto" if config.run.precision == "bf16" else "fp32", pick_device(device)),
    )
    if trunk.identity.sha256 != config.backbone.sha256:
        raise DataError(
            f"the backbone {backbone or config.backbone.name} is not the one this model was trained on (its sha256 differs); "
            "give the original weights as its backbone",
            setting="backbone",
        )
    trunk = METHODS[config.method].prompted(trunk, config)
    method = create(config, Sizes(trunk.width, len(own_categories(categories)), facts["known"], facts["images"]))
    # config.json may ask for heads of any size, so no memory is allocated before the tensors are known to fit
    with torch.device("meta"):
        heads = method.heads()
    network = Network(trunk, heads)
    try:
        network.require_fitting(tensors)
        heads.to_empty(device="cpu")
        network.load_state(tensors)
    except (KeyError, ValueError) as error:
        raise DataError(f"the model in {folder} does not fit its own configuration ({error}); restore it") from error
    labels = _read_labels(folder, [category.id for category in categories if category.known])
    network = network.to(pick_device(device))
    parts = read_parts(folder, categories, trunk.width)
    own = read_so_far(folder, facts.get("so_far"), trunk.width)
    so_far = own if grown is None else grown.so_far(trunk.width)
    so_far = None if so_far is None else so_far.to(pick_device(device))
    return Model(network, method, config, categories, facts["images"], facts["sha256"], labels, novel, parts, so_far)


def read_novel(folder: Path) -> NoveltyThreshold | None:
    """The novelty threshold in a model folder; None for a model without a detector."""
    with readable(folder / "config.json", RESTORE):
        values = read_json(folder / "config.json").get("novel")
        return None if values is None else NoveltyThreshold(**values)


def _read_labels(folder: Path, ids: list[str]) -> tuple[Label, ...] | None:
    """The labels in labels.json, each of which must be the one that gave a class its id; None without the file."""
    path = folder / LABELS
    if not path.exists():
        return None
    with readable(path, "restore it, or delete it to have the ids instead"):
        labels = read_json(path)
        if not isinstance(labels, list) or len(labels) != len(ids):
            raise ValueError(f"it does not hold a list of {len(ids)} labels")
        for i, (label, name) in enumerate(zip(labels, ids, strict=True)):
            if not isinstance(label, Label) or text(label) != name:
                raise ValueError(f"entry {i} is not the label of {name!r}")
    return tuple(labels)


def _read_tensors(folder: Path, sha256: str) -> dict[str, Tensor]:
    """The tensors of model.safetensors; a ValueError if its hash is another."""
    content = (folder / "model.safetensors").read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("the sha256 of model.safetensors does not match")
    return load_tensors(content)


def start_from(
    folder: Path, sha256: str | None, network: Network, method: Method, classes: Sequence[str]
) -> frozenset[str]:
    """Copy tail, standardisation and matching heads from a model folder; returns the names of the copied heads.

    A head keeps its initial values if the model has none of the same name and shape. So do classifiers and detector if the
    model's known classes are not `classes`.
    """
    with readable(f"the model in {folder} that the run starts from", "restore it", SafetensorError):
        tensors = _read_tensors(folder, sha256 or "")
        known = read_json(folder / "config.json")["known"]
        model_classes = [category.id for category in read_categories(folder, known) if category.known]
    own = network.state()
    same = {name for name, value in own.items() if name in tensors and tensors[name].shape == value.shape}
    added = network.backbone.unpretrained
    lost = sorted(
        name
        for name in set(own) - same
        if not name.startswith("heads.") and not (added and name.startswith(f"tail.{added}"))
    )
    if lost:
        raise DataError(f"the run starts from the model in {folder}, which has no fitting {lost[0]}; choose another")
    by_class = (
        set() if model_classes == list(classes) else {*method.final_answers, *classifiers(network.heads), DETECTOR}
    )
    heads = {name: {f"heads.{name}.{key}" for key in head.state_dict()} for name, head in network.heads.items()}
    given = frozenset(name for name, parts in heads.items() if parts <= same and name not in by_class)
    for name, value in own.items():
        if name in same and (not name.startswith("heads.") or name.split(".")[1] in given):
            value.copy_(tensors[name])
    new = ", ".join(sorted(set(heads) - given)) or "none"
    why = " (the known classes are others)" if by_class else ""
    say(f"start: heads taken over: {', '.join(sorted(given)) or 'none'}; new: {new}{why}")
    return given


LICENCES = {  # by the beginning of the backbone's name: (Hugging Face's id, words)
    "lite": ("apache-2.0", "Apache-2.0"),
    "facebook/dino-": ("apache-2.0", "Apache-2.0"),
    "facebook/dinov2": ("apache-2.0", "Apache-2.0"),
    "facebook/dinov3": ("other", "the DINOv3 License of Meta"),
}
CLASSES_SHOWN = 50  # names of known classes in the card


def model_card(
    config: Config,
    known: Sequence[str],
    new: int,
    images: int,
    labelled: int | None = None,
    scores: Mapping[str, Any] | None = None,
) -> str:
    """The text of README.md in a model folder.

    known: the names of the known classes; new: number of new categories; images: number of training images; labelled:
    number of those with a label, or None; scores: the content of evaluation.json, or None.
    """
    backbone = str(config.backbone.name)
    licence, words = next(
        (entry for start, entry in LICENCES.items() if backbone.startswith(start)),
        ("other", "that of its authors; look at where the weights came from"),
    )
    hub = f"\nbase_model: {json.dumps(backbone)}" if "/" in backbone and not backbone.startswith(("/", ".")) else ""
    names = ", ".join(map(_code, known[:CLASSES_SHOWN]))
    names += f" and {len(known) - CLASSES_SHOWN} more" if len(known) > CLASSES_SHOWN else ""
    marked = "" if labelled is None else f", {labelled} of them with a label"
    software = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"""---
license: {licence}
library_name: debgcd
pipeline_tag: image-classification{hub}{_model_index(scores)}
tags:
- image-classification
- generalized-category-discovery
- debgcd
---

# A category-discovery model

It assigns an image to one of {len(known) + new} categories: {len(known)} known classes, and {new} categories that were discovered among unlabelled
images and have no name unless somebody gave them one (`categories.json`; an id such as `new-01` never changes its meaning).

Use it: `debgcd predict RUN PATH -o out.csv`, or in Python `debgcd.Discoverer.from_pretrained("RUN/model").predict_labels(paths)`; on the hub,
with USER/NAME in place of the folder.

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
    """One phrase on the views of a run, e.g. "views: bank 8, decode fast"; every table of results shows it."""
    decode = f", decode {config.views.decode}"
    if config.views.bank != "on":
        return f"views: fresh{decode}"
    if not config.views.bank_views:
        return f"views: centre crop{decode}"
    share = f", {100 * config.views.fresh:g} % fresh" if config.views.fresh else ""
    return f"views: bank {config.views.bank_views}{share}{decode}"


def _metrics(scores: Mapping[str, Any] | None) -> str:
    """The card's table of accuracies."""
    lines = []
    for part in ("unlabelled", "test"):
        measured = (scores or {}).get(part)
        if measured:
            accuracy = measured["gcd"]["accuracy"]
            values = [*(accuracy[name] for name in ("all", "old", "new")), measured["auroc"]]
            cells = " | ".join("–" if value is None else f"{100 * value:.1f}" for value in values)
            lines.append(f"| {part} | {measured['gcd']['images']} | {cells} |")
    if not lines:
        return "Not measured: the truth of the unlabelled images was not given."
    head = "| images | number | All | Old | New | AUROC of novelty |\n|---|---|---|---|---|---|"
    return "\n".join(
        [head, *lines, "", "Accuracy in per cent after the best one-to-one matching of categories to classes."]
    )


def _model_index(scores: Mapping[str, Any] | None) -> str:
    """The accuracies as the hub's `model-index`, a line of YAML; empty if nothing was measured."""
    measured = (scores or {}).get("unlabelled")
    if not measured:
        return ""
    accuracy = {name.title(): value for name, value in measured["gcd"]["accuracy"].items() if value is not None}
    metrics = [{"type": "accuracy", "name": name, "value": round(100 * value, 1)} for name, value in accuracy.items()]
    task = {"type": "image-classification", "name": "generalized category discovery"}
    entry = {"task": task, "dataset": {"name": "unlabelled training images", "type": "own"}, "metrics": metrics}
    return "\nmodel-index: " + json.dumps([{"name": "debgcd", "results": [entry]}])


def _code(name: str) -> str:
    """A name as Markdown code, in which no character has a meaning in Markdown or HTML."""
    plain = escaped(name).replace("`", "'").replace("<", "&lt;")
    return f"`{plain}`"
