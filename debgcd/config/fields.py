"""Every choice of a run, as frozen dataclasses whose defaults are the paper's.

Each field states its reason and, for a number, its range; `debgcd config` prints both, `limits.check` enforces the range.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def option(default: Any, why: str, least: float | None = None, most: float | None = None) -> Any:
    """A field with its default, the reason for it and, for a number, the range it must lie in."""
    return field(default=default, metadata={"why": why, "range": None if least is None else (least, most)})


@dataclass(frozen=True)
class BackboneConfig:
    """The pretrained network and how much of it is tuned."""

    name: str | None = option(
        None, 'hub id, folder, .pth or "lite0"; null: facebook/dino-vitb16, or lite0 where that cannot be had'
    )
    revision: str | None = option(None, "the hub's commit; filled in when the run starts")
    sha256: str | None = option(None, "of the weights; filled in when the run starts, checked on resume")
    tuned_blocks: int | None = option(
        None, "null: the method's own (debgcd 2; simgcd and gcd 1, as published)", 0, 1000
    )


@dataclass(frozen=True)
class ViewsConfig:
    """Resize the short side, crop, flip; nothing else (the public SimGCD's ColorJitter has zero strength)."""

    resize: int = option(256, "short side, bicubic with antialias", 8, 4096)
    size: int = option(224, "side of the random crop, and of the centre crop used for evaluation", 8, 4096)
    decode: Literal["exact", "fast"] = option(
        "exact", "every pixel, as the public code; fast: large JPEGs are decoded at 1/2, 1/4 or 1/8 and sharpened"
    )
    upright: bool = option(True, "turn photographs as their EXIF orientation says")
    bank: Literal["auto", "on", "off"] = option(
        "off", "keep the trunk's tokens of a fixed set of views (train/bank.py)"
    )
    bank_views: int = option(8, "random views per image in the bank, in addition to the centre crop", 0, 1000)
    fresh: float = option(0.0, "share of the draws that take two fresh views in spite of a bank", 0, 1)
    seed: int = option(
        0, "of the bank's views; apart from the run's seed, so that other seeds and methods share a bank"
    )


@dataclass(frozen=True)
class HeadsConfig:
    """Shapes of the projections; the classifiers are plain prototypes."""

    hidden: int = option(2048, "width of the hidden layers, as in SimGCD", 1, 65536)
    projection_depth: int = option(3, "layers of the projection for L_rep", 1, 32)
    projection_width: int = option(256, "its output", 1, 65536)
    projection_prototypes: int = option(0, "GCD contrasts cosines to this many prototypes on top; 0: none", 0, 10**6)
    detector_depth: int = option(5, "layers of ρ_s; 0 puts the detector into the classifiers' feature space", 0, 32)
    detector_width: int = option(256, "output of ρ_s", 1, 65536)
    warm_start: bool = option(False, "prototypes from semi-supervised k-means; the paper starts from random ones")


@dataclass(frozen=True)
class GcdConfig:
    """L_gcd (Eq. 1–3): the SimGCD part."""

    supervised_weight: float = option(0.35, "λ_b^gcd", 0, 1)
    entropy_weight: float = option(1.0, "ξ; the public scripts take 2 for CUB and 4 for CIFAR-100", 0, 1e6)
    student_temperature: float = option(0.1, "τ_s, and the debiased classifier's τ_a", 1e-4, 100)
    teacher_start: float = option(0.07, "temperature of the teacher at the start", 1e-4, 100)
    teacher_end: float = option(0.04, "and after its warm-up", 1e-4, 100)
    teacher_warmup: float = option(0.15, "share of the run: the paper's 30 of 200 epochs", 0, 1)
    teacher_shape: Literal["cosine", "linear"] = option("cosine", "the paper says cosine; the public code is linear")
    unlabelled_temperature: float = option(
        1.0, "InfoNCE as in SimGCD; the paper's 'others 0.1' is for the classifiers", 1e-4, 100
    )
    labelled_temperature: float = option(0.07, "supervised contrast, as in SimGCD", 1e-4, 100)


@dataclass(frozen=True)
class DetectorConfig:
    """L_sdl (Eq. 4–6): the one-vs-all detector."""

    weight: float = option(0.01, "λ_sdl", 0, 1e6)
    temperature: float = option(0.1, "of the detector's softmax: among the paper's 'other temperatures'", 1e-4, 100)
    entropy_weight: float = option(1.0, "Eq. 6 adds both parts with weight 1; the public code has 0.1", 0, 1e6)
    entropy_over: Literal["sum", "mean"] = option(
        "sum", "over the M detectors: Eq. 5 sums, the public code takes the mean"
    )
    consistency_weight: float = option(
        0.0, "between the two views of an unlabelled image: only in the public code (1.0)", 0, 1e6
    )
    # Only for small data. Labelled images are known, unlabelled ones may be either: learning to tell the two groups apart
    # teaches what is new (positive-unlabelled learning), while Eq. 4 never sees a new image.
    unlabelled_weight: float = option(0.0, "learn from labelled against unlabelled images; small data only", 0, 1e6)
    tunes_tail: bool = option(
        True, "off: its gradient ends at the feature, so a large λ_sdl cannot harm the classifiers"
    )
    guides_start: bool = option(False, "with heads.warm_start: new prototypes from the images that look new")


@dataclass(frozen=True)
class DebiasedConfig:
    """L_adl (Eq. 8–13): the debiased classifier."""

    weight: float = option(1.0, "λ_adl", 0, 1e6)
    threshold: float = option(0.85, "τ", 0, 1)
    # After a warm start nearly every image passes a fixed τ at once; a share keeps the curriculum whatever the confidences.
    utilisation: tuple[tuple[float, float], ...] | None = option(
        None, "instead of τ: the share of unlabelled rows to let through, as (progress, share) points"
    )
    balanced: bool = option(
        False, "with utilisation: that share of each category, so that the surest do not take it all"
    )
    certainty: bool = option(True, "weigh by d (Eq. 10)")
    consistency: bool = option(True, "require F (Eq. 9); off in the public code")
    on_side: bool = option(False, "with guidance: hard labels among known or new categories, as the detector says")


@dataclass(frozen=True)
class AblationConfig:
    """Switches named after the columns of the paper's ablation table and of its loss table, and L_gcd for Table 12.

    Each row is one line of YAML, e.g. row (3): `ablation: {detector: false, guidance: false}`.
    """

    gcd: bool = option(
        True, "L_gcd; off, with all but the detector: L_sdl alone, categories by clustering the features"
    )
    debiased: bool = option(True, "'Debiased Learning'")
    auxiliary: bool = option(True, "'Auxiliary Classifier'; off: the hard labels train the GCD classifier itself")
    detector: bool = option(True, "'Semantic Dist. Learning'")
    guidance: bool = option(True, "'Dist. Guidance': certainty and consistency in Eq. 11, and debiased.on_side")
    labelled: bool = option(True, "L_adl^s, Eq. 12")
    unlabelled: bool = option(True, "L_adl^u, Eq. 11")


@dataclass(frozen=True)
class ClusteringConfig:
    """k-means of the methods whose categories are clusters."""

    restarts: int = option(10, "random restarts; the lowest inertia wins", 1, 10**5)
    iterations: int = option(300, "at most, per restart", 1, 10**6)


@dataclass(frozen=True)
class ScheduleConfig:
    """SGD with momentum and a cosine learning rate."""

    epochs: int = option(200, "passes over the data", 0, 10**6)
    steps: int | None = option(None, "a length in steps, for small data; --epochs overrides it", 0, 10**9)
    by: Literal["step", "epoch"] = option("step", "when rate and temperatures change; the public code: once per epoch")
    batch: int = option(128, "images; each gives two views. Never larger than the data", 1, 10**6)
    lr: float = option(0.1, "for a batch of 128, scaled with the real batch", 0, 1e3)
    lr_end: float = option(0.001, "share of lr at the end", 0, 1)
    tail_lr: float = option(1.0, "the tail's learning rate as a share of the heads'", 0, 1e3)
    momentum: float = option(0.9, "as published", 0, 0.9999)
    weight_decay: float = option(5e-5, "as published", 0, 1)
    decay_all: bool = option(
        False, "weight decay on biases and other 1-D tensors too; SimGCD and DebGCD leave them out"
    )


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
    checkpoint_every: int = option(200, "steps", 1, 10**9)
    keep: int = option(2, "checkpoints kept, the newest ones", 1, 10**6)
    tensorboard: bool = option(False, "write the metrics for TensorBoard too")
    cache: str | None = option(None, "view banks, pixels, fetched weights; null: $DEBGCD_CACHE or ~/.cache/debgcd")


@dataclass(frozen=True)
class Config:
    """A complete run."""

    method: str = option("debgcd", "debgcd train --method")
    k: int | None = option(None, "categories in all, known and new; null: estimated from the frozen features", 1, 10**7)
    k_times: int = option(1, "factor applied to an estimated K; categories that stay unused are pruned", 1, 100)
    prune: bool = option(False, "drop empty and merge duplicate new categories at the end; on where K is estimated")
    seed: int = option(0, "every random number is a function of it")
    preset: str = option("paper", "where the values come from")
    model_kept: Literal["last", "best-old"] = option(
        "last", "the paper names none; best-old (public code): best Old accuracy on the test split"
    )
    backbone: BackboneConfig = BackboneConfig()
    views: ViewsConfig = ViewsConfig()
    heads: HeadsConfig = HeadsConfig()
    gcd: GcdConfig = GcdConfig()
    detector: DetectorConfig = DetectorConfig()
    debiased: DebiasedConfig = DebiasedConfig()
    ablation: AblationConfig = AblationConfig()
    clustering: ClusteringConfig = ClusteringConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    run: RunConfig = RunConfig()
