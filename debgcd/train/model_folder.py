"""The trained model on disk: tail and heads as safetensors, the rest as JSON. The frozen trunk is named, not stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from debgcd import config as configuration
from debgcd.config import Config
from debgcd.errors import DataError, UsageError
from debgcd.files import new_folder, write_json, write_text
from debgcd.methods import Method, create
from debgcd.model.load import load_backbone
from debgcd.model.network import Network
from debgcd.model.precision import pick_device, pick_precision
from debgcd.train.categories import Category

FORMAT = 1


@dataclass(frozen=True)
class Model:
    """A trained model, ready to be asked."""

    network: Network
    method: Method
    config: Config
    categories: list[Category]


def save_model(folder: Path, tensors: dict[str, Tensor], config: Config, categories: Sequence[Category]) -> None:
    """Write the folder at one instant; the same training gives the same model.safetensors, byte for byte."""
    known = sum(category.known for category in categories)
    with new_folder(folder) as new:
        content = save_tensors({name: value.cpu().contiguous() for name, value in tensors.items()})
        (new / "model.safetensors").write_bytes(content)  # not safetensors' own writing: it hides what a full disk says
        facts = {"format": FORMAT, "known": known, "sha256": hashlib.sha256(content).hexdigest()}
        write_json(new / "config.json", {**facts, "config": configuration.to_dict(config)})
        write_json(new / "categories.json", [category.to_json() for category in categories])
        write_text(new / "README.md", _card(config, categories))


def load_model(folder: Path, *, backbone: str | None, cache: Path, device: str = "auto") -> Model:
    """Read a model folder; the trunk comes from where the model says, or from `backbone`, and must be the same weights."""
    try:
        facts = json.loads((folder / "config.json").read_text("utf-8"))
        categories = read_categories(folder)
        content = (folder / "model.safetensors").read_bytes()
        if hashlib.sha256(content).hexdigest() != facts["sha256"]:
            raise ValueError("the sha256 of model.safetensors does not match")
        tensors = load_tensors(content)
        config = configuration.override(Config(), facts["config"], where=str(folder / "config.json"))
        if config.k != len(categories) or None in (config.backbone.name, config.backbone.tuned_blocks):
            raise ValueError("config.json and categories.json are not of one model")
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} holds no model: {Path(error.filename).name} is missing; has the run finished?"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, UsageError, SafetensorError) as error:
        raise DataError(f"the model in {folder} cannot be read ({error}); restore it or train again") from error
    known = sum(category.known for category in categories)
    method = create(config, known)
    assert config.backbone.name is not None and config.backbone.tuned_blocks is not None
    trunk = load_backbone(
        backbone or config.backbone.name,
        tuned_blocks=config.backbone.tuned_blocks,
        image_size=config.views.size,
        revision=None if backbone else config.backbone.revision,
        cache=cache,
        # where the run had bfloat16 and this device has not, single precision: the same up to rounding
        precision=pick_precision("auto" if config.run.precision == "bf16" else "fp32", pick_device(device)),
    )
    if trunk.identity.sha256 != config.backbone.sha256:
        raise DataError(
            f"the backbone {backbone or config.backbone.name} is not the one this model was trained on (its sha256 differs); "
            "point --backbone at the original weights"
        )
    network = Network(trunk, method.heads(trunk.width))
    try:
        network.load_state(tensors)
    except (KeyError, ValueError) as error:
        raise DataError(f"the model in {folder} does not fit its own configuration ({error}); restore it") from error
    return Model(network.to(pick_device(device)), method, config, categories)


def read_categories(folder: Path) -> list[Category]:
    """The categories of a model folder."""
    return [Category(**entry) for entry in json.loads((folder / "categories.json").read_text("utf-8"))]


def _card(config: Config, categories: Sequence[Category]) -> str:
    known = [category.id for category in categories if category.known]
    return f"""# A category-discovery model

Made by debgcd with the method `{config.method}` (preset `{config.preset}`, seed {config.seed}).

- Categories: {len(categories)}, of which {len(known)} are known classes ({", ".join(known[:10])}{", ..." if len(known) > 10 else ""})
  and {len(categories) - len(known)} were discovered. `categories.json` lists them; a discovered one keeps its id whatever it is named.
- Backbone: `{config.backbone.name}`, sha256 `{config.backbone.sha256}`. Only the tuned part is stored here.
- Images: short side {config.views.resize}, centre crop {config.views.size}; trained on {views_label(config)}.

Use it: `debgcd predict RUN PATH -o out.csv`, or in Python `debgcd.Discoverer.load("RUN/model").predict(paths)`.
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
