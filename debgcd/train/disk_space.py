"""Check that the disks have room for a run, before it begins and not when its last checkpoint is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from debgcd.errors import DataError
from debgcd.methods import create
from debgcd.methods.base import Method, Sizes
from debgcd.model.network import Network
from debgcd.system.files import amount, bytes_in, existing, free_bytes
from debgcd.tokens.bank import missing_views
from debgcd.tokens.image_cache import about_bytes, missing_pixels
from debgcd.train.plan import Plan

TABLE_ROW_BYTES = 500  # about, per image, in all tables of a run together


@dataclass(frozen=True)
class Need:
    """What a run writes to one folder."""

    what: str
    folder: Path
    size: int  # bytes, about
    advice: str  # how to need less space
    setting: str | None = None  # the setting that the advice changes, as in `DebgcdError`
    then: str = ""  # the end of the sentence, as in `DebgcdError`
    # returns the bytes that are not written yet; called only if space is short, because it hashes all images
    missing: Callable[[], int] | None = None


def require_disk_space(plan: Plan, folder: Path) -> None:
    """Refuse a run that does not fit on its disks; what an interrupted run has written already is not needed again."""
    config, cache, paths = plan.config, plan.cache, plan.manifest.training_paths
    begun = (folder / "config.yaml").exists()
    advice = ("set run.keep to 1 in its config.yaml",) if begun else ("choose another run directory", "out")
    needs = [Need("checkpoints and model", folder, max(0, run_bytes(plan) - _written(folder)), *advice)]
    move_cache, omit = ("choose another cache folder", "cache"), ", or do without it"
    if config.views.bank == "on":
        missing = partial(missing_views, plan.backbone, paths, config.views, cache, plan.method.views)
        needs.append(Need("the view bank", cache, plan.bank_bytes, *move_cache, f"{omit} (views.bank: off)", missing))
    if config.run.image_cache == "on":
        size = about_bytes(len(paths), config.views.short_side)
        missing = partial(missing_pixels, paths, config.views, cache)
        needs.append(Need("the image cache", cache, size, *move_cache, f"{omit} (run.image_cache: off)", missing))
    disks: dict[int, list[Need]] = {}
    for need in needs:
        disks.setdefault(os.stat(existing(need.folder)).st_dev, []).append(need)
    for shared in disks.values():
        free = free_bytes(shared[0].folder)
        if sum(need.size for need in shared) > free:
            shared = [replace(need, size=need.missing()) if need.missing else need for need in shared]
        if sum(need.size for need in shared) > free:
            listed = " and ".join(
                f"{amount(need.size)} in {need.folder} for {need.what}" for need in shared if need.size
            )
            largest = max(shared, key=lambda need: need.size)
            raise DataError(
                f"the run needs {listed}, but only {amount(free)} is free; free some space, or {largest.advice}",
                setting=largest.setting,
                then=largest.then,
            )


def run_bytes(plan: Plan) -> int:
    """About the most that a run directory holds at one time: checkpoints, the best states, the model, the tables."""
    config, manifest = plan.config, plan.manifest
    sizes = Sizes(plan.backbone.width, plan.k, len(manifest.classes), len(manifest.training_rows))
    method = create(replace(config, k=plan.k), sizes)
    # on the device "meta" tensors have a size but no memory
    with torch.device("meta"):
        heads = method.heads()
    network = Network(plan.backbone, heads)
    network.memory = method.memory(network)
    model = _bytes(network.state().values())
    # SGD keeps one tensor per parameter, optimisers of torch.optim up to three
    tensors_per_parameter = 1 if type(method).optimiser is Method.optimiser else 3
    optimiser = tensors_per_parameter * _bytes(network.trained().values()) if method.trains else 0
    # a new checkpoint is written before the oldest one is deleted
    checkpoints = min(config.run.keep + 1, plan.length.steps // config.run.checkpoint_every + 1)
    best = 2 * model * ((config.model_kept == "best-old") + (config.run.watch == "act" and method.trains))
    own = (
        checkpoints * (model + optimiser + _bytes(network.remembered().values()))
        + best
        + model
        + TABLE_ROW_BYTES * len(manifest)
    )
    # the first stage stays in a folder of its own
    return 2 * own if method.first is not None and config.start is None else own


def _written(folder: Path) -> int:
    """The part of `run_bytes` that a run has written already."""
    return sum(bytes_in(folder / name) for name in ("checkpoints", "model", "first"))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
