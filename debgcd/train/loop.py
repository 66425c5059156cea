"""Algorithm 1: the training loop, from the first step or from a checkpoint to the last step.

Everything random is a function of (seed, step), so a run that was killed and resumed ends in the same bytes as one that
never was.

    debgcd train PATH --k 40 -o RUN                                         one process
    torchrun --nproc-per-node 8 -m debgcd train PATH --k 40 -o RUN          eight, each with its share of every batch
    debgcd resume RUN                                                       after an interruption; or torchrun ... resume RUN
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debgcd.config.schedules import Progress, RunLength, run_length
from debgcd.data.sampler import Draws, Sampler
from debgcd.errors import DebgcdError
from debgcd.methods.base import Batch, Context, Loss, Method
from debgcd.model.network import Network
from debgcd.model.optimiser import Optimiser, set_learning_rate
from debgcd.run.directory import Run
from debgcd.run.model_folder import start_from
from debgcd.system import distributed
from debgcd.system.files import write_json
from debgcd.system.progress import progress as bar
from debgcd.train import checkpoint
from debgcd.train.callbacks import (
    Callback,
    Checkpoints,
    Evaluate,
    FinishedStep,
    FirstAnswer,
    Interrupted,
    Log,
    Metrics,
    Utilisation,
    stop_requests,
)
from debgcd.train.setup import Setup
from debgcd.train.watch import Watch


def step(
    setup: Setup, optimiser: Optimiser, batch: Batch, progress: Progress, stop: threading.Event | None = None
) -> Observed:
    """Algorithm 1, one iteration: loss, gradient, step. If the loss or its gradient is not finite, no parameter changes.

    Every rank computes its rows of the batch and then the loss of all rows. Gradients, the loss and whether any rank was
    asked to stop are averaged over the ranks in one message.
    """
    network, method = setup.network, setup.method
    with network.gathering(len(batch.image)):
        loss = method.loss(network, batch, progress)
    optimiser.zero_grad()
    loss.total.backward()
    trained = network.trained()
    local = {name: p.grad for name, p in trained.items() if p.grad is not None}
    may_continue = loss.total.new_full((), float(stop is None or not stop.is_set()))
    *gradients, total, may_continue = distributed.average([*local.values(), loss.total.detach(), may_continue])
    averaged = dict(zip(local, gradients, strict=True))
    for name, parameter in trained.items():
        parameter.grad = averaged.get(name)
    loss = replace(loss, total=total, terms={**loss.terms, "may_continue": may_continue})
    # the only point of a step that waits for the device
    observed = observe(loss, network)
    if observed.finite:
        optimiser.step()
        method.after_step(network, progress)
    return observed


def fit(run: Run, setup: Setup) -> dict[str, Any]:
    """Train a run from its latest checkpoint or its start; returns the accuracy of the hard labels since the last evaluation."""
    config, network, method = run.config, setup.network, setup.method
    length = run_length(config.schedule, len(setup.label), method.trains)
    optimiser = method.optimiser(network, config.schedule) if method.trains else None
    context = hook_context(run, setup, setup.training_labels)
    digest, utilisation = run.digest, Utilisation(run.manifest, setup)

    resumed = checkpoint.resume(run.checkpoints, network, optimiser, digest)
    first = resumed or 0
    if setup.start is not None and (config.start is not None or (resumed is not None and length.steps)):
        # the network does not start from the pretrained tail
        setup.start.forget()
    if resumed is None:
        run_hook(context, lambda context: _initialise(run, setup, context))

    batches = _batches(setup, length, first, config.seed)
    with ExitStack() as stack:
        metrics, report = stack.enter_context(Metrics(run, first)), stack.enter_context(bar("training"))
        watch, log = Watch(run, setup, first, length.steps), Log(run, metrics, utilisation, report, length.steps)
        callbacks: list[Callback] = [log, FirstAnswer(run, setup), Evaluate(run, setup, metrics, utilisation), watch]
        if resumed is None:
            for callback in callbacks:
                callback.before_training()
        if setup.start is not None and first < length.steps:
            setup.start.forget()
        # within this context a signal takes effect at the end of a step
        stop = stack.enter_context(stop_requests())
        checkpoints = Checkpoints(run, setup, optimiser, digest, stop)
        callbacks.append(checkpoints)
        for number in range(first, length.steps):
            # a method that does not train has no steps
            assert optimiser is not None
            progress = Progress(number, length.steps, length.steps_per_epoch, config.schedule.by)
            if number % length.steps_per_epoch == 0 and type(method).before_epoch is not Method.before_epoch:
                run_hook(context, partial(method.before_epoch, progress=progress))
            lr = set_learning_rate(optimiser, config.schedule, length.batch, progress)
            images, batch = next(batches)
            observed = step(setup, optimiser, batch, progress, stop)
            if not observed.finite:
                raise _not_finite(run, number, observed, images)
            finished = _finished_step(number + 1, length, images, observed, lr)
            if not all(callback.after_step(finished) for callback in callbacks):
                break
        if resumed != length.steps and watch.kept is None:
            checkpoints.save(length.steps)
        # a request to stop that came in the last step
        if any(distributed.all_gather(stop.is_set())):
            raise Interrupted
    checkpoint.restore_best(run.checkpoints / "best", network)
    return utilisation.hard_labels()


def _finished_step(
    step: int, length: RunLength, images: NDArray[np.int64], observed: Observed, lr: float
) -> FinishedStep:
    """What the callbacks get. step: the number of finished steps."""
    epochs, rest = divmod(step, length.steps_per_epoch)
    return FinishedStep(
        step,
        images,
        observed.values,
        observed.hard_label,
        lr,
        epoch=step / length.steps_per_epoch,
        epochs=None if rest else epochs,
        last=step == length.steps,
        stop=observed.stop,
    )


def hook_context(run: Run, setup: Setup, label: NDArray[np.int64]) -> Context:
    """The input of a method's hooks. label: (N,), without those held out during training, with them at the end."""
    label_rows, group = (torch.from_numpy(ids).to(setup.device) for ids in (label, run.manifest.training_groups))
    before = None if setup.before is None else setup.before.to(setup.device)
    if before is not None:  # where training must not see a label, nor may it see the class
        before = replace(
            before,
            category=torch.where(torch.from_numpy(setup.label).to(setup.device) >= 0, label_rows, before.category),
        )
    return Context(setup.network, setup.features, setup.averaged_features, label_rows, group, before)


