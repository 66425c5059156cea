"""How a run begins, and how it goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils import deterministic

from debgcd.config import Config
from debgcd.data.contents import forget_contents
from debgcd.data.image_cache import decide_image_cache
from debgcd.data.manifest import Manifest, lost_classes, require_trainable, scan, write_skipped
from debgcd.errors import DataError, DebgcdError, UsageError
from debgcd.files import lock
from debgcd.machine import cache_folder
from debgcd.methods import METHODS, require_method
from debgcd.model.backbone import Backbone
from debgcd.model.load import load_backbone, load_default
from debgcd.model.precision import gains_from_bf16, pick_device, pick_precision
from debgcd.progress import progress, say
from debgcd.train.finish import evaluate, unlabelled, write_evaluation
from debgcd.train.how_many import decide_k
from debgcd.train.loop import length, train
from debgcd.train.model_folder import load_model
from debgcd.train.run import Run, open_run
from debgcd.train.run import create as create_run
from debgcd.train.setup import Setup, centre_tokens, decide_bank, open_tokens, prepare

FEW_IMAGES = 5000  # 200 epochs of the paper are too few steps below this


def begin(manifest: Manifest, config: Config, folder: Path, verify: bool = False) -> Run:
    """Decide what is open, write the run directory (new, see `require_new`), train to the end.

    verify: read every image for the cache's key, also those whose size, time and inode say that they are as they were.
    """
    require_ready(manifest, config)
    if verify:
        forget_contents(manifest.training_paths, cache_folder(config.run.cache))
    listed = manifest
    with progress("reading images") as report:
        manifest = scan(manifest, config.run.workers, report)
    if manifest.skipped:
        write_skipped(manifest.skipped, folder / "skipped.csv")  # now, because what is left may be refused
        say(f"files that cannot be used: {len(manifest.skipped)}; {folder / 'skipped.csv'} says why")
    require_ready(manifest, config)
    for line in lost_classes(listed, manifest):
        say(f"known classes: {line}")
    config, backbone = decide(config, manifest)
    run = create_run(folder, config, manifest)
    return _to_the_end(run, backbone)


def require_ready(manifest: Manifest, config: Config) -> None:
    """Refuse what cannot be trained, before any work is done."""
    require_method(config.method)
    pick_device(config.run.device)
    require_trainable(manifest, config.k)


def resume(folder: Path, verify: bool = False) -> Run:
    """Go on where the run stands; a finished run stays as it is. verify: as for `begin`."""
    run = open_run(folder)
    if run.finished:
        return run
    if verify:
        forget_contents(run.manifest.training_paths, cache_folder(run.config.run.cache))
    return _to_the_end(run, _backbone(run))


def measure(folder: Path) -> dict[str, object]:
    """`debgcd evaluate RUN`: the run's final model against the truth in its manifest, also into evaluation.json."""
    run = open_run(folder)
    if not run.finished:
        raise UsageError(f"the run in {folder} has not finished; first: debgcd resume {folder}")
    cache = cache_folder(run.config.run.cache)
    model = load_model(run.model, backbone=None, cache=cache, device=run.config.run.device)
    tokens = centre_tokens(run.config, run.manifest, model.network.backbone, cache)
    known, label = len(run.manifest.classes), run.manifest.training_labels
    setup = Setup(model.network, model.method, tokens, label, known, run.manifest.training_paths)
    return write_evaluation(run, evaluate(run, setup, unlabelled(setup)), len(model.categories))


def choose_preset(manifest: Manifest) -> str:
    """`small` without a GPU or for few images, else `paper`; said in one line."""
    images = len(manifest.training_rows)
    if pick_device("auto").type == "cpu":
        name, why = "small", "there is no GPU"
    elif images < FEW_IMAGES:
        name, why = "small", f"there are only {images} images"
    else:
        name, why = "paper", f"there are {images} images and a GPU"
    say(f"preset: {name}, because {why} (choose another with --preset)")
    return name


