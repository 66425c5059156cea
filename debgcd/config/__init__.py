"""The configuration of a run: fields, presets and what is laid over them, and how all are read and written.

A preset is YAML data that overrides a few fields. Over it goes what a benchmark and what a backbone change, YAML data too;
`compose` does that. Unknown keys are refused with a suggestion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from debgcd.config.fields import (
    AblationConfig,
    BackboneConfig,
    Config,
    DebiasedConfig,
    DetectorConfig,
    GcdConfig,
    HeadsConfig,
    RunConfig,
    ScheduleConfig,
    ViewsConfig,
)
from debgcd.config.limits import check
from debgcd.errors import DataError, UsageError
from debgcd.overlay import merge, plain, suggest

Kind = Literal["preset", "benchmark", "backbone"]
_FOLDERS: dict[Kind, str] = {
    "preset": "presets",
    "benchmark": "overlays/benchmarks",
    "backbone": "overlays/backbones",
}


def names(kind: Kind) -> list[str]:
    """Names of the presets, benchmarks or backbones that have a file in the package."""
    return sorted(Path(entry.name).stem for entry in (resources.files("debgcd") / _FOLDERS[kind]).iterdir())


def compose(preset: str, benchmark: str | None = None, backbone: str | None = None) -> Config:
    """A preset, what a benchmark changes in it, what a backbone changes; the later wins.

    A benchmark's file has a section for each preset that it changes. Where nothing was released for it, `released` becomes
    `paper`, and so says the configuration's `preset`.
    """
    sections = {} if benchmark is None else _data("benchmark", benchmark)
    if benchmark is not None and preset == "released" and preset not in sections:
        preset = "paper"
    config = override(Config(preset=preset), _data("preset", preset), where=f"preset {preset}")
    # No file has a section for `small`: its values belong together, for a few hundred steps from a warm start, while the
    # benchmarks' own are for 200 epochs over all of their images.
    config = override(config, sections.get(preset, {}), where=f"benchmark {benchmark}")
    return config if backbone is None else override(config, _data("backbone", backbone), where=f"backbone {backbone}")


def _data(kind: Kind, name: str) -> dict[str, Any]:
    """The content of a preset's, benchmark's or backbone's file."""
    known = names(kind)
    if name not in known:
        raise UsageError(f"there is no {kind} {name!r}{suggest(name, known)}")
    text = (resources.files("debgcd") / _FOLDERS[kind] / f"{name}.yaml").read_text("utf-8")
    return yaml.safe_load(text)


def override(config: Config, values: Mapping[str, Any], where: str) -> Config:
    """The configuration with some fields replaced, checked; `where` names the origin in an error."""
    changed = merge(config, values, where)
    check(changed, where)
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


__all__ = [
    "AblationConfig",
    "BackboneConfig",
    "Config",
    "DebiasedConfig",
    "DetectorConfig",
    "GcdConfig",
    "HeadsConfig",
    "RunConfig",
    "ScheduleConfig",
    "ViewsConfig",
]
