"""The configuration of a run: how presets and what is laid over them become one, and how it is checked, read and written.

The fields are those of `debgcd.config.schema` and of the method's own `Options`. A preset is YAML data that overrides a few of
them. Over it go, as YAML data too, what a quality, a method, a benchmark and a backbone change; `compose` does that. A comment behind
a value is its reason. Unknown keys are refused with a suggestion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from debgcd.config.merge import MAX_YAML, fitting, keys, merge, parse_yaml, plain, shown
from debgcd.config.schema import Config
from debgcd.errors import UsageError, suggest
from debgcd.methods import METHODS, require_method, usable
from debgcd.system.files import readable

__all__ = [
    "ADDED",
    "Config",
    "Layer",
    "assignment",
    "compose",
    "dump",
    "fitted",
    "from_dict",
    "layers",
    "leaves",
    "load",
    "names",
    "nested",
    "override",
    "override_all",
    "own_keys",
    "read_yaml",
    "reasons",
    "to_dict",
    "without",
]

Name = str | None  # of a file in the package, or of none
Kind = Literal["preset", "quality", "method", "benchmark", "backbone"]
_FOLDERS: dict[Kind, str] = {
    "preset": "presets",
    "quality": "overlays/quality",
    "method": "overlays/methods",
    "benchmark": "overlays/benchmarks",
    "backbone": "overlays/backbones",
}
EVERY = "every"  # in a benchmark's file: the values that all methods take
# The public loaders of the benchmarks do not look at EXIF, so that results to compare with must not either.
AS_STORED = {"views": {"upright": False}}


@dataclass(frozen=True)
class Layer:
    """Values that are laid over others, and where they come from."""

    where: str  # "preset small", "benchmark cub", ...
    values: Mapping[str, Any]
    reasons: Mapping[str, str]  # by dotted key; where there is none, the field's own reason holds


def names(kind: Kind) -> list[str]:
    """Names of the presets, qualities, methods, benchmarks or backbones that have a file in the package."""
    return sorted(Path(entry.name).stem for entry in (resources.files("debgcd.config") / _FOLDERS[kind]).iterdir())


def compose(
    preset: str, benchmark: Name = None, backbone: Name = None, *, method: str = "debgcd", quality: Name = None
) -> Config:
    """A preset, then what the quality, the method, the benchmark and the backbone change; the later wins.

    quality: of `small`; None: balanced, its own.
    backbone: a short name with values of its own (dino, dinov2), or any other that a run may have.

    Where nothing was released for a benchmark, `released` becomes `paper`, and so says the configuration's `preset`.
    """
    require_method(method)
    preset, found = layers(preset, benchmark, backbone, method=method, quality=quality)
    config = Config(preset=preset, method=method, options=METHODS[method].Options())
    for layer in found:  # a preset is for all methods: each takes what it has an option for
        config = _lay(config, _part_for(config, layer.values), layer.where)
    _check(config, [({}, f"preset {preset}"), *((layer.values, layer.where) for layer in found)])
    return config


def layers(
    preset: str, benchmark: Name = None, backbone: Name = None, *, method: str = "debgcd", quality: Name = None
) -> tuple[str, list[Layer]]:
    """What `compose` lays over the defaults, in order, and the preset it came to.

    Files of methods and benchmarks have a section per preset. A benchmark's section has one per method again, and `every`
    for values that all methods take. Only a method's file may have a section for `small`: that preset's values belong
    together, for a few hundred steps from a warm start, while a benchmark's are for 200 epochs over all images.
    """
    published = None if benchmark is None else _layer("benchmark", benchmark)
    if published is not None and preset == "released" and not {EVERY, method} & set(published.values.get(preset, {})):
        preset = "paper"
    found = [_layer("preset", preset)]
    if quality is not None:
        if preset != "small":
            raise UsageError(
                f"quality {quality} is for the preset small, not for {preset}; omit it, or choose that preset"
            )
        found.append(_layer("quality", quality))
    if method in names("method"):
        found.append(_part(_layer("method", method), preset))
    if published is not None:
        if preset in published.values:
            found.append(Layer("published images", AS_STORED, {"views.upright": "the public loaders ignore EXIF"}))
        section = _part(published, preset)
        found += [_part(section, EVERY), _part(section, method)]
    if backbone in names("backbone"):
        found.append(_layer("backbone", backbone))
    elif backbone is not None:
        found.append(Layer(f"backbone {backbone}", {"backbone": {"name": backbone}}, {}))
    return preset, [layer for layer in found if layer.values]


@cache  # a command asks for the same few files many times, and reading their comments takes milliseconds
def _layer(kind: Kind, name: str) -> Layer:
    """The content of a preset's, quality's, method's, benchmark's or backbone's file."""
    known = names(kind)
    if name not in known:
        raise UsageError(f"there is no {kind} {name!r}{suggest(name, known)}")
    text = (resources.files("debgcd.config") / _FOLDERS[kind] / f"{name}.yaml").read_text("utf-8")
    return Layer(f"{kind} {name}", parse_yaml(text, aliases=True), _comments(text))


