"""The network: which part is needed for what, its state, its standardisation."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from debgcd.config import Config, HeadsConfig
from debgcd.methods import create
from debgcd.methods.protocol import Method
from debgcd.model.backbone import Backbone, Identity
from debgcd.model.heads import reset_heads
from debgcd.model.network import FIELDS, Network, Output
from debgcd.train.infer import features, infer

WIDTH, K, KNOWN = 6, 5, 3


class Small(Backbone):
    """Frozen average over 2 × 2 pixels, then two tuned linear layers."""

    def __init__(self, standardise: bool = True) -> None:
        super().__init__()
        self.identity = Identity("small", None, "0" * 64)
        self.width, self.multiple, self.standardise = WIDTH, 2, standardise
        self.tuned = nn.ModuleList([nn.Linear(12, 8), nn.Linear(8, WIDTH)])
        self.register_buffer("pixel_mean", torch.full((3, 1, 1), 127.0))
        self.register_buffer("pixel_std", torch.full((3, 1, 1), 64.0))
        for i, layer in enumerate(self.tuned):
            generator = torch.Generator().manual_seed(i)
            nn.init.normal_(layer.weight, generator=generator)
            nn.init.normal_(layer.bias, generator=generator)

    def tokens(self, pixels: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(pixels, 2).flatten(1)

    def tail(self, tokens: Tensor) -> Tensor:
        return self.tuned[1](self.tuned[0](tokens).relu()) + 5


class Raises(nn.Module):
    """A head that must not be asked."""

    def forward(self, feature: Tensor) -> Tensor:
        raise AssertionError("this head was run")


def made(standardise: bool = True, seed: int = 0) -> tuple[Network, Method]:
    method = create(Config(k=K, heads=HeadsConfig(hidden=7)), KNOWN)
    network = Network(Small(standardise), method.heads(WIDTH))
    reset_heads(network.heads, seed)
    return network, method


def images(count: int = 9) -> Tensor:
    return torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_a_category_needs_trunk_tail_and_gcd_classifier_alone() -> None:
    """No cost is added at inference: every other head may be absent, or broken."""
    network, method = made()
    with torch.no_grad():
        everything = network(images(), set(FIELDS))
        before = infer(network, method, [network.backbone.trunk(images())], heads=())
    for name in ("projection", "debiased", "detector"):
        network.heads[name] = Raises()
        with pytest.raises(AssertionError, match="this head was run"):  # the test can fail
            network(images(), {name})
    with torch.no_grad():
        output = network(images())
        after = infer(network, method, [network.backbone.trunk(images())], heads=())
    assert torch.equal(output.logits, everything.logits)
    assert (output.projection, output.debiased, output.detector) == (None, None, None)
    assert after.category.tolist() == before.category.tolist() == everything.logits.argmax(1).tolist()
    assert after.novelty is None
    del network.heads["projection"], network.heads["debiased"], network.heads["detector"]
    with torch.no_grad():
        assert torch.equal(network(images()).logits, everything.logits)


def test_the_detector_runs_only_when_asked() -> None:
    network, method = made()
    tokens = [network.backbone.trunk(images())]
    asked = infer(network, method, tokens)
    assert asked.novelty is not None and asked.novelty.shape == (9,) and asked.debiased is None
    network.heads["detector"] = Raises()
    network.heads["debiased"] = Raises()
    assert infer(network, method, tokens, heads=()).novelty is None
    assert features(network, tokens).shape == (9, WIDTH)
    with pytest.raises(AssertionError, match="this head was run"):
        infer(network, method, tokens, heads=("detector",))


def test_inference_of_no_image_has_the_shape_of_none() -> None:
    network, method = made()
    found = infer(network, method, [], heads=("detector", "debiased"))
    assert found.category.shape == (0,)
    assert found.novelty is not None and found.novelty.shape == (0,)
    assert found.debiased is not None and found.debiased.shape == (0,)
    assert features(network, []).shape == (0, WIDTH)


def test_each_head_fills_its_field() -> None:
    network, _ = made()
    assert set(network.heads) == set(FIELDS)
    with torch.no_grad():
        for name, field in FIELDS.items():
            output = network(images(), {name})
            filled = {f.name for f in dataclasses.fields(Output) if getattr(output, f.name) is not None}
            assert filled == {"feature", field}
            assert torch.equal(getattr(output, field), network.heads[name](output.feature))


def test_images_tokens_and_features_are_three_ways_in() -> None:
    network, _ = made()
    with torch.no_grad():
        whole = network(images(), set(FIELDS))
        tokens = network.from_tokens(network.backbone.trunk(images()), set(FIELDS))
        feature = network.from_feature(whole.feature, set(FIELDS))
    for field in dataclasses.fields(Output):
        assert torch.equal(getattr(whole, field.name), getattr(tokens, field.name))
        assert torch.equal(getattr(whole, field.name), getattr(feature, field.name))


def test_output_is_frozen() -> None:
    output = Output(torch.zeros(1, WIDTH))
    assert (output.logits, output.projection, output.debiased, output.detector) == (None, None, None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        output.logits = torch.zeros(1, K)  # type: ignore[misc]


def test_state_is_all_that_training_changes_and_comes_back() -> None:
    network, other = made()[0], made(seed=1)[0]
    with torch.no_grad():
        network.standardise(network(images()).feature)
        for parameter in network.parameters():
            parameter.add_(0.1)
    state = {name: value.clone() for name, value in network.state().items()}
    assert not any(value.requires_grad for value in network.state().values())
    assert {"feature_mean", "feature_scale", "tail.0.weight", "tail.1.bias", "heads.classifier.weight"} <= set(state)
    assert not any(name.startswith("pixel") for name in state)
    with torch.no_grad():
        expected = network(images(), set(FIELDS))
        assert not torch.equal(other(images()).logits, expected.logits)
        other.load_state(state)
        found = other(images(), set(FIELDS))
    for field in dataclasses.fields(Output):
        assert torch.equal(getattr(found, field.name), getattr(expected, field.name))
    assert all(torch.equal(value, network.state()[name]) for name, value in state.items())  # the source is untouched


def test_a_state_that_does_not_fit_is_named() -> None:
    network, _ = made()
    state = {name: value.clone() for name, value in network.state().items()}
    without = {name: value for name, value in state.items() if name != "tail.0.weight"}
    with pytest.raises(KeyError, match=r"tail\.0\.weight"):
        network.load_state(without)
    with pytest.raises(KeyError, match=r"heads\.other"):
        network.load_state(state | {"heads.other": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"heads\.classifier\.weight has shape \(5, 4\), expected \(5, 6\)"):
        network.load_state(state | {"heads.classifier.weight": torch.zeros(5, 4)})


def test_standardised_features_have_mean_zero_and_deviation_one() -> None:
    network, _ = made()
    x = images(64)
    with torch.no_grad():
        raw = network(x).feature
        network.standardise(raw)
        feature = network(x).feature
    assert float(raw.mean(0).abs().min()) > 1  # off-centre before
    torch.testing.assert_close(feature.mean(0), torch.zeros(WIDTH), atol=1e-5, rtol=0)
    torch.testing.assert_close(feature.std(0, correction=0), torch.ones(WIDTH), atol=1e-5, rtol=0)


def test_a_constant_feature_is_standardised_to_zero_and_not_to_nan() -> None:
    network, _ = made()
    network.standardise(torch.full((4, WIDTH), 3.0))
    assert torch.equal(network.feature_mean, torch.full((WIDTH,), 3.0))
    assert network.feature_scale.isfinite().all()


def test_a_backbone_that_needs_no_standardisation_gets_none() -> None:
    network, _ = made(standardise=False)
    with torch.no_grad():
        network.standardise(network(images()).feature)
    assert not network.feature_mean.any()
    assert torch.equal(network.feature_scale, torch.ones(WIDTH))


def test_training_mode_leaves_the_backbone_in_evaluation() -> None:
    network, _ = made()
    network.train()
    assert network.heads["classifier"].training
    assert not any(module.training for module in network.backbone.modules())
