"""Heads: shapes, unit rows, initial values, and a start that depends on seed and name alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from debgcd import config as configuration
from debgcd.methods import create
from debgcd.methods.base import Sizes
from debgcd.model.heads import AXES, Centres, Projection, Prototypes, Settled, reset_heads
from debgcd.novelty.one_vs_all import DetectorShape, OneVsAll

WIDTH, K, KNOWN = 768, 200, 100  # ViT-B and CUB


@pytest.fixture(scope="module")
def heads() -> nn.ModuleDict:
    """The heads of DebGCD with the paper's settings."""
    found = create(configuration.compose("paper"), Sizes(WIDTH, K, KNOWN, images=5994)).heads()
    reset_heads(found, seed=0)
    return found


def features(rows: int, width: int = WIDTH) -> Tensor:
    return 3 * torch.randn(rows, width, generator=torch.Generator().manual_seed(0)) + 1


def sizes(projection: Projection) -> list[tuple[int, int]]:
    return [(layer.in_features, layer.out_features) for layer in projection.layers]


def test_shapes_of_the_paper(heads: nn.ModuleDict) -> None:
    assert list(heads) == ["classifier", "projection", "debiased", "detector"]
    assert sizes(heads["projection"]) == [(768, 2048), (2048, 2048), (2048, 256)]
    rho = heads["detector"].projection
    assert sizes(rho) == [(768, 2048), (2048, 2048), (2048, 2048), (2048, 2048), (2048, 256)]
    assert heads["classifier"].weight.shape == heads["debiased"].weight.shape == (K, WIDTH)
    assert heads["detector"].prototypes.weight.shape == (2 * KNOWN, 256)
    assert {name for name, _ in heads["classifier"].named_parameters()} == {"weight"}  # no bias
    assert heads["detector"].temperature == 0.1


def test_outputs(heads: nn.ModuleDict) -> None:
    x = features(5)
    with torch.no_grad():
        outputs = {name: head(x) for name, head in heads.items()}
    shapes = {name: tuple(output.shape) for name, output in outputs.items()}
    assert shapes == {"classifier": (5, K), "projection": (5, 256), "debiased": (5, K), "detector": (5, KNOWN, 2)}
    torch.testing.assert_close(outputs["projection"].norm(dim=1), torch.ones(5))


def test_classifiers_say_cosines(heads: nn.ModuleDict) -> None:
    x, weight = features(4), heads["classifier"].weight.detach()
    logits = heads["classifier"](x).detach()
    for i in range(4):
        for k in (0, 7, K - 1):
            cosine = (x[i] @ weight[k]) / (x[i].norm() * weight[k].norm())
            assert abs(float(logits[i, k] - cosine)) < 1e-5
    torch.testing.assert_close(heads["classifier"](9 * x).detach(), logits, rtol=1e-4, atol=1e-5)
    scaled = Prototypes(WIDTH, K)
    with torch.no_grad():
        scaled.weight.copy_(weight * torch.rand(K, 1, generator=torch.Generator().manual_seed(1)).add(0.1))
    torch.testing.assert_close(scaled(x).detach(), logits, rtol=1e-4, atol=1e-5)


def test_a_projection_is_its_layers_with_gelu_between() -> None:
    projection = Projection(6, 9, 4, 3)
    projection.reset(torch.Generator().manual_seed(0))
    x = features(5, 6)
    for layer in projection.layers:
        nn.init.normal_(layer.bias)
    first, second, third = projection.layers
    gelu = nn.GELU()
    expected = third(gelu(second(gelu(first(x)))))
    torch.testing.assert_close(projection(x), expected / expected.norm(dim=1, keepdim=True))


def test_initial_values(heads: nn.ModuleDict) -> None:
    """MLPs: normal with deviation 0.02, cut at ±2 as torch's default, zero bias; prototypes: uniform within 1/√width."""
    for projection in (heads["projection"], heads["detector"].projection):
        for layer in projection.layers:
            weight = layer.weight.detach()
            assert abs(float(weight.mean())) < 5 * 0.02 / weight.numel() ** 0.5
            assert abs(float(weight.std()) / 0.02 - 1) < 0.01
            assert abs(float((weight.abs() < 0.02).float().mean()) - 0.6827) < 0.005  # normal, not uniform
            assert float(weight.abs().max()) > 4 * 0.02
            assert not layer.bias.any()
    for prototypes in (heads["classifier"], heads["debiased"], heads["detector"].prototypes):
        weight, bound = prototypes.weight.detach(), prototypes.weight.shape[1] ** -0.5
        assert 0.99 * bound < float(weight.abs().max()) <= bound
        assert abs(float(weight.std()) / (bound / 3**0.5) - 1) < 0.01


def test_two_heads_of_one_shape_start_unlike(heads: nn.ModuleDict) -> None:
    assert not torch.equal(heads["classifier"].weight, heads["debiased"].weight)


def test_a_heads_start_depends_on_seed_and_name_alone() -> None:
    """So that methods and ablations that share a head begin with the same one."""

    def start(seed: int, names: list[str]) -> dict[str, Tensor]:
        made = {
            "classifier": lambda: Prototypes(6, 4),
            "projection": lambda: Projection(6, 5, 3, 2),
            "debiased": lambda: Prototypes(6, 4),
            "detector": lambda: OneVsAll(6, 2, DetectorShape(5, 2, 3), 0.1),
        }
        found = nn.ModuleDict({name: made[name]() for name in names})
        torch.manual_seed(torch.initial_seed() + 1)  # the global generator has no say
        reset_heads(found, seed)
        return {name: value.clone() for name, value in found.state_dict().items()}

    everything = start(3, ["classifier", "projection", "debiased", "detector"])
    for names in (["classifier"], ["projection", "classifier"], ["detector", "debiased"]):
        for name, value in start(3, names).items():
            assert torch.equal(value, everything[name]), name
    other = start(4, ["classifier", "projection", "debiased", "detector"])
    assert not any(
        torch.equal(value, everything[name]) for name, value in other.items() if "bias" not in name.split(".")
    )


