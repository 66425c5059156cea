"""The network: which part is needed for what, its state, its standardisation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from debgcd import config as configuration
from debgcd.infer.infer import features, infer
from debgcd.methods import create
from debgcd.methods.base import Method, Sizes
from debgcd.model.backbone import Backbone, Identity
from debgcd.model.heads import reset_heads
from debgcd.model.network import Network, Teacher

WIDTH, K, KNOWN = 6, 5, 3
HEADS = {"classifier", "projection", "debiased", "detector"}


class Small(Backbone):
    """Frozen average over 2 × 2 pixels, then two tuned linear layers."""

    def __init__(self, standardise: bool = True) -> None:
        super().__init__()
        self.identity = Identity("small", None, "0" * 64)
        self.width, self.tail_blocks, self.standardise = WIDTH, 2, standardise
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
    config = configuration.override(configuration.compose("paper"), {"k": K, "heads": {"hidden": 7}}, "test")
    method = create(config, Sizes(WIDTH, K, KNOWN, images=9))
    network = Network(Small(standardise), method.heads())
    reset_heads(network.heads, seed)
    return network, method


def images(count: int = 9) -> Tensor:
    return torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def tokens_of(network: Network, count: int = 9) -> Tensor:
    return network.backbone.trunk(images(count))


def test_a_category_needs_trunk_tail_and_gcd_classifier_alone() -> None:
    """No cost is added at inference: every other head may be absent, or broken."""
    network, method = made()
    tokens = tokens_of(network)
    with torch.no_grad():
        everything = network(tokens, HEADS)
        before = infer(network, method, [tokens], heads=method.final_answers)
    for name in ("projection", "debiased", "detector"):
        network.heads[name] = Raises()
        with pytest.raises(AssertionError, match="this head was run"):  # the test can fail
            network(tokens, {name})
    after = infer(network, method, [tokens], heads=method.final_answers)
    assert after.category.tolist() == before.category.tolist() == everything["classifier"].argmax(1).tolist()
    assert after.novelty is None and after.others == {}
    del network.heads["projection"], network.heads["debiased"], network.heads["detector"]
    with torch.no_grad():
        assert torch.equal(network(tokens, method.answers)["classifier"], everything["classifier"])


def test_other_heads_run_only_when_asked() -> None:
    network, method = made()
    tokens = [tokens_of(network)]
    everything = infer(network, method, tokens)
    assert everything.novelty is not None and everything.novelty.shape == (9,)
    assert list(everything.others) == ["debiased"] and everything.others["debiased"].shape == (9,)
    asked = infer(network, method, tokens, heads=(*method.final_answers, "detector"))
    assert asked.novelty is not None and asked.novelty.tolist() == everything.novelty.tolist() and asked.others == {}
    network.heads["projection"] = Raises()
    assert infer(network, method, tokens).category.tolist() == asked.category.tolist()  # a projection never is
    network.heads["detector"] = network.heads["debiased"] = Raises()
    assert infer(network, method, tokens, heads=method.final_answers).novelty is None
    assert features(network, tokens).shape == (9, WIDTH)
    with pytest.raises(AssertionError, match="this head was run"):
        infer(network, method, tokens, heads=(*method.final_answers, "detector"))


def test_inference_of_no_image_has_the_shape_of_none() -> None:
    network, method = made()
    found = infer(network, method, [])
    assert found.category.shape == (0,) and found.top.shape == (0, 3)
    assert found.novelty is not None and found.novelty.shape == (0,)
    assert features(network, []).shape == (0, WIDTH)


def test_each_head_that_is_asked_says_what_it_says_alone() -> None:
    network, _ = made()
    with torch.no_grad():
        for name, head in network.heads.items():
            output = network(tokens_of(network), {name})
            assert set(output.heads) == {name} and torch.equal(output[name], head(output.feature))
        assert set(network(tokens_of(network)).heads) == network.learning == HEADS


def test_tokens_and_features_are_two_ways_in() -> None:
    network, _ = made()
    with torch.no_grad():
        whole = network(tokens_of(network), HEADS)
        again = network.from_feature(whole.feature, HEADS)
    assert all(torch.equal(whole[name], again[name]) for name in HEADS)


class Bare(nn.Module):
    """A head with parameters that does not say how they begin."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))