@torch.no_grad()
def run_hook(context: Context, hook: Callable[[Context], None]) -> None:
    """Run a method's hook on rank 0. Whenever it asks for features, all ranks compute them with rank 0's network."""

    def together(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        _copy_from_rank0(context.network)
        return compute()

    def work(features: Callable[[], torch.Tensor], averaged: Callable[[], torch.Tensor]) -> None:
        hook(replace(context, features=features, averaged_features=averaged))

    distributed.run_on_rank0(work, partial(together, context.features), partial(together, context.averaged_features))
    _copy_from_rank0(context.network)


def _copy_from_rank0(network: Network) -> None:
    """Copy the network and memory of rank 0 to the other ranks."""
    shapes = distributed.from_rank0(
        lambda: {name: list(x.shape) for name, x in (network.state() | network.remembered()).items()}
    )
    # a hook may change the number of categories
    network.resize(shapes)
    distributed.broadcast([*network.state().values(), *network.remembered().values()])


def _initialise(run: Run, setup: Setup, context: Context) -> None:
    """Copy the network that `--start` names, or else standardise the features; then let the method initialise its heads."""
    network = setup.network
    if run.config.start is not None:
        folder, classes = Path(run.config.start), run.manifest.classes
        given = start_from(folder, run.config.start_sha256, network, setup.method, classes)
        context = replace(context, given=given)
    elif network.backbone.standardise:
        network.standardise(context.features())
    setup.method.before_training(context)


def _batches(setup: Setup, length: RunLength, first: int, seed: int) -> Iterator[tuple[NDArray[np.int64], Batch]]:
    """For each step from number `first` on, its images (B,) and its batch; tokens are computed ahead of the steps."""
    start, resamples = first, type(setup.method).sampler is not Method.sampler
    while start < length.steps:
        end = (start // length.steps_per_epoch + 1) * length.steps_per_epoch if resamples else length.steps
        steps = range(start, min(end, length.steps))
        sampler = setup.method.sampler(setup.training_labels, length.batch, setup.network)
        ahead = setup.tokens.random(_own_draws(sampler, number) for number in steps)
        for number, tokens in zip(steps, ahead, strict=True):
            draws, views = sampler.draws(number), len(setup.method.views)
            yield draws.image, Batch.of(tokens, draws, setup.training_labels[draws.image], setup.device, seed, views)
        start = end


def _own_draws(sampler: Sampler, number: int) -> Draws:
    """This rank's slice of a step's batch; if slices differ in length, the shorter ones are padded
    with draws of rank 0, whose results are dropped.
    """
    own, largest = (sampler.draws(number, rank, distributed.count()) for rank in (distributed.rank(), 0))
    missing = len(largest.draw) - len(own.draw)
    if not missing:
        return own
    return Draws(np.append(own.draw, largest.draw[:missing]), np.append(own.image, largest.image[:missing]))


@dataclass(frozen=True)
class Observed:
    """The results of a step, on the host."""

    # the loss, the norm of its gradient, and the terms of the loss
    values: dict[str, float]
    hard_label: NDArray[np.int64] | None  # (V·B,) see `Loss`
    stop: bool = False  # whether any rank was asked to stop

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.values["loss"]) and np.isfinite(self.values["gradient"]))