def decide(config: Config, manifest: Manifest) -> tuple[Config, Backbone]:
    """The complete configuration: backbone, tuned blocks, what is kept in the cache; each said in one line.

    Only K may stay open: its estimate needs the features.
    """
    wanted, cache = config.backbone, cache_folder(config.run.cache)
    paths = manifest.training_paths
    if METHODS[config.method].trains and not length(config.schedule, len(paths)).steps:
        say("method: sskmeans, because nothing is trained in 0 steps: semi-supervised k-means on frozen features")
        config = replace(config, method="sskmeans")
    tuned = METHODS[config.method].tuned_blocks if wanted.tuned_blocks is None else wanted.tuned_blocks
    device = pick_device(config.run.device)
    precision = pick_precision(config.run.precision, device)
    if precision == "bf16" and not gains_from_bf16(device):
        say("precision: bf16, which this device emulates slowly (choose another with --set run.precision=fp32)")
    if wanted.name is None:
        backbone, line = load_default(
            tuned_blocks=tuned, image_size=config.views.size, cache=cache, precision=precision
        )
        say(line)
    else:
        # absolute, because a run may be resumed from another folder
        name = os.path.abspath(wanted.name) if Path(wanted.name).exists() else wanted.name
        say(f"backbone: {name} (choose another with --backbone)")
        backbone = load_backbone(
            name,
            tuned_blocks=tuned,
            image_size=config.views.size,
            revision=wanted.revision,
            cache=cache,
            precision=precision,
        )
    identity = backbone.identity
    chosen = replace(wanted, name=identity.name, revision=identity.revision, sha256=identity.sha256, tuned_blocks=tuned)
    if config.model_kept == "best-old" and not manifest.select(manifest.test_rows).has_truth:
        say("model kept: the last, because there is no test split with truth to choose the best by")
        config = replace(config, model_kept="last")
    long, views = length(config.schedule, len(paths), METHODS[config.method].trains), config.views
    if not long.steps:
        views = replace(views, bank_views=0)  # the centre crops are all it needs
    elif views.bank != "off" and views.bank_views < 2:
        raise UsageError(f"a view bank for training needs views.bank_views of 2 or more, not {views.bank_views}")
    bank = decide_bank(backbone, tuned, paths, views, cache)
    draws = long.steps * long.batch / len(paths) * (views.fresh if bank else 1.0)
    keep = decide_image_cache(config.run.image_cache, len(paths), views.resize, draws, cache)
    views = replace(views, bank="on" if bank else "off")
    how = replace(config.run, image_cache="on" if keep else "off", precision=precision)
    return replace(config, backbone=chosen, views=views, run=how), backbone


def _backbone(run: Run) -> Backbone:
    wanted, precision = run.config.backbone, run.config.run.precision
    assert wanted.name is not None and wanted.tuned_blocks is not None and precision != "auto"
    backbone = load_backbone(
        wanted.name,
        tuned_blocks=wanted.tuned_blocks,
        image_size=run.config.views.size,
        revision=wanted.revision,
        cache=cache_folder(run.config.run.cache),
        precision=precision,
    )
    if backbone.identity.sha256 != wanted.sha256:
        raise DataError(
            f"the weights of {wanted.name} are not those the run in {run.folder} began with (their sha256 differs); "
            "put the original ones back"
        )
    return backbone


def _to_the_end(run: Run, backbone: Backbone) -> Run:
    with _repeatable(), lock(run.folder):
        tokens = open_tokens(run.config, run.manifest, backbone, cache_folder(run.config.run.cache))
        if run.config.k is None:
            try:
                run = decide_k(run, backbone, tokens)
            except DebgcdError:
                (run.folder / "config.yaml").unlink()  # not begun: the folder is free for a try with a K that is given
                raise
        train(run, prepare(run, backbone, tokens))
    return run


@contextmanager
def _repeatable() -> Iterator[None]:
    """Algorithms whose results do not depend on timing; the caller's choice comes back afterwards."""
    chosen = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # finds mistakes; a tenth of a step's time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(chosen[0], warn_only=chosen[1])
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
