"""A vision transformer cut in two gives what the whole one gives."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import DEPTH, KINDS, NATIVE, PATCH, WIDTH, block_parameters, hub_model, images, load, own_forward
from torch import Tensor

from debgcd.errors import UsageError
from debgcd.model.load import load_vit

pytestmark = pytest.mark.usefixtures("one_thread", "no_network")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """For each family a model and the folder it is saved in, which no test changes."""
    root = tmp_path_factory.mktemp("models")
    return {kind: (hub_model(kind, root / kind), root / kind) for kind in KINDS}


@pytest.mark.parametrize("size", [NATIVE, NATIVE + 3 * PATCH, NATIVE - PATCH])
@pytest.mark.parametrize("tuned_blocks", [0, 1, 2, DEPTH])
@pytest.mark.parametrize("kind", KINDS)
def test_trunk_and_tail_are_the_model(models: Any, kind: str, tuned_blocks: int, size: int) -> None:
    model, folder = models[kind]
    backbone = load(folder, tuned_blocks, size)
    with torch.no_grad():
        feature, expected = backbone.tail(backbone.tokens(images(size))), own_forward(model, images(size))
    assert feature.shape == (2, WIDTH)
    torch.testing.assert_close(feature, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tuned_blocks", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_last_blocks_learn_and_as_in_the_model(models: Any, kind: str, tuned_blocks: int) -> None:
    model, folder = models[kind]
    backbone = load(folder, tuned_blocks)
    weight = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(3))
    feature = backbone.tail(backbone.tokens(images()))
    assert feature.requires_grad == (tuned_blocks > 0)
    if tuned_blocks:
        (feature * weight).sum().backward()
    model.zero_grad()
    (own_forward(model, images()) * weight).sum().backward()

    expected = block_parameters(model, tuned_blocks)
    learned = [name for name, p in backbone.named_parameters() if p.grad is not None]
    assert learned == [name for name, p in backbone.named_parameters() if p.requires_grad]
    assert learned == [f"tuned.{name}" for name, _ in backbone.tuned.named_parameters()]
    assert len(learned) == len(expected)
    for own, theirs in zip(backbone.tuned.parameters(), expected.values(), strict=True):
        torch.testing.assert_close(own.grad, theirs.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tuned_blocks", [0, 1, 2, DEPTH])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_attention_in_all_blocks_but_the_last(
    models: Any, kind: str, tuned_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last block is never run in full, tuned or not; the others run torch's own attention."""
    fused, rows = torch.nn.functional.scaled_dot_product_attention, []

    def counted(query: Tensor, *rest: Any, **options: Any) -> Tensor:
        rows.append(query.shape[2])
        return fused(query, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    backbone = load(models[kind][1], tuned_blocks)
    tokens = backbone.trunk(torch.zeros(2, 3, NATIVE, NATIVE, dtype=torch.uint8))
    backbone.tail(tokens)
    assert len(rows) == DEPTH - 1


@pytest.mark.parametrize("kind", KINDS)
def test_with_nothing_tuned_the_tokens_are_the_cls_row(models: Any, kind: str) -> None:
    """So a bank of them is smaller by the number of tokens."""
    backbone = load(models[kind][1], 0)
    assert backbone.trunk(torch.zeros(2, 3, NATIVE, NATIVE, dtype=torch.uint8)).shape == (2, 1, WIDTH)


def test_attributes(models: Any) -> None:
    _, folder = models["dinov2"]
    backbone = load(folder, 2)
    assert (backbone.width, backbone.standardise) == (WIDTH, False)
    assert len(backbone.tuned) == 2
    assert not backbone.train().embeddings.training
    assert all(block.attention.training is False for block in backbone.tuned)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (backbone.identity.name, backbone.identity.revision) == (str(folder), None)
    assert backbone.identity.sha256 == digest


def test_trunk_normalises_grey_levels_as_the_folder_says(models: Any, tmp_path: Path) -> None:
    grey = torch.randint(0, 256, (2, 3, NATIVE, NATIVE), generator=torch.Generator().manual_seed(4), dtype=torch.uint8)
    imagenet = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
    other = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]).view(2, 3, 1, 1)
    model, folder = models["dinov2"]
    said = tmp_path / "said"
    hub_model("dinov2", said)
    statistics = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (said / "preprocessor_config.json").write_text(json.dumps(statistics))
    for path, (mean, std) in [(folder, imagenet), (said, other)]:
        backbone = load(path)
        tokens = backbone.trunk(grey)
        assert not tokens.requires_grad
        expected = own_forward(model, (grey / 255 - mean) / std)
        torch.testing.assert_close(backbone.tail(tokens), expected, atol=1e-5, rtol=0)


def test_half_precision_files_are_computed_in_single(tmp_path: Path) -> None:
    hub_model("dinov3_vit").to(torch.bfloat16).save_pretrained(tmp_path)
    assert {p.dtype for p in load(tmp_path).parameters()} == {torch.float32}


def test_loading_says_nothing(models: Any, capfd: pytest.CaptureFixture[str]) -> None:
    load(models["vit"][1])  # its file has a pooler, which the library would report at length
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("tuned_blocks", "image_size", "says"),
    [
        (-1, NATIVE, "tuned_blocks is -1.*use 0 to 3"),
        (DEPTH + 1, NATIVE, "tuned_blocks is 4.*use 0 to 3"),
        (1, 30, "image_size 30 is not a multiple.*use 24 or 32"),
        (1, 5, "image_size 5 .*use 8"),
        (1, 0, "image_size 0 .*use 8"),
    ],
)
def test_sizes_out_of_range(models: Any, tuned_blocks: int, image_size: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(models["vit"][1], tuned_blocks, image_size)


def test_images_of_another_size_than_asked_for(models: Any) -> None:
    with pytest.raises(ValueError, match=r"40×40.*image_size 32"):
        load(models["dinov3_vit"][1]).tokens(images(40))


def test_a_name_of_no_form() -> None:
    with pytest.raises(UsageError, match="neither a folder"):
        load_vit("/no/such/folder", tuned_blocks=1, image_size=NATIVE)
