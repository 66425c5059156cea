"""The choices that every run has, as frozen dataclasses whose defaults are the paper's; a method adds its own.

Each field states its reason and, for a number, its range: `debgcd config` prints both, `debgcd.config` enforces the range.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

Auto = Literal["auto"]  # decided before a run begins, and written as a number into its config.yaml
LARGEST = 4096  # pixels, of a view


def k_values(text: str) -> dict[str, Any] | None:
    """The configuration values that "auto" and a factor such as "2x" stand for; None for other texts."""
    times = re.fullmatch(r"([0-9]{1,9})x", text)
    if text == "auto" or times:
        return {"k": None, "k_times": int(times[1]) if times else 1}
    return None


def option(default: Any, why: str, least: float | None = None, most: float | None = None) -> Any:
    """A field with its default, the reason for it and, for a number, the range it must lie in."""
    if (least is None) != (most is None):
        raise TypeError(f"an option has both a least and a most or neither, not {least} and {most}")
    return field(default=default, metadata={"why": why, "range": None if least is None else (least, most)})


@dataclass(frozen=True)
class Options:
    """What a method can be told; each has a subclass of its own, in its own file."""

    def contradiction(self) -> str | None:
        """Values that do not go together and what to do, in a sentence; None if all is well."""
        return None

    def idle(self) -> dict[str, str]:
        """Options that change nothing beside the other values, by dotted key or section, and what makes them so."""
        return {}


@dataclass(frozen=True)
class BackboneConfig:
    """The pretrained network and how much of it is tuned."""

    name: str | None = option(
        None,
        'hub id, folder, .pth or "lite0", "lite1", "lite2"; null: facebook/dino-vitb16, or lite0 where that cannot be had; '
        "with quality best facebook/dinov2-small, or lite2",
    )
    revision: str | None = option(None, "the hub's commit; filled in when the run starts")
    sha256: str | None = option(None, "of the weights; filled in when the run starts, checked on resume")
    tuned_blocks: int | None = option(
        None, "null: the method's own (debgcd and infosieve 2, most others 1, as published)", 0, 1000
    )


@dataclass(frozen=True)
class ViewsConfig:
    """Resize the short side, crop, flip (the public SimGCD's ColorJitter has zero strength); a method may ask for more."""

    resize: int | Auto = option(256, "short side, bicubic with antialias; auto: 8/7 of the crop", 8, LARGEST)
    size: int | Auto = option(
        224,
        "side of the random crop, and of the centre crop used for evaluation; auto: from the images and the quality",
        8,
        LARGEST,
    )
    decode: Literal["exact", "fast"] = option(
        "exact", "every pixel, as the public code; fast: large JPEGs are decoded at 1/2, 1/4 or 1/8 and sharpened"
    )
    upright: bool = option(True, "turn photographs as their EXIF orientation says")
    bank: Literal["auto", "on", "off"] = option(
        "off", "keep the trunk's tokens of a fixed set of views (tokens/bank.py)"
    )
    bank_views: int = option(8, "random views per image in the bank, in addition to the centre crop", 0, 1000)
    fresh: float = option(0.0, "share of the draws that take fresh views in spite of a bank", 0, 1)
    seed: int = option(
        0, "of the bank's views; apart from the run's seed, so that other seeds and methods share a bank"
    )

    @property
    def crop(self) -> int:
        """`size` of a run, where it is decided."""
        assert self.size != "auto"
        return self.size

    @property
    def short_side(self) -> int:
        """`resize` of a run, where it is decided."""
        assert self.resize != "auto"
        return self.resize


@dataclass(frozen=True)
class ScheduleConfig:
    """SGD with momentum, its learning rate, and the batches."""

    epochs: int = option(200, "passes over the data", 0, 10**6)
    steps: int | Auto | None = option(
        None, "a length in steps, for small data; auto: grows with the data; --epochs overrides it", 0, 10**9
    )
    steps_times: float = option(1.0, "factor applied to steps that are auto", 0.001, 1000)
    by: Literal["step", "epoch"] = option("step", "when rate and temperatures change; the public code: once per epoch")
    batch: int = option(128, "images; each gives two views. Never larger than the data", 1, 10**6)
    lr: float = option(0.1, "for a batch of 128, scaled with the real batch", 0, 1e3)
    lr_end: float = option(0.001, "share of lr at the end", 0, 1)
    lr_falls: tuple[float, ...] | None = option(
        None, "shares of the run after which the rate is a tenth; null: it follows the cosine to lr_end"
    )
    tail_lr: float = option(1.0, "the tail's learning rate as a share of the heads'", 0, 1e3)
    momentum: float = option(0.9, "as published", 0, 0.9999)
    weight_decay: float = option(5e-5, "as published", 0, 1)
    labelled: Literal["half", "data"] = option(
        "half", "labelled images in a batch: half of it, as SimGCD; data: as many as their share of the data"
    )
    decay_all: bool = option(
        False, "weight decay on biases and other 1-D tensors too; SimGCD and DebGCD leave them out"
    )


@dataclass(frozen=True)
class ExtrasConfig:
    """EAGC, a later idea that any method with a trained classifier can use (docs/methods.md)."""

    eagc_align: float = option(0.0, "EAGC: pull of labelled features to a reference; published 0.7, 0: off", 0, 1e6)
    eagc_project: float = option(0.0, "EAGC: share taken out of the known subspace; published 0.5, 0: off", 0, 1e6)
    eagc_eta: float = option(2.0, "EAGC: η, as published", 1e-4, 1e6)

    @property
    def eagc(self) -> bool:
        return bool(self.eagc_align or self.eagc_project)


@dataclass(frozen=True)
class RunConfig:
    """How the run is carried out: where, how often it reports and saves."""

    device: str = option("auto", "CUDA or Apple's GPU where there is one, else the CPU")
    precision: Literal["auto", "fp32", "bf16"] = option(
        "fp32", "of the frozen trunk, as the public code; auto: bf16 where the device computes faster in it"
    )
    workers: int | None = option(None, "processes that decode; null: sized to the machine", 0, 1024)
    image_cache: Literal["auto", "on", "off"] = option(
        "auto", "keep the resized pixels of a run without a bank on disk; results are the same bytes"
    )
    log_every: int = option(1, "steps between lines of metrics.jsonl", 1, 10**9)
    eval_every: int = option(10, "epochs between evaluations, where truth is known; the last is always one", 1, 10**9)
    watch: Literal["off", "warn", "act"] = option(
        "warn",
        "say when a run goes wrong (train/callbacks.py); act: also go back to the best state seen, and end there",
    )
    held_out: float = option(0.0, "share of the labels that training does not see, by which the run is watched", 0, 0.5)
    checkpoint_every: int = option(200, "steps", 1, 10**9)
    keep: int = option(2, "checkpoints kept, the newest ones", 1, 10**6)
    tensorboard: bool = option(False, "write the metrics for TensorBoard too")
    timeout: float = option(
        600.0, "seconds that ranks wait for one without a sign of life; then all of them stop", 1, 10**6
    )
    cache: str | None = option(None, "view banks, pixels, fetched weights; null: $DEBGCD_CACHE or ~/.cache/debgcd")


@dataclass(frozen=True)
class Config:
    """A complete run; `debgcd.config.compose` makes one."""

    method: str = option("debgcd", "debgcd train --method")
    k: int | None = option(None, "categories in all, known and new; null: estimated from the frozen features", 1, 10**7)
    k_times: int = option(1, "factor applied to an estimated K; categories that stay unused are pruned", 1, 100)
    prune: bool = option(False, "drop empty new categories at the end; on where K is estimated")
    seed: int = option(0, "every random number is a function of it")
    preset: str = option("paper", "where the values come from")
    quality: Literal["fast", "balanced", "best"] | None = option(
        None, "debgcd train --quality, of preset small: pixels, backbone and steps"
    )
    start: str | None = option(None, "a run or model whose network this one starts from")
    start_sha256: str | None = option(None, "of that model; filled in when the run starts")
    model_kept: Literal["last", "best-old"] = option(
        "last", "the paper names none; best-old (public code): best Old accuracy on the test split"
    )
    answer: Literal["classifier", "settled"] = option(
        "classifier",
        "of a method that trains a classifier; settled: a linear head on the features of all images, made at the end",
    )
    backbone: BackboneConfig = BackboneConfig()
    views: ViewsConfig = ViewsConfig()
    options: Any = None  # the method's own, an instance of its `Options`; written and set as if its fields stood here
    extras: ExtrasConfig = ExtrasConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    run: RunConfig = RunConfig()
