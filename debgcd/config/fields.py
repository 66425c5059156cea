"""Every choice of a run, as frozen dataclasses whose defaults are the paper's.

Where the paper leaves something open, the reason for the default stands beside the field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class BackboneConfig:
    """The pretrained network and how much of it is tuned."""

    name: str | None = (
        None  # hub id, folder, .pth or "lite0"; none: facebook/dino-vitb16, or lite0 where it cannot be had
    )
    revision: str | None = None  # the hub's commit; filled in when the run starts
    sha256: str | None = None  # of the weights; filled in when the run starts, checked on resume
    tuned_blocks: int | None = None  # none: the method's own (debgcd 2; simgcd and gcd 1, as published)


@dataclass(frozen=True)
class ViewsConfig:
    """Resize the short side, crop, flip; nothing else (the public SimGCD's ColorJitter has zero strength)."""

    resize: int = 256  # short side, bicubic with antialias
    size: int = 224  # side of the random crop and of the centre crop used for evaluation
    bank: Literal["auto", "on", "off"] = "off"  # keep the trunk's tokens of a fixed set of views (train/bank.py)
    bank_views: int = 8  # random views an image in the bank, beside its centre crop
    fresh: float = 0.0  # share of the draws that take two fresh views though there is a bank; 1: all, as without a bank
    seed: int = 0  # of the bank's views: apart from the run's seed, so that other seeds and methods share a bank


@dataclass(frozen=True)
class HeadsConfig:
    """Shapes of the projections; the classifiers are plain prototypes."""

    hidden: int = 2048
    projection_depth: int = 3  # layers of the projection for L_rep
    projection_width: int = 256
    detector_depth: int = 5  # layers of ρ_s; 0 puts the detector into the classifiers' feature space
    detector_width: int = 256
    warm_start: bool = False  # prototypes from semi-supervised k-means; the paper starts from random ones


@dataclass(frozen=True)
class GcdConfig:
    """L_gcd (Eq. 1–3): the SimGCD part."""

    supervised_weight: float = 0.35  # λ_b^gcd
    entropy_weight: float = 1.0  # ξ; the public scripts take 2 for CUB and 4 for CIFAR-100, the paper names none
    student_temperature: float = 0.1  # τ_s, and the debiased classifier's τ_a
    teacher_start: float = 0.07
    teacher_end: float = 0.04
    teacher_warmup: float = 0.15  # share of the run: the paper's 30 of 200 epochs
    teacher_shape: Literal["cosine", "linear"] = "cosine"  # the paper says cosine, the public code is linear
    unlabelled_temperature: float = 1.0  # InfoNCE as in SimGCD; the paper's "others 0.1" is for the classifiers
    labelled_temperature: float = 0.07  # supervised contrastive, likewise


@dataclass(frozen=True)
class DetectorConfig:
    """L_sdl (Eq. 4–6): the one-vs-all detector."""

    weight: float = 0.01  # λ_sdl
    temperature: float = 0.1  # of the detector's softmax: among the paper's "other temperatures"
    entropy_weight: float = 1.0  # Eq. 6 adds both parts with weight 1; the public code has 0.1
    entropy_over: Literal["sum", "mean"] = "sum"  # over the M detectors: Eq. 5 sums, the public code takes the mean
    consistency_weight: float = 0.0  # between the two views of an unlabelled image: only in the public code (1.0)
    # Only for small data. Labelled images are known, unlabelled ones may be either: learning to tell the two groups apart
    # teaches what is new (positive-unlabelled learning), while Eq. 4 never sees a new image.
    unlabelled_weight: float = 0.0
    tunes_tail: bool = True  # off: its gradient ends at the feature, so that a large λ_sdl cannot harm the classifiers
    guides_start: bool = (
        False  # with heads.warm_start: new prototypes from the images that look new (cluster/novelty.py)
    )


@dataclass(frozen=True)
class DebiasedConfig:
    """L_adl (Eq. 8–13): the debiased classifier."""

    weight: float = 1.0  # λ_adl
    threshold: float = 0.85  # τ
    # Instead of τ: which share of the unlabelled rows to let through, as (progress, share) points joined by lines. After
    # a warm start nearly every image passes a fixed τ at once; a share keeps the curriculum whatever the confidences.
    utilisation: tuple[tuple[float, float], ...] | None = None
    balanced: bool = False  # with utilisation: a share of each category's rows, so that the surest do not take it all
    certainty: bool = True  # weigh by d (Eq. 10)
    consistency: bool = True  # require F (Eq. 9); off in the public code
    on_side: bool = False  # with guidance: hard labels among the known or the new categories, as the detector says


@dataclass(frozen=True)
class AblationConfig:
    """Switches named after the columns of the paper's ablation table and of its loss table, and L_gcd for Table 12.

    Each row is one line of YAML, e.g. row (3): `ablation: {detector: false, guidance: false}`.
    """

    gcd: bool = True  # L_gcd; off, with all but the detector: "L_sdl" alone, and categories by clustering the features
    debiased: bool = True  # "Debiased Learning"
    auxiliary: bool = True  # "Auxiliary Classifier"; off: the hard labels train the GCD classifier itself
    detector: bool = True  # "Semantic Dist. Learning"
    guidance: bool = True  # "Dist. Guidance": certainty and consistency in Eq. 11, and debiased.on_side
    labelled: bool = True  # L_adl^s, Eq. 12
    unlabelled: bool = True  # L_adl^u, Eq. 11


@dataclass(frozen=True)
class ScheduleConfig:
    """SGD with momentum and a cosine learning rate."""

    epochs: int = 200
    steps: int | None = None  # a length in steps, for small data; `--epochs` overrides it
    batch: int = 128  # images; each gives two views. Never larger than the data
    lr: float = 0.1  # for a batch of 128, scaled with the real batch
    lr_end: float = 0.001  # share of lr at the end
    tail_lr: float = 1.0  # the tail's learning rate as a share of the heads'
    momentum: float = 0.9
    weight_decay: float = 5e-5  # none on biases and other 1-D tensors


@dataclass(frozen=True)
class RunConfig:
    """How the run is carried out: where, how often it reports and saves."""

    device: str = "auto"
    workers: int | None = None  # processes that decode; none: sized to the machine
    # Keep the decoded, resized pixels of a run without a bank on disk (data/image_cache.py); results are the same bytes.
    image_cache: Literal["auto", "on", "off"] = "auto"
    log_every: int = 1  # steps between lines of metrics.jsonl
    eval_every: int = 10  # epochs between evaluations, where truth is known; the last epoch is always evaluated
    checkpoint_every: int = 200  # steps
    keep: int = 2  # checkpoints kept, the newest ones
    tensorboard: bool = False
    cache: str | None = None  # where view banks, pixels and fetched weights are; none: $DEBGCD_CACHE or ~/.cache/debgcd


@dataclass(frozen=True)
class Config:
    """A complete run."""

    method: str = "debgcd"
    k: int | None = None  # categories in all: known and new; none: estimated from the frozen features
    k_times: int = 1  # an estimated K is taken so many times, to be on the safe side; what is not used is pruned
    prune: bool = (
        False  # at the end drop new categories that are empty or double (train/prune.py); on where K is estimated
    )
    seed: int = 0
    preset: str = "paper"
    model_kept: Literal["last", "best-old"] = "last"  # best-old (public code): best Old accuracy on the test split
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    gcd: GcdConfig = field(default_factory=GcdConfig)
    detector: DetectorConfig = field(default_factory=DetectorConfig)
    debiased: DebiasedConfig = field(default_factory=DebiasedConfig)
    ablation: AblationConfig = field(default_factory=AblationConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    run: RunConfig = field(default_factory=RunConfig)
