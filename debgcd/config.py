"""Every choice of a run, as frozen dataclasses whose defaults are the paper's.

A preset is YAML data that overrides a few fields; `load` and `override` refuse an unknown key with a suggestion. Where
the paper leaves something open, the reason for the default stands beside the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from debgcd.errors import DataError, UsageError
from debgcd.overlay import merge, plain, suggest


@dataclass(frozen=True)
class BackboneConfig:
    """The pretrained network and how much of it is tuned."""

    name: str | None = (
        None  # hub id, folder, .pth or "lite0"; none: facebook/dino-vitb16, or lite0 where it cannot be had
    )
    revision: str | None = None  # the hub's commit; filled in when the run starts
    sha256: str | None = None  # of the weights; filled in when the run starts, checked on resume
    tuned_blocks: int | None = None  # none: the method's own (debgcd 2, simgcd 1: the paper's SimGCD tunes one block)


@dataclass(frozen=True)
class ViewsConfig:
    """Resize the short side, crop, flip; nothing else (the public SimGCD's ColorJitter has zero strength)."""

    resize: int = 256  # short side, bicubic with antialias
    size: int = 224  # side of the random crop and of the centre crop used for evaluation
    bank: Literal["auto", "on", "off"] = "off"  # keep the trunk's tokens of a fixed set of views (train/bank.py)
    bank_views: int = 8  # random views an image in the bank, beside its centre crop
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


@dataclass(frozen=True)
class DebiasedConfig:
    """L_adl (Eq. 8–13): the debiased classifier."""

    weight: float = 1.0  # λ_adl
    threshold: float = 0.85  # τ
    # Instead of τ: which share of the unlabelled rows to let through, as (progress, share) points joined by lines. After
    # a warm start nearly every image passes a fixed τ at once; a share keeps the curriculum whatever the confidences.
    utilisation: tuple[tuple[float, float], ...] | None = None
    certainty: bool = True  # weigh by d (Eq. 10)
    consistency: bool = True  # require F (Eq. 9); off in the public code


@dataclass(frozen=True)
class AblationConfig:
    """Switches named after the columns of the paper's ablation table and of its loss table.

    Each row is one line of YAML, e.g. row (3): `ablation: {detector: false, guidance: false}`.
    """

    debiased: bool = True  # "Debiased Learning"
    auxiliary: bool = True  # "Auxiliary Classifier"; off: the hard labels train the GCD classifier itself
    detector: bool = True  # "Semantic Dist. Learning"
    guidance: bool = True  # "Dist. Guidance": certainty and consistency in Eq. 11
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
    log_every: int = 1  # steps between lines of metrics.jsonl
    eval_every: int = 10  # epochs between evaluations, where truth is known; the last epoch is always evaluated
    checkpoint_every: int = 200  # steps
    keep: int = 2  # checkpoints kept, the newest ones
    tensorboard: bool = False
    cache: str | None = None  # where view banks and fetched weights are; none: $DEBGCD_CACHE or ~/.cache/debgcd


@dataclass(frozen=True)
class Config:
    """A complete run."""

    method: str = "debgcd"
    k: int | None = None  # categories in all: known and new
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


def presets() -> list[str]:
    """Names of the presets that ship with the package."""
    return sorted(Path(entry.name).stem for entry in (resources.files("debgcd") / "presets").iterdir())


def preset(name: str) -> Config:
    """The configuration of a preset."""
    if name not in presets():
        raise UsageError(f"there is no preset {name!r}{suggest(name, presets())}; choose from {', '.join(presets())}")
    text = (resources.files("debgcd") / "presets" / f"{name}.yaml").read_text("utf-8")
    return override(Config(preset=name), yaml.safe_load(text) or {}, where=f"preset {name}")


def override(config: Config, values: Mapping[str, Any], where: str) -> Config:
    """The configuration with some fields replaced, checked; `where` names the origin in an error."""
    changed = merge(config, values, where)
    _check(changed, where)
    return changed


def assignment(text: str) -> dict[str, Any]:
    """`--set detector.weight=0.1` as the nested mapping that `override` takes."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set takes KEY=VALUE, e.g. detector.weight=0.1, not {text!r}")
    try:
        nested: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {text!r} has a value that is not YAML; quote it") from error
    for part in reversed(key.strip().split(".")):
        nested = {part: nested}
    return nested


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping, or an error that says where it is broken."""
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no configuration file {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the configuration file {path}: {error}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold a mapping of sections to values, not a {type(values).__name__}")
    return values


def to_dict(config: Config) -> dict[str, Any]:
    """The complete configuration as plain data, in the order of the fields."""
    return plain(dataclasses.asdict(config))


def dump(config: Config) -> str:
    """The complete configuration as YAML, in the order of the fields."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def load(path: Path) -> Config:
    """A configuration written by `dump`."""
    return override(Config(), read_yaml(path), where=str(path))


_RANGES: dict[str, tuple[float, float]] = {
    "k": (1, 10**7),
    "backbone.tuned_blocks": (0, 1000),
    "views.resize": (8, 4096),
    "views.size": (8, 4096),
    "views.bank_views": (2, 1000),
    "heads.hidden": (1, 65536),
    "heads.projection_depth": (1, 32),
    "heads.projection_width": (1, 65536),
    "heads.detector_depth": (0, 32),
    "heads.detector_width": (1, 65536),
    "gcd.supervised_weight": (0, 1),
    "gcd.entropy_weight": (0, 1e6),
    "gcd.student_temperature": (1e-4, 100),
    "gcd.teacher_start": (1e-4, 100),
    "gcd.teacher_end": (1e-4, 100),
    "gcd.teacher_warmup": (0, 1),
    "gcd.unlabelled_temperature": (1e-4, 100),
    "gcd.labelled_temperature": (1e-4, 100),
    "detector.weight": (0, 1e6),
    "detector.temperature": (1e-4, 100),
    "detector.entropy_weight": (0, 1e6),
    "detector.consistency_weight": (0, 1e6),
    "debiased.weight": (0, 1e6),
    "debiased.threshold": (0, 1),
    "schedule.epochs": (0, 10**6),
    "schedule.steps": (0, 10**9),
    "schedule.batch": (1, 10**6),
    "schedule.lr": (0, 1e3),
    "schedule.lr_end": (0, 1),
    "schedule.tail_lr": (0, 1e3),
    "schedule.momentum": (0, 0.9999),
    "schedule.weight_decay": (0, 1),
    "run.workers": (0, 1024),
    "run.log_every": (1, 10**9),
    "run.eval_every": (1, 10**9),
    "run.checkpoint_every": (1, 10**9),
    "run.keep": (1, 10**6),
}


def _check(config: Config, where: str) -> None:
    for full, (low, high) in _RANGES.items():
        value: Any = config
        for part in full.split("."):
            value = getattr(value, part)
        if value is not None and not low <= value <= high:
            raise UsageError(f"{where}: {full} must be between {low:g} and {high:g}, not {value}")
    if config.views.size > config.views.resize:
        raise UsageError(
            f"{where}: views.size {config.views.size} is larger than views.resize {config.views.resize}; "
            "a crop cannot be larger than the resized image"
        )
    if config.debiased.utilisation == ():
        raise UsageError(f"{where}: debiased.utilisation has no points; give [[0, 0], [1, 0.5]] or the like, or null")
    for x, y in config.debiased.utilisation or ():
        if not (0 <= x <= 1 and 0 <= y <= 1):
            raise UsageError(
                f"{where}: debiased.utilisation has the point [{x:g}, {y:g}]; both must lie between 0 and 1"
            )
    switches = config.ablation
    if switches.guidance and not (switches.debiased and switches.detector):
        raise UsageError(
            f"{where}: ablation.guidance needs ablation.debiased and ablation.detector; set guidance: false"
        )
    if switches.debiased and not (switches.labelled or switches.unlabelled):
        raise UsageError(
            f"{where}: without ablation.labelled and ablation.unlabelled there is no debiased learning; set debiased: false"
        )
    if switches.auxiliary and not switches.debiased:
        raise UsageError(f"{where}: ablation.auxiliary needs ablation.debiased; set auxiliary: false")
