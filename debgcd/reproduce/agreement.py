"""Does a device compute what a CPU computes? One training step of each preset on both, compared.

The reference is this machine's CPU in single precision, which the tests compare with slow forms of the paper's equations. The
device takes the reference's network at its start and the same images, so that nothing but its arithmetic can differ.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from debgcd import config as configuration
from debgcd.config.schedules import Progress
from debgcd.config.schema import Config
from debgcd.data.sampler import Draws
from debgcd.methods import create
from debgcd.methods.base import Batch, Context, Sizes
from debgcd.model.backbone import Precision
from debgcd.model.load import load_backbone
from debgcd.reproduce.bench.networks import photograph, save_random_vit
from debgcd.reproduce.bench.session import SHAPES
from debgcd.train.loop import step
from debgcd.train.setup import Setup, build

PRESETS = ("paper", "released", "small")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
IMAGES, K, KNOWN = 8, 5, 2
QUANTITIES = ("features", "loss", "gradient")
# Limits of their relative differences. A GPU may take 10 bits of a number in a convolution (TF32), as public code lets it. In
# bfloat16 a number has 8, and lite0's features, which are standardised, enlarge that: on a CPU .14, .015 and .35.
SINGLE, BFLOAT16, BFLOAT16_OF_LITE0 = (1e-3, 1e-3, 1e-2), (5e-2, 1e-2, 1e-1), (0.3, 0.1, 0.8)


@dataclass(frozen=True)
class Line:
    """How far one step on the device is from the reference."""

    preset: str
    device: str
    precision: Precision
    apart: dict[str, float]  # relative differences of features, loss and gradient; empty if the step failed
    failure: str | None = None

    @property
    def limits(self) -> dict[str, float]:
        """The largest difference of each quantity that is rounding."""
        low = BFLOAT16_OF_LITE0 if self.preset == "small" else BFLOAT16
        return dict(zip(QUANTITIES, SINGLE if self.precision == "fp32" else low, strict=True))

    @property
    def within(self) -> bool:
        """Whether the step ran, and every difference is within its limit."""
        return self.failure is None and all(self.apart[name] <= most for name, most in self.limits.items())


@dataclass(frozen=True)
class Start:
    """The reference's network before its step."""

    state: dict[str, Tensor]
    memory: dict[str, Tensor]


def compare(device: torch.device, on_line: Callable[[Line], None] = lambda line: None) -> list[Line]:
    """Each preset on the device, in single precision and in bfloat16, against the CPU in single precision."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        save_random_vit(Path(folder), SHAPES["vit-s16"], 224)
        for preset in PRESETS:
            config = _config(preset, folder)
            start, reference = _step(config, torch.device("cpu"), "fp32", None)
            for precision in PRECISIONS:
                try:
                    apart = _apart(_step(config, device, precision, start)[1], reference)
                    line = Line(preset, str(device), precision, apart)
                except (RuntimeError, NotImplementedError, TypeError) as error:  # an operation that the device lacks
                    line = Line(preset, str(device), precision, {}, str(error).splitlines()[0])
                found.append(line)
                on_line(line)
    return found


def _config(preset: str, vit: str) -> Config:
    """The preset for K categories; its backbone is lite0, or the ViT with random weights in this folder."""
    values = {"k": K, "seed": 0, "backbone": {"name": "lite0" if preset == "small" else vit, "tuned_blocks": 2}}
    if preset == "small":
        values |= {"views": {"size": 160, "resize": 183}, "schedule": {"steps": 100}}
    return configuration.override(configuration.compose(preset), values, "the comparison")


def _views(size: int) -> Tensor:
    """Two views of each image, (2 · IMAGES, 3, size, size) uint8: the second one is mirrored."""
    pictures = np.stack([photograph(size, size, seed) for seed in range(IMAGES)])
    first = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    return torch.cat([first, first.flip(3)])


def _step(
    config: Config, device: torch.device, precision: Precision, start: Start | None
) -> tuple[Start, dict[str, Tensor]]:
    """One step from `start`, or from the preset's own start: the start, and what is compared, on the CPU."""
    assert config.backbone.name is not None and config.backbone.tuned_blocks is not None
    backbone = load_backbone(
        config.backbone.name,
        tuned_blocks=config.backbone.tuned_blocks,
        image_size=config.views.crop,
        precision=precision,
    )
    label = np.where(np.arange(IMAGES) % 2 == 0, np.arange(IMAGES) // 2 % KNOWN, -1)
    method = create(config, Sizes(backbone.width, K, KNOWN, IMAGES))
    network = build(method, backbone)
    with torch.no_grad():
        if start is None:
            raw = backbone.features(backbone.trunk(_views(config.views.crop)[:IMAGES]))
            network.standardise(raw)
            features = (raw - network.feature_mean) * network.feature_scale
            method.before_training(Context(network, lambda: features, lambda: features, torch.from_numpy(label)))
            copies = (
                {name: value.clone() for name, value in tensors.items()}
                for tensors in (network.state(), network.remembered())
            )
            start = Start(*copies)
        network.load_state(start.state)
        network.load_remembered(start.memory)
    network.to(device)
    tokens = backbone.trunk(_views(config.views.crop))
    numbers = np.arange(IMAGES)
    batch = Batch.of(tokens, Draws(numbers, numbers), label, device)
    with torch.no_grad():
        feature = network(tokens).feature
    setup = Setup(network, method, None, label, np.zeros(IMAGES, bool), KNOWN, ())  # type: ignore[arg-type]  # no tokens
    observed = step(setup, method.optimiser(network, config.schedule), batch, Progress(50, 100, 10))
    gradients = [p.grad.flatten() for p in network.trained().values() if p.grad is not None]
    values = (feature, torch.tensor(observed.values["loss"]), torch.cat(gradients))
    return start, {name: value.detach().cpu().double() for name, value in zip(QUANTITIES, values, strict=True)}


def _apart(found: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    """The norm of each difference as a share of the reference's norm; infinite where a value is not a number."""
    apart = {name: float((found[name] - value).norm() / value.norm()) for name, value in reference.items()}
    return {name: value if value == value else float("inf") for name, value in apart.items()}
