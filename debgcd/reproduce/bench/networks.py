"""What is timed: our network and the plain one that public code trains, with the same weights; banks; photographs."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import fft
from torch import Tensor, nn

from debgcd.config.schedules import Progress
from debgcd.config.schema import Config
from debgcd.data.sampler import Draws
from debgcd.errors import DebgcdError
from debgcd.methods import create
from debgcd.methods.base import Batch, Method, Sizes
from debgcd.model.backbone import Backbone, Identity, pick_precision
from debgcd.model.load import EPSILON, VIT, load_backbone
from debgcd.model.network import Network
from debgcd.model.optimiser import SGD, sgd
from debgcd.model.vit import IMAGENET_MEAN, IMAGENET_STD
from debgcd.reproduce.bench.session import Session, Shape, once
from debgcd.system.machine import optional
from debgcd.system.store import Recipe, open_store
from debgcd.tokens.bank import Bank, BankTokens
from debgcd.train.setup import build

CPU = torch.device("cpu")
LEARNING_RATE = 1e-3  # small, so that random weights do not become denormal or infinite, which can be slower to compute
TUNED_BLOCKS = 2
BANK_VIEWS = 2


class PlainBackbone(Backbone):
    """Everything is in the tail: the library's own forward pass of the whole network, with eager attention."""

    standardise = False

    def __init__(self, model: Any, tuned_blocks: int):
        super().__init__()
        self.model = model
        self.identity = Identity("plain", None, "")
        self.width = model.config.hidden_size
        depth = model.config.num_hidden_layers
        blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth)
        self.tail_blocks = tuned_blocks
        self.tuned = nn.ModuleList(blocks[depth - tuned_blocks :])
        self.register_buffer("pixel_mean", 255 * torch.tensor(IMAGENET_MEAN).view(3, 1, 1))
        self.register_buffer("pixel_std", 255 * torch.tensor(IMAGENET_STD).view(3, 1, 1))
        self.requires_grad_(False)
        self.tuned.requires_grad_(True)
        self.eval()

    def tokens(self, pixels: Tensor) -> Tensor:
        return pixels

    def tail(self, tokens: Tensor) -> Tensor:
        """(N, 3, S, S) normalised pixels -> (N, width)."""
        return self.model(pixel_values=tokens).last_hidden_state[:, 0]


@dataclass(frozen=True)
class Trainee:
    """A network in training."""

    network: Network
    method: Method
    optimiser: SGD

    def trunk(self, images: Tensor) -> Tensor:
        return self.network.backbone.trunk(images)

    def loss(self, tokens: Tensor, label: Tensor) -> Tensor:
        numbers = np.arange(len(label))
        batch = Batch.of(tokens, Draws(numbers, numbers), label.numpy(), label.device)
        return self.method.loss(self.network, batch, Progress(1, 2, 1)).total

    def step(self, tokens: Tensor, label: Tensor) -> None:
        """tokens: 2B rows, first views, then second views; label: (B,)."""
        loss = self.loss(tokens, label)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()


@once
def random_vit(session: Session, shape: Shape) -> tuple[Any, Path]:
    """A vision transformer with random weights and eager attention, and its folder in the hub's format."""
    return save_random_vit(session.folder / shape.name.replace("/", "-"), shape, session.sizes.views.crop)