def observe(loss: Loss, network: Network) -> Observed:
    """Copy the results of a step to the host in one transfer."""
    gradients = [p.grad for p in network.trained().values() if p.grad is not None]
    named = {"loss": loss.total, "gradient": torch.nn.utils.get_total_norm(gradients), **loss.terms}
    tensors = {name: value.detach() for name, value in named.items() if isinstance(value, torch.Tensor)}
    parts = [torch.stack(list(tensors.values()))]
    if loss.hard_label is not None:
        # exact: float32 holds whole numbers up to 16 million
        parts.append(loss.hard_label.to(parts[0].dtype))
    numbers = to_host(torch.cat(parts))
    values = {**named, **dict(zip(tensors, numbers[: len(tensors)].tolist(), strict=True))}
    stop = values.pop("may_continue", 1.0) < 1
    return Observed(values, None if loss.hard_label is None else numbers[len(tensors) :].astype(np.int64), stop)


def to_host(tensor: torch.Tensor) -> NDArray[np.float32]:
    """Copy to the host, which waits for the device; nothing else in a step may do so."""
    return tensor.cpu().numpy()


def _not_finite(run: Run, number: int, observed: Observed, images: NDArray[np.int64]) -> DebgcdError:
    """The error for a loss or gradient that is not finite; also writes the terms and the images to failure.json."""
    values = observed.values
    paths = [str(run.manifest.paths[row]) for row in run.manifest.training_rows[images]]
    report = run.folder / "failure.json"
    if distributed.rank() == 0:
        write_json(report, {"step": number, "terms": {k: str(v) for k, v in values.items()}, "images": paths})
    saved = checkpoint.saved_in(run.checkpoints)
    return DebgcdError(
        f"step {number}: the loss or its gradient is not finite "
        f"({', '.join(f'{name} {value:.4g}' for name, value in values.items())}) on {paths[0]} and {len(paths) - 1} "
        f"other images (all in {report}); the last good checkpoint is {saved[-1] if saved else 'none yet'}; "
        "try a smaller schedule.lr in a new run"
    )