def own_keys(method: str) -> set[str]:
    """The dotted keys that the package's files set for this method alone, for any preset or benchmark."""
    sections = list(_layer("method", method).values.values()) if method in names("method") else []
    for benchmark in names("benchmark"):
        sections += [section.get(method) for section in _layer("benchmark", benchmark).values.values()]
    return {key for section in sections for key in leaves(section or {})}


def _part(layer: Layer, key: str) -> Layer:
    """One section of a layer as a layer; an empty one where it has no such section."""
    prefix = f"{key}."
    reasons = {name.removeprefix(prefix): why for name, why in layer.reasons.items() if name.startswith(prefix)}
    return Layer(layer.where, layer.values.get(key) or {}, reasons)


def _comments(text: str) -> dict[str, str]:
    """The comment behind each value of a YAML text, by dotted key."""
    lines = text.splitlines()

    def walk(node: yaml.Node, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, yaml.MappingNode) and node.value:
            for key, value in node.value:
                merged = key.value == "<<"  # the same values in another section
                yield from walk(value, path if merged else f"{path}.{key.value}" if path else key.value)
        else:
            _, mark, comment = lines[node.end_mark.line][node.end_mark.column :].partition("#")
            if mark:
                yield path, comment.strip()

    return dict(walk(yaml.compose(text, Loader=yaml.SafeLoader), ""))


COMMON = keys(Config) - {"options"}