def save_random_vit(folder: Path, shape: Shape, image_size: int) -> tuple[Any, Path]:
    """The same without a session."""
    optional("transformers", VIT, "a vision transformer")
    from transformers import ViTConfig, ViTModel
    from transformers.utils import logging

    settings: dict[str, Any] = {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.hidden,
        "patch_size": shape.patch,
        "image_size": image_size,
        "layer_norm_eps": EPSILON,
        "attn_implementation": "eager",
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ViTModel(ViTConfig(**settings), add_pooling_layer=False).eval()
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        if bars:
            logging.enable_progress_bar()
    return model, folder


def ours(session: Session, shape: Shape, tuned_blocks: int) -> Trainee:
    """Our network, loaded as a run loads it."""
    _, folder = random_vit(session, shape)
    size = session.sizes.views.crop
    backbone = load_backbone(
        str(folder), tuned_blocks=tuned_blocks, image_size=size, precision=pick_precision("auto", CPU)
    )
    return trainee(session.config(), session.sizes.known, backbone)


def plain(session: Session, shape: Shape, tuned_blocks: int) -> Trainee:
    """The same weights and heads, trained as public code trains them."""
    model, _ = random_vit(session, shape)
    return trainee(session.config(), session.sizes.known, PlainBackbone(copy.deepcopy(model), tuned_blocks))


def trainee(config: Config, known: int, backbone: Backbone) -> Trainee:
    """A backbone with the method's heads, always with the same initial weights."""
    assert config.k is not None
    method = create(config, Sizes(backbone.width, config.k, known, images=1))
    network = build(method, backbone)
    return Trainee(network, method, sgd(network, replace(config.schedule, lr=LEARNING_RATE)))


def random_images(count: int, size: int) -> Tensor:
    """(count, 3, size, size) uint8."""
    return torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def alternate_labels(batch: int, known: int) -> Tensor:
    """(batch,) labels; every second one is -1."""
    return torch.from_numpy(np.where(np.arange(batch) % 2, np.arange(batch) % known, -1))


def random_bank(folder: Path, shape: tuple[int, ...]) -> BankTokens:
    """A bank, (N, V + 1, ...), with random tokens, as the folder has it or else written: computing real ones takes many minutes."""
    chunk = torch.randn(min(shape[0], 64), *shape[1:], generator=torch.Generator().manual_seed(0))
    content = chunk.to(torch.bfloat16).view(torch.int16).numpy()

    def compute(batches: Sequence[range]) -> Generator[Sequence[NDArray[np.int16]]]:
        yield from (list(content[: len(batch)]) for batch in batches)

    size = 2 * int(np.prod(shape))
    facts = {"random bank": list(shape)}
    recipe = Recipe("random bank", facts, shape[0], size, compute, lambda store: True, "", len(content), shape[1])
    return BankTokens(Bank(open_store(folder, recipe), shape, lambda image: {}), 0, CPU)


def bank_for(session: Session, trainee: Trainee, images: int) -> BankTokens:
    """A bank of random tokens for this number of images."""
    shape = (images, BANK_VIEWS + 1, *trainee.network.backbone.token_shape(session.sizes.views.crop))
    return random_bank(session.folder / "banks", shape)


def from_bank(tokens: BankTokens, batch: int) -> Tensor:
    """The tokens of two views per image for the first `batch` images of a bank: 2 · batch rows."""
    numbers = np.arange(batch, dtype=np.int64)
    return next(iter(tokens.random([Draws(numbers, numbers)])))


def trunk_type() -> str:
    """The number type in which the trunk computes on this CPU."""
    return {"fp32": "float32", "bf16": "bfloat16"}[pick_precision("auto", CPU)]


def require_same_loss(own: Trainee, other: Trainee, images: Tensor, label: Tensor) -> None:
    """Refuse to time two networks that do not compute the same loss."""
    with torch.no_grad():
        first, second = (float(one.loss(one.trunk(images), label)) for one in (own, other))
    allowed = 1e-4 if trunk_type() == "float32" else 2e-2  # the plain way always computes in float32
    if not abs(first - second) <= allowed * max(1.0, abs(second)):
        raise DebgcdError(
            f"the loss of our network is {first:.6f}, that of the plain one {second:.6f}; networks that differ are not timed; "
            "this is a bug in debgcd or a change in transformers, please report it"
        )


QUALITY = 90  # of the JPEG files
OBJECTS = 12
NOISE = 1.7  # grey levels


@once
def photographs(session: Session, size: tuple[int, int], count: int) -> list[Path]:
    """JPEG files of different photographs of this size (width, height)."""
    paths = [session.folder / f"{size[0]}x{size[1]}-{count}" / f"{i:04d}.jpg" for i in range(count)]
    paths[0].parent.mkdir(parents=True)
    different = [photograph(*size, seed=i) for i in range(min(count, 8))]
    for i, path in enumerate(paths):
        # beyond eight they are shifted copies: all files differ, and writing them is quick
        pixels = np.roll(different[i % len(different)], 16 * (i // len(different)), axis=1)
        Image.fromarray(pixels).save(path, quality=QUALITY)
    return paths


def photograph(width: int, height: int, seed: int) -> NDArray[np.uint8]:
    """(height, width, 3) uint8."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j].astype(np.float32)
    image = np.empty((height, width, 3), np.float32)
    detail = _natural_noise(height, width, random)
    for channel in range(3):
        across, down = random.uniform(-60, 60, 2).astype(np.float32)
        image[..., channel] = random.uniform(90, 160) + across * x + down * y + random.uniform(18, 24) * detail
    for _ in range(OBJECTS):
        centre, radius = random.uniform(0, 1, 2), random.uniform(0.03, 0.25, 2)
        low, high = (np.clip((centre + sign * radius) * (width, height), 0, None).astype(int) for sign in (-1, 1))
        box = slice(low[1], high[1]), slice(low[0], high[0])  # only the object's own box: the whole image takes long
        inside = ((x[box] - centre[0]) / radius[0]) ** 2 + ((y[box] - centre[1]) / radius[1]) ** 2 < 1
        image[box][inside] += random.uniform(-70, 70, 3).astype(np.float32)
    image += random.standard_normal((height, width, 1), np.float32) * NOISE
    return image.clip(0, 255).astype(np.uint8)


def _natural_noise(height: int, width: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Noise with amplitude 1/f, as in natural images; standard deviation 1."""
    fy, fx = np.fft.fftfreq(height)[:, None].astype(np.float32), np.fft.rfftfreq(width)[None].astype(np.float32)
    frequency = np.hypot(fy * height, fx * width)  # in cycles per image
    frequency[0, 0] = np.inf
    phase = random.uniform(0, 2 * np.pi, frequency.shape).astype(np.float32)
    field = fft.irfft2(np.exp(1j * phase) / frequency, s=(height, width), workers=1)
    return (field / field.std()).astype(np.float32)