def test_golden_start() -> None:
    """The first numbers of the classifier of every run with seed 0 (and width 4)."""
    heads = nn.ModuleDict({"classifier": Prototypes(4, 2)})
    reset_heads(heads, 0)
    expected = [0.07755625, 0.19628972, -0.33302069, -0.09724087, -0.06697893, 0.29983723, 0.22910279, -0.44158226]
    torch.testing.assert_close(heads["classifier"].weight.detach().flatten(), torch.tensor(expected), rtol=0, atol=1e-7)


def settled(width: int = 6, categories: int = 4, axes: int = 5) -> tuple[Settled, dict[str, Tensor]]:
    """A filled head and what it was filled with."""
    random = torch.Generator().manual_seed(0)
    shapes = {"mean": (width,), "directions": (width, axes), "weight": (categories, axes)}
    values = {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    head = Settled(width, categories, images=axes)
    head.fill(**values)
    return head, values


def test_a_settled_head_is_linear_on_its_axes_at_unit_length() -> None:
    head, given = settled()
    x = features(3, 6)
    for row, logits in zip(x, head(x), strict=True):
        point = [sum((row[i] - given["mean"][i]) * given["directions"][i, j] for i in range(6)) for j in range(5)]
        length = sum(value**2 for value in point) ** 0.5
        for k in range(4):
            expected = sum(value / length * given["weight"][k, j] for j, value in enumerate(point))
            assert float(logits[k]) == pytest.approx(float(expected), abs=1e-5)
    assert not list(head.parameters())


def test_a_settled_head_has_as_many_axes_as_it_may_need() -> None:
    assert Settled(768, 4, 10_000).directions.shape == (768, AXES)
    assert Settled(32, 4, 10_000).directions.shape == (32, 32)
    assert Settled(768, 4, 20).directions.shape == (768, 20)


def test_a_settled_head_may_be_filled_with_fewer_axes() -> None:
    head, given = settled()
    assert head.filled and not Settled(6, 4, 5).filled
    x = features(7, 6)
    head.fill(given["mean"], given["directions"][:, :3], given["weight"][:, :3])
    small = Settled(6, 4, 3)
    small.fill(given["mean"], given["directions"][:, :3], given["weight"][:, :3])
    torch.testing.assert_close(head(x), small(x))
    assert not head.directions[:, 3:].any() and not head.weight[:, 3:].any()


def test_dropping_categories_keeps_a_settled_heads_other_rows() -> None:
    head, given = settled()
    x = features(7, 6)
    before = head(x)
    head.keep([0, 1, 3])
    torch.testing.assert_close(head(x), before[:, [0, 1, 3]])
    assert torch.equal(head.directions, given["directions"])


def test_centres_say_half_the_squared_distance() -> None:
    centres = Centres(3, 2)
    centres.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.0]]))
    x = torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 4.0]])
    # unit rows: (1, 0, 0) and (0, .6, .8)
    expected = torch.tensor([[0.0, -(1 + 0.25) / 2], [-(1 + 1) / 2, -(0.01 + 0.64) / 2]])
    torch.testing.assert_close(centres(x), expected)
    assert not list(centres.parameters())


def test_a_settled_head_that_grows_has_the_mean_of_each_categorys_images_in_every_row() -> None:
    """Old categories too; one without images keeps its direction, and an image without a row counts where it scores best."""
    head, given = settled()
    seen, came = features(13, 6).split((8, 5))
    where, category = torch.tensor([0, 1, 1, 0, -1, 1, 0, 1]), torch.tensor([0, 1, 1, 0, 1])
    best = int(head(seen[4:5]).argmax())
    of = [0, 1, 1, 0, best, 1, 0, 1]
    before = sum(float(head(seen)[i, k]) for i, k in enumerate(of)) / 8
    head.grow(came, category, 2, seen, where)
    rows = []
    for k in range(6):
        points = [head.place(row[None])[0] for row, at in zip(seen, of, strict=True) if at == k]
        points += [head.place(row[None])[0] for row, at in zip(came, category.tolist(), strict=True) if 4 + at == k]
        total = sum(points) if points else given["weight"][k]
        rows.append(total / sum(float(value) ** 2 for value in total) ** 0.5)
    length = head.weight.norm(dim=1)
    torch.testing.assert_close(head.weight, torch.stack(rows) * length[0])
    now = sum(float(head(seen)[i, k]) for i, k in enumerate(of)) / 8
    assert now == pytest.approx(before, rel=1e-4)


def test_prototypes_that_grow_keep_their_rows() -> None:
    head = Prototypes(3, 2)
    before = torch.tensor([[3.0, 0, 0], [0, 1, 0]])
    head.weight.data = before.clone()
    came = torch.tensor([[0.0, 0, 5], [0, 0, 1], [0, 3, 4]])
    head.grow(came, torch.tensor([0, 0, 1]), 2, came, torch.tensor([-1, -1, -1]))
    torch.testing.assert_close(head.weight.data, torch.cat([before, torch.tensor([[0, 0, 2.0], [0, 1.2, 1.6]])]))
