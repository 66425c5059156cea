"""A step waits for the device once: where its log is read. Shown on torch's meta device, whose tensors have no values.

Whatever would make the host wait for a GPU (item, a mask as an index, nonzero, a copy to the host, a branch on a tensor)
asks for a value there, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from little import KNOWN, TOKENS, config, made
from little import batch as batch_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from debgcd.config.schedules import Progress
from debgcd.data.manifest import Manifest
from debgcd.data.sampler import Draws
from debgcd.run.directory import Run
from debgcd.train import loop
from debgcd.train.callbacks import FirstAnswer
from debgcd.train.setup import Setup

STEPS = 4
LABEL = np.array([0, -1, 1, -1, 2, -1, -1, 0])


class Watch(TorchDispatchMode):
    """Counts copies to the device, and refuses the one thing that asks for values and passes there unnoticed."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if "index_put" in str(operation) and any(x.dtype == torch.bool for x in tree_leaves(args[1])):
            raise RuntimeError("a mask to write through")
        result = operation(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.uploads += any(x.is_cpu and x.ndim for x in given) and any(x.is_meta for x in made)  # 0-d: a number
        return result


class MetaTokens:
    """Tokens without values, on the device."""

    def random(self, draws: Iterable[Draws]) -> Iterator[Tensor]:
        for batch in draws:
            yield torch.empty(2 * len(batch.image), TOKENS, device="meta")


class EnoughError(Exception):
    """The steps that were to be seen are over."""


@pytest.mark.parametrize("preset", ["paper", "released", "small"])
@pytest.mark.parametrize("method", ["debgcd", "simgcd", "gcd"])
def test_a_step_waits_once(method: str, preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithm 1's own loop, with its optimiser and its log."""
    schedule = {"steps": STEPS, "batch": 6}
    cold = {"heads": {"warm_start": False}} if method != "gcd" else {}
    chosen = config(preset, method=method, schedule=schedule, model_kept="last", run={"watch": "off"}, **cold)
    network, made_method = made(chosen)
    rows = len(LABEL)
    labels = tuple(None if y < 0 else f"class {y}" for y in LABEL)
    none = (None,) * rows
    manifest = Manifest(tuple(Path(f"/{i}.png") for i in range(rows)), labels, none, ("train",) * rows, none)
    setup = Setup(network.to("meta"), made_method, MetaTokens(), LABEL, LABEL > KNOWN, KNOWN, manifest.paths)  # type: ignore[arg-type]
    monkeypatch.setattr(loop, "_initialise", lambda *given: None)  # only the steps are looked at
    monkeypatch.setattr(FirstAnswer, "before_training", lambda self: None)
    waits = []

    def to_host(tensor: Tensor) -> np.ndarray:
        waits.append(watch.uploads)
        if len(waits) == STEPS:  # the steps before are complete
            raise EnoughError
        return np.ones(tensor.shape, np.float32)

    monkeypatch.setattr(loop, "to_host", to_host)
    with Watch() as watch, pytest.raises(EnoughError):
        loop.fit(Run(tmp_path, chosen, manifest), setup)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == STEPS - 1
    assert np.diff(waits).tolist() == [1] * (STEPS - 1)  # the labels of the batch; the tokens are there already


WAITING: dict[str, Callable[[Tensor], object]] = {
    "a mask as index": lambda x: x[x > 0],
    "a mask to write through": lambda x: x.clone().index_put_((x > 0,), x[:1]),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.numpy(),
    "a branch": lambda x: 1 if x.sum() > 0 else 0,
    "float": lambda x: float(x.sum()),
    "unique": lambda x: x.unique(),
}


@pytest.mark.parametrize("kind", WAITING)
def test_what_would_wait_is_refused_there(kind: str) -> None:
    """Otherwise the test above could not fail."""
    WAITING[kind](torch.zeros(3))
    with Watch(), pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        WAITING[kind](torch.zeros(3, device="meta"))


@pytest.mark.parametrize("label", [[0, -1, 2, -1], [-1, -1], [1], [2, 1, 0]])
def test_a_batch_names_the_rows_of_both_views(label: list[int]) -> None:
    batch = batch_of(torch.tensor(label))
    both = label + label
    assert batch.labelled.tolist() == [i for i, y in enumerate(both) if y >= 0]
    assert batch.unlabelled.tolist() == [i for i, y in enumerate(both) if y < 0]
    assert batch.y.tolist() == [y for y in label if y >= 0]


def test_what_is_read_in_one_transfer_is_what_was_computed() -> None:
    network, method = made(config("small", debiased={"consistency": False}))
    tokens = torch.randn(2 * len(LABEL), TOKENS, generator=torch.Generator().manual_seed(0))
    loss = method.loss(network, batch_of(torch.from_numpy(LABEL), tokens), Progress(9, 10, 1))
    loss.total.backward()
    observed = loop.observe(loss, network)
    values, hard_label = observed.values, observed.hard_label
    squares = [p.grad.double().square().sum() for p in network.parameters() if p.grad is not None]
    assert values["gradient"] == pytest.approx(float(torch.stack(squares).sum().sqrt()), rel=1e-5)
    assert values["loss"] == loss.total.item()
    for name, term in loss.terms.items():
        assert values[name] == (term.item() if isinstance(term, Tensor) else term), name
    assert loss.hard_label is not None and hard_label is not None
    assert hard_label.tolist() == loss.hard_label.tolist() and {-1} < set(hard_label.tolist())
