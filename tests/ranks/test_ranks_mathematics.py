"""Two ranks with half of the batch each compute what one rank computes: gradients of every method, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import ranked, said
from little import KNOWN, TOKENS, WIDTH, K, Little, context, made, method_of
from little import config as little_config
from safetensors.torch import load_file, save_file
from tiers import tiered
from tiny import NATIVE, PATCH, hub_model, load
from torch import Tensor

from debgcd import config as configuration
from debgcd.config.schedules import Progress
from debgcd.config.schema import Config
from debgcd.data.sampler import Draws
from debgcd.methods import METHODS, create
from debgcd.methods.base import Batch, Loss, Method, Sizes
from debgcd.methods.simgcd import SimGCD
from debgcd.model.network import Network
from debgcd.model.optimiser import sgd
from debgcd.system import distributed
from debgcd.train import loop
from debgcd.train.setup import Setup, build

STEPS = 12
IMAGES = 9  # not divisible by two: slices are uneven
CASES = [*((name, "paper") for name in METHODS if METHODS[name].trains), ("debgcd", "small")]


class Regularised(SimGCD):
    """A loss that uses a parameter directly, and a head on rows that were gathered already."""

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        found = super().loss(network, batch, progress)
        again = network.from_feature(network(batch.tokens).feature, ("classifier",))["classifier"]
        direct = network.get_parameter("heads.classifier.weight").square().sum() + again.square().mean()
        return Loss(found.total + direct, found.terms)


SMALL_VIEWS = {"views": {"size": NATIVE, "resize": NATIVE}, "backbone": {"tuned_blocks": 1}}
PROMPTED: dict[str, dict[str, Any]] = {  # what learns changes after the first step
    "promptcal": SMALL_VIEWS | {"promptcal": {"first_share": 0.05, "memory": 30, "negatives": 20}},
    "sptnet": SMALL_VIEWS | {"prompts": {"patch": PATCH, "border": 3, "period": 2}},
}


def chosen(name: str, preset: str) -> Config:
    """A preset with small heads."""
    config = configuration.compose(preset, method=name)
    small = {"hidden": 6, "projection_width": 4, "detector_width": 4, "projection_prototypes": 12}
    heads = {key: value for key, value in small.items() if hasattr(getattr(config.options, "heads", None), key)}
    values = {"k": 5, "schedule": {"lr": 0.01}} | ({"heads": heads} if heads else {})
    return configuration.override(config, values | PROMPTED.get(name, {}), where="test")


def prompted(config: Config, folder: Path) -> tuple[Network, Method]:
    """Network and method of a configuration with prompts before the trunk of a small ViT."""
    backbone = METHODS[config.method].prompted(load(folder), config)
    method = create(config, Sizes(backbone.width, K, KNOWN, 12))
    return build(method, backbone), method


def trained(
    network: Network, method: Method, config: Config, kind: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The gradients of the first step, and the state after STEPS, as this rank has them."""
    network = network.to(kind)
    label = np.where(np.arange(IMAGES) % 2 == 0, np.arange(IMAGES) % KNOWN, -1)
    setup = Setup(network, method, None, label, np.zeros(IMAGES, bool), KNOWN, ())  # type: ignore[arg-type]
    optimiser, views = sgd(network, config.schedule), len(method.views)
    for step in range(STEPS if kind == torch.float32 else 2):
        numbers = step * IMAGES + np.arange(IMAGES)
        generator = torch.Generator().manual_seed(step)
        shape = (4, NATIVE, NATIVE) if method.cut.early else (TOKENS,)  # pixels, and which of them get prompts
        tokens = torch.randn(views, IMAGES, *shape, generator=generator, dtype=torch.float64).to(kind)
        parts = np.array_split(np.arange(IMAGES), distributed.count())
        own = np.append(parts[distributed.rank()], parts[0][: len(parts[0]) - len(parts[distributed.rank()])])
        draws = Draws(numbers, np.arange(IMAGES))
        batch = Batch.of(tokens[:, own].flatten(0, 1), draws, label, "cpu", views=views)
        assert loop.step(setup, optimiser, batch, Progress(step, STEPS, 4)).finite
        if step == 0:
            first = {name: p.grad.clone() for name, p in network.trained().items() if p.grad is not None}
    return first, {name: value.clone() for name, value in (network.state() | network.remembered()).items()}


def every(kind: torch.dtype, folder: Path) -> dict[str, Tensor]:
    """Of all methods."""
    found: dict[str, Tensor] = {}

    def add(case: str, network: Network, method: Method, config: Config) -> None:
        for what, tensors in zip(("gradient", "state"), trained(network, method, config, kind), strict=True):
            found.update({f"{case}|{what}|{name}": value.contiguous() for name, value in tensors.items()})

    for name, preset in CASES:
        config = chosen(name, preset)
        network, method = prompted(config, folder) if name in PROMPTED else made(config)
        if name == "infosieve":
            # At its start all codes are nearly alike. Their distances are differences of terms 10 000 times as large, so that
            # rounding alone would exceed the limits: 1.5e-3 in single, 2.7e-12 in double precision.
            generator = torch.Generator().manual_seed(0)
            for parameter in network.heads["projection"].parameters():
                torch.nn.init.normal_(parameter, std=0.6, generator=generator)
        add(f"{name}-{preset}", network, method, config)
    config = little_config(extras={"eagc_align": 0.7, "eagc_project": 0.5})  # changes the gradient of the feature
    network, method = made(config)
    label = torch.arange(12) % KNOWN
    method.before_training(
        context(network, lambda: torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(0)), label)
    )
    add("eagc", network, method, config)
    config = little_config(method="simgcd")
    method = Regularised(config, method_of(config).sizes)
    add("regularised", build(method, Little()), method, config)
    return found


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    return float((one - other).abs().max() / one.abs().max().clamp_min(1e-30)) if one.numel() else 0.0