def test_a_head_that_does_not_say_how_it_is_initialised_is_refused() -> None:
    """From the global generator a run would differ from one start to the next."""
    with pytest.raises(TypeError, match="'other' has parameters but no reset"):
        reset_heads(nn.ModuleDict({"other": Bare()}), seed=0)


def test_a_teacher_follows_slowly_and_speaks_with_its_own_parameters() -> None:
    network, _ = made()
    teacher, tokens = Teacher(network), tokens_of(network)
    first = network.state()["tail.0.weight"].clone()
    with torch.no_grad():
        before = network(tokens, HEADS)
        for parameter in network.trained().values():
            parameter.add_(1.0)
        assert torch.equal(teacher(network, tokens, HEADS)["classifier"], before["classifier"])
        assert not torch.equal(network(tokens, HEADS)["classifier"], before["classifier"])
        teacher.follow(network, momentum=0.75)
    torch.testing.assert_close(teacher.p0, first + 0.25)
    assert torch.equal(network.state()["tail.0.weight"], first + 1.0)  # the network keeps its own
    assert not teacher(network, tokens, HEADS)["classifier"].requires_grad


def test_state_is_all_that_training_changes_and_comes_back() -> None:
    network, other = made()[0], made(seed=1)[0]
    with torch.no_grad():
        network.standardise(network(tokens_of(network)).feature)
        for parameter in network.parameters():
            parameter.add_(0.1)
    state = {name: value.clone() for name, value in network.state().items()}
    assert not any(value.requires_grad for value in network.state().values())
    assert {"feature_mean", "feature_scale", "tail.0.weight", "tail.1.bias", "heads.classifier.weight"} <= set(state)
    assert not any(name.startswith("pixel") for name in state)
    with torch.no_grad():
        expected = network(tokens_of(network), HEADS)
        assert not torch.equal(other(tokens_of(network), HEADS)["classifier"], expected["classifier"])
        other.load_state(state)
        found = other(tokens_of(network), HEADS)
    assert all(torch.equal(found[name], expected[name]) for name in HEADS)
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
    tokens = tokens_of(network, 64)
    with torch.no_grad():
        raw = network(tokens).feature
        network.standardise(raw)
        feature = network(tokens).feature
    assert float(raw.mean(0).abs().min()) > 1  # off-centre before
    torch.testing.assert_close(feature.mean(0), torch.zeros(WIDTH), atol=1e-5, rtol=0)
    torch.testing.assert_close(feature.std(0, correction=0), torch.ones(WIDTH), atol=1e-5, rtol=0)


def test_channels_that_hardly_vary_are_not_stretched() -> None:
    """Tuning may wake them: with a scale of ten thousand, one step made them drown all others."""
    network, _ = made()
    feature = torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(0))
    feature[:, 0] = 0.0
    feature[:, 1] *= 1e-3
    network.standardise(feature)
    mean = float(feature.std(0, correction=0).mean())
    assert network.feature_scale[:2].tolist() == pytest.approx([10 / mean] * 2)
    assert network.feature_scale[2:].tolist() == pytest.approx((1 / feature[:, 2:].std(0, correction=0)).tolist())


def test_a_constant_feature_is_standardised_to_zero_and_not_to_nan() -> None:
    network, _ = made()
    network.standardise(torch.full((4, WIDTH), 3.0))
    assert torch.equal(network.feature_mean, torch.full((WIDTH,), 3.0))
    assert network.feature_scale.isfinite().all()


def test_a_backbone_that_needs_no_standardisation_gets_none() -> None:
    network, _ = made(standardise=False)
    with torch.no_grad():
        network.standardise(network(tokens_of(network)).feature)
    assert not network.feature_mean.any()
    assert torch.equal(network.feature_scale, torch.ones(WIDTH))


def test_training_mode_leaves_the_backbone_in_evaluation() -> None:
    network, _ = made()
    network.train()
    assert network.heads["classifier"].training
    assert not any(module.training for module in network.backbone.modules())
