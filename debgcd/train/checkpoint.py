"""Checkpoints: safetensors and JSON, complete or absent, checked when read.

    checkpoints/step-00000200/{state.safetensors, state.json}      the newest few
    checkpoints/best/step-00000100/...                              with model_kept: best-old; the best network so far
    checkpoints/healthy/step-00000100/...                           with run.watch: act; the best healthy network so far

They hold no state of random generators, because a batch is a function of (seed, step). Rank 0 writes them; all ranks read the
one that rank 0 chooses.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor

from debgcd.errors import DataError
from debgcd.model.network import Network
from debgcd.model.optimiser import SGD, Optimiser
from debgcd.system import distributed
from debgcd.system.files import named_errors, new_folder, read_json, readable, write_json

TENSORS, FACTS = "state.safetensors", "state.json"


@dataclass(frozen=True)
class State:
    """The state of a run: every tensor that training changes."""

    step: int  # number of finished steps
    tensors: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict)


def save(folder: Path, step: int, network: Network, optimiser: Optimiser | None, keep: int, digest: str) -> None:
    """Write the state after `step` steps, then delete all but the newest `keep` checkpoints; `digest` is the run's.

    optimiser: None for a method that does not train.
    """
    if distributed.rank():
        return
    tensors, kept = network.state() | network.remembered(), _optimiser_state(network, optimiser)
    numbers = {name: value for name, value in kept.items() if not isinstance(value, Tensor)}
    tensors |= {name: value for name, value in kept.items() if isinstance(value, Tensor)}
    facts: dict[str, Any] = {"digest": digest, "tensors": len(tensors)}
    if _kind(optimiser) is not None:
        facts |= {"optimiser": _kind(optimiser), "numbers": numbers}
    write(folder, State(step, tensors, facts))
    prune(folder, keep)


def resume(folder: Path, network: Network, optimiser: Optimiser | None, digest: str) -> int | None:
    """Load the newest checkpoint and return its step; None if there is none. One with another `digest` is refused."""
    saved = _newest(folder)
    if not saved:
        return None
    state = read(saved[-1])
    if state.facts.get("digest") != digest:
        raise DataError(
            f"config.yaml or manifest.csv is not what it was when {saved[-1]} was written; restore it, or train in a new "
            "run directory"
        )
    if state.facts.get("tensors") != len(state.tensors):
        raise DataError(
            f"the checkpoint {saved[-1]} is not whole: some of its tensors are missing; delete it to go on from the "
            "checkpoint before it"
        )
    if state.facts.get("optimiser") != _kind(optimiser):
        raise DataError(
            f"the checkpoint {saved[-1]} was written with the optimiser {state.facts.get('optimiser') or 'SGD'}, and the method "
            f"now has {_kind(optimiser) or 'SGD'}; go on with the version of the method that wrote it, or train in a new run "
            "directory"
        )
    kept = _load(saved[-1], state.tensors, network)
    if optimiser is not None:
        with _fitting(saved[-1]):
            _load_optimiser(optimiser, network, kept | dict(state.facts.get("numbers", {})))
    return state.step


def _load_optimiser(optimiser: Optimiser, network: Network, kept: Mapping[str, Tensor | float]) -> None:
    """Fill the optimiser's state; kept: what `_optimiser_state` returned."""
    trained = network.trained()
    for name, value in kept.items():
        key, _, parameter = name.partition(".")
        # torch.optim keeps its counters, tensors without a dimension, on the CPU
        if isinstance(value, Tensor) and value.ndim:
            value = value.to(trained[parameter].device, copy=True)
        optimiser.state[trained[parameter]][key] = value


def _kind(optimiser: Optimiser | None) -> str | None:
    """The optimiser's name; None for the default one and for no optimiser."""
    return None if optimiser is None or isinstance(optimiser, SGD) else type(optimiser).__name__


def _optimiser_state(network: Network, optimiser: Optimiser | None) -> dict[str, Tensor | float]:
    """The optimiser's tensors and numbers as KEY.PARAMETER, e.g. momentum.heads.classifier.weight."""
    kept: dict[str, Tensor | float] = {}
    if optimiser is None:
        return kept
    for name, parameter in network.trained().items():
        for key, value in optimiser.state[parameter].items():
            if not isinstance(value, Tensor | int | float):
                raise TypeError(
                    f"a checkpoint cannot hold {key} of {_kind(optimiser)}: not a tensor or number, {value!r:.50}"
                )
            kept[f"{key}.{name}"] = value
    return kept


def keep_best(folder: Path, step: int, network: Network, score: float | None) -> None:
    """Save the network instead of the one saved so far, if its score is higher; a score of None is never kept."""
    saved = saved_in(folder)
    if distributed.rank() == 0 and score is not None and (not saved or score > read(saved[-1]).facts["score"]):
        write(folder, State(step, network.state() | network.remembered(), {"score": score}))
        prune(folder, 1)


def restore_best(folder: Path, network: Network) -> int | None:
    """Load the network that `keep_best` saved and return its step; None if it saved none."""
    step = None
    for path in _newest(folder):
        state = read(path)
        _load(path, state.tensors, network)
        step = state.step
    return step


def saved_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(folder.glob("step-*"))


def _newest(folder: Path) -> list[Path]:
    """A list with the newest checkpoint that rank 0 finds; empty if there is none."""
    return [folder / name for name in distributed.from_rank0(lambda: [path.name for path in saved_in(folder)[-1:]])]


def write(folder: Path, state: State) -> None:
    """Write one checkpoint."""
    with new_folder(folder / f"step-{state.step:08d}") as new:
        content = save_tensors({name: value.cpu().contiguous() for name, value in state.tensors.items()})
        with named_errors(folder / f"step-{state.step:08d}" / TENSORS, len(content)):
            # not safetensors' save_file, whose error does not say that the disk is full
            (new / TENSORS).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        write_json(new / FACTS, {"step": state.step, "sha256": sha256, **state.facts})


def read(path: Path) -> State:
    """Read one checkpoint; a DataError if it is damaged."""
    advice = f"delete {path} to go on from the checkpoint before it"
    try:
        with readable(f"the checkpoint {path}", advice, SafetensorError, missing=False):
            facts = read_json(path / FACTS)
            step, sha256 = int(facts.pop("step")), facts.pop("sha256")
            if hashlib.sha256((path / TENSORS).read_bytes()).hexdigest() != sha256:
                raise DataError(f"the checkpoint {path / TENSORS} is damaged (its sha256 does not match); {advice}")
            return State(step, load_file(path / TENSORS), facts)
    except FileNotFoundError as error:
        raise DataError(f"the checkpoint {path} lacks {Path(error.filename).name}; {advice}") from error


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints."""
    for path in saved_in(folder)[:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def _load(path: Path, tensors: dict[str, Tensor], network: Network) -> dict[str, Tensor]:
    """Copy tensors into the network and its memory; returns the remaining ones, which are the optimiser's."""
    memory = {name: value for name, value in tensors.items() if name.startswith("memory.")}
    optimiser = {
        name: value
        for name, value in tensors.items()
        if name.partition(".")[2] in network.trained() and name not in memory
    }
    model = {name: value for name, value in tensors.items() if name not in memory and name not in optimiser}
    with _fitting(path):
        network.load_state(model)
        network.load_remembered(memory)
    return optimiser


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """Turn an error in this context into a DataError that names the checkpoint."""
    try:
        yield
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"the checkpoint {path} does not fit this run's configuration ({error}); delete it") from error