@pytest.mark.parametrize("kind", tiered([torch.float64], [torch.float32, torch.float64]))
def test_two_ranks_compute_the_gradients_of_one(kind: torch.dtype, tmp_path: Path) -> None:
    hub_model("vit", tmp_path)

    def work() -> int:
        with distributed.joined():
            distributed.set_timeout(60)
            save_file(every(kind, tmp_path), tmp_path / f"{distributed.rank()}.safetensors")
            distributed.barrier()
        return 0

    assert ranked([work, work], tmp_path, 300) == [0, 0], said(tmp_path, 2)
    alone, (first, second) = every(kind, tmp_path), [load_file(tmp_path / f"{i}.safetensors") for i in range(2)]
    assert set(alone) == set(first) == set(second)
    prompts = ("promptcal-paper|gradient|tail.1.tokens", "sptnet-paper|gradient|tail.1.patches")
    assert all(alone[name].any() for name in prompts)  # what learns before the trunk is among them
    assert all(torch.equal(first[name], second[name]) for name in first)  # ranks never drift apart
    limits = {"gradient": 1e-5, "state": 1e-4} if kind == torch.float32 else {"gradient": 1e-12, "state": 1e-9}
    far = {
        name: apart(value.double(), first[name].double())
        for name, value in alone.items()
        if value.is_floating_point()
        and not name.endswith(
            "|tail.0.attention.k_proj.bias"
        )  # its gradient is 0: it adds the same to all keys of a softmax
        and not apart(value.double(), first[name].double()) <= limits[name.split("|")[1]]
    }
    assert not far


def own_part(values: Tensor) -> Tensor:
    return values[distributed.my_slice(len(values), 3)]


@pytest.mark.parametrize("rows", [0, 1, 7, 40])
def test_what_is_collected_is_complete_and_in_order(rows: int, tmp_path: Path) -> None:
    whole = torch.arange(rows * 2).reshape(rows, 2)

    def work() -> int:
        with distributed.joined():
            mine = own_part(whole)
            assert torch.equal(distributed.collect(mine), whole)
            first = distributed.collect(mine, everyone=False)
            assert torch.equal(first, whole if distributed.rank() == 0 else whole[:0])
            assert distributed.blobs(b"ab" * distributed.rank()) == (
                [b"", b"ab", b"abab"] if distributed.rank() == 0 else []
            )
            assert (
                distributed.all_gather(distributed.rank()) == [0, 1, 2]
                and distributed.from_rank0(lambda: distributed.rank()) == 0
            )
            calls: list[int] = []

            def together() -> list[Any]:
                calls.append(1)
                return distributed.all_gather(distributed.rank())

            def leading(ask: Any) -> None:
                assert distributed.rank() == 0 and ask() == [0, 1, 2] and ask() == [0, 1, 2]

            distributed.run_on_rank0(leading, together)
            assert len(calls) == 2
            distributed.barrier()
        return 0

    assert ranked([work] * 3, tmp_path) == [0, 0, 0], said(tmp_path, 3)


def test_shares_are_whole_units_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    for items in (0, 1, 5, 128, 129, 1000):
        for count in (1, 2, 3, 8):
            monkeypatch.setattr(distributed, "count", lambda count=count: count)
            found: list[int] = []
            for rank in range(count):
                monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
                part = range(items)[distributed.my_slice(items, 128)]
                assert len(part) % 128 == 0 or part[-1] == items - 1
                assert part or rank or not items
                found += part
            assert found == list(range(items))


def predictions(images: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, k, images), random.integers(0, k, images)


class Said:
    """Tokens that are the answer already."""

    def __init__(self, predicted: Sequence[int], k: int):
        self._answer = torch.nn.functional.one_hot(torch.as_tensor(predicted), k).float()

    def centre(self, numbers: np.ndarray) -> Any:
        for start in range(0, len(numbers), 128):
            yield self._answer[numbers[start : start + 128]]


class Answering:
    """A network and a method that pass the tokens on."""

    final_answers = ("classifier",)
    heads = torch.nn.ModuleDict()

    def __call__(self, tokens: Tensor, heads: object) -> Tensor:
        return tokens

    def scores(self, output: Tensor) -> dict[str, Tensor]:
        return {"gcd": output, "other": output.flip(1)}

    def novelty(self, output: Tensor) -> Tensor:
        return output[:, 0]


def test_accuracy_is_matched_once_over_all_ranks(tmp_path: Path) -> None:
    """Random predictions on a set of CUB's size: matched on each of eight ranks and summed, as in public code, 32.6 %."""
    from debgcd.evaluate import clustering_accuracy
    from debgcd.infer.infer import infer_shared

    images, k = 4500, 200
    truth, predicted = predictions(images, k)
    alone = clustering_accuracy(truth, predicted, 100)
    parts = zip(np.array_split(truth, 8), np.array_split(predicted, 8), strict=True)
    summed = sum(clustering_accuracy(t, p, 100).all * len(t) for t, p in parts) / images
    assert alone.all < 0.08 < 0.3 < summed

    def work() -> int:
        with distributed.joined():
            both = Answering()
            found = infer_shared(both, both, Said(predicted, k), np.arange(images))  # type: ignore[arg-type]
            assert np.array_equal(found.category, predicted)
            assert np.array_equal(found.others["other"], k - 1 - predicted)
            assert found.novelty is not None and np.array_equal(found.novelty, predicted == 0)
            assert clustering_accuracy(truth, found.category, 100) == alone
            distributed.barrier()
        return 0

    assert ranked([work] * 8, tmp_path) == [0] * 8, said(tmp_path, 8)