def _own(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that only a method's options can hold."""
    return {key: value for key, value in values.items() if key not in COMMON}


def _part_for(config: Config, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that the configuration's method has a field for."""
    return {key: value for key, value in values.items() if key in COMMON} | fitting(config.options, values)


def _lay(config: Config, values: Mapping[str, Any], where: str) -> Config:
    """Values laid over a configuration, not yet checked."""
    config = merge(config, {key: value for key, value in values.items() if key in COMMON}, where)
    require_method(config.method)
    chosen = METHODS[config.method].Options
    if keys(chosen) & COMMON:
        raise TypeError(f"{chosen.__name__} has fields with names that every run has: {sorted(keys(chosen) & COMMON)}")
    if type(config.options) is not chosen:  # another method: what both have keeps its values
        before = {} if config.options is None else plain(dataclasses.asdict(config.options))
        config = replace(config, options=merge(chosen(), fitting(chosen(), before), where))
    for key in _own(values):
        if key not in keys(chosen):
            owners = [name for name, method in usable().items() if key in keys(method.Options)]
            hint = (
                f" (an option of {', '.join(owners)})" if owners else suggest(str(key), sorted(COMMON | keys(chosen)))
            )
            raise UsageError(f"{where}: unknown key {shown(str(key))} for method {config.method}{hint}")
    return replace(config, options=merge(config.options, _own(values), where))


def override(config: Config, values: Mapping[str, Any], where: str) -> Config:
    """The configuration with some fields replaced, checked; `where` names the origin in an error."""
    return override_all(config, [(values, where)])


def override_all(config: Config, changes: Sequence[tuple[Mapping[str, Any], str]]) -> Config:
    """The configuration with several (values, where) laid over it in order, and checked when all are there."""
    for values, where in changes:
        config = _lay(config, values, where)
    _check(config, changes)
    return config


def fitted(config: Config, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The part of the values that the configuration's method has options for; refused where no method has one."""
    known = set(leaves(to_dict(config)))
    for method in usable().values():
        known |= set(leaves(plain(dataclasses.asdict(method.Options()))))
    for key in leaves(values):
        if key not in known:
            raise UsageError(f"{where}: unknown key {shown(key)}{suggest(key, sorted(known))}")
    return _part_for(config, values)


def _check(config: Config, changes: Sequence[tuple[Mapping[str, Any], str]]) -> None:
    """Refuse a value out of its range, and values that contradict each other; the error names who set it last."""

    def where(*keys: str) -> str:
        named = [where for values, where in changes if set(leaves(values)) & set(keys)]
        return named[-1] if named else changes[-1][1]

    for key, value, metadata in _fields(config):
        allowed = metadata.get("range")
        if allowed is not None and not isinstance(value, str | None) and not allowed[0] <= value <= allowed[1]:
            limits = f"between {allowed[0]:.10g} and {allowed[1]:.10g}"
            raise UsageError(f"{where(key)}: {key} must be {limits}, not {shown(value)}")
    size, resize = config.views.size, config.views.resize
    if size != "auto" and resize != "auto" and size > resize:
        raise UsageError(
            f"{where('views.size', 'views.resize')}: views.size {size} is larger than views.resize {resize}; a crop "
            "cannot be larger than the resized image"
        )
    method = METHODS[config.method]
    if config.extras.eagc and (method.clusters or not method.trains):
        raise UsageError(
            f"{where('extras.eagc_align', 'extras.eagc_project')}: extras are for methods that train a classifier, and "
            f"{config.method} does not; leave them out"
        )
    contradiction = config.options.contradiction()
    if contradiction is not None:
        raise UsageError(f"{changes[-1][1]}: {contradiction}")


def assignment(text: str) -> dict[str, Any]:
    """`--set detector.weight=0.1` as the nested mapping that `override` takes."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set takes KEY=VALUE, e.g. detector.weight=0.1, not {text!r}")
    try:
        return nested(key.strip(), parse_yaml(value))
    except ValueError as error:
        raise UsageError(f"--set {text!r:.80} has a value that is not YAML ({error}); quote it") from error


def nested(key: str, value: Any) -> dict[str, Any]:
    """The value of a dotted key as the nested mapping that `override` takes."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping, or an error that says where it is broken."""
    if not path.exists():
        raise UsageError(f"there is no configuration file {path}")
    with (
        readable(f"the configuration file {path}", "write it again as UTF-8 text"),
        open(path, encoding="utf-8") as file,
    ):
        text = file.read(MAX_YAML + 1)
    try:
        values = parse_yaml(text)
    except ValueError as error:
        raise UsageError(f"{path} is not valid YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold a mapping of sections to values, not a {type(values).__name__}")
    return values


def to_dict(config: Config) -> dict[str, Any]:
    """The complete configuration as plain data, in the order of the fields."""
    found: dict[str, Any] = {}
    for name, value in plain(dataclasses.asdict(config)).items():
        found |= value if name == "options" else {name: value}
    return found


def leaves(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested plain data as dotted keys and their values."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= leaves(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


def without(data: Mapping[str, Any], dropped: set[str], path: str = "") -> dict[str, Any]:
    """Nested plain data less these dotted keys."""
    return {
        key: without(value, dropped, f"{path}{key}.") if isinstance(value, dict) else value
        for key, value in data.items()
        if f"{path}{key}" not in dropped
    }


def reasons(config: Config, found: list[Layer]) -> dict[str, str]:
    """Why each value of `compose` is what it is, by dotted key: the reason and, where a layer set it, which one."""
    why = {key: metadata.get("why", "") for key, _, metadata in _fields(config)}
    for layer in found:
        for key in leaves(layer.values):
            if key in why:
                why[key] = f"{layer.reasons.get(key, why[key])} [{layer.where}]"
    return why


def _fields(section: Any, path: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """The dotted key, the value and the metadata of each field."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from _fields(value, path if field.name == "options" else f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", value, field.metadata


def dump(config: Config) -> str:
    """The complete configuration as YAML, in the order of the fields."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def load(path: Path) -> Config:
    """A configuration written by `dump`."""
    return from_dict(read_yaml(path), where=str(path))


# Options that were added: every run written before behaves as with these values.
ADDED: dict[str, Any] = {"schedule.lr_falls": None, "schedule.labelled": "half", "answer": "classifier"}


def from_dict(values: Mapping[str, Any], where: str) -> Config:
    """A configuration from what `to_dict` gave; a missing key is an error, because its default may have changed."""
    given = leaves(values)
    for key in ADDED.keys() - given.keys():
        section, _, name = key.rpartition(".")
        own = {name: ADDED[key]}
        within = values.get(section, {})
        if not section:
            values = {**values, **own}
        elif isinstance(within, Mapping):  # the wrong type of a section is told below
            values = {**values, section: {**within, **own}}
    # Options that were removed: every run written before has them, and with these values they had no effect.
    removed = {"extras.bia_weight": 0, "backbone.tail_blocks": given.get("backbone.tuned_blocks")}
    values = without(values, {key for key, value in removed.items() if key in given and given[key] in (None, value)})
    config = override(Config(), values, where)
    missing = sorted(set(leaves(to_dict(config))) - set(leaves(values)))
    if missing:
        raise UsageError(f"{where}: {missing[0]} is missing, and {len(missing) - 1} others")
    return config
