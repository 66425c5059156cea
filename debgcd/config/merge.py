"""Read YAML safely, and override values in a tree of frozen dataclasses with it; unknown keys and wrong types are refused."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import yaml

from debgcd.errors import UsageError, suggest
from debgcd.system.files import MAX_DEPTH

MAX_YAML = 1_000_000  # characters; a complete configuration has 4 000
MAX_DIGITS = 200  # Python does not print numbers of thousands of digits
_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-FxX_:]*")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # both safe; libyaml's is ten times as fast

Tree = TypeVar("Tree")


def merge(section: Tree, values: Mapping[str, Any], where: str, path: str = "") -> Tree:
    """The dataclass with the fields in `values` replaced; `where` names the source of the values in error messages."""
    hints = typing.get_type_hints(type(section))
    changes = {}
    for key, value in values.items():
        full = f"{path}{key}"
        if key not in hints:
            raise UsageError(f"{where}: unknown key {shown(full)}{suggest(str(key), list(hints))}")
        current = getattr(section, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise UsageError(f"{where}: {full} is a section; give it keys, not {shown(value)}")
            changes[key] = merge(current, value, where, path=f"{full}.")
        else:
            changes[key] = _convert(value, hints[key], where, full)
    return dataclasses.replace(section, **changes)  # type: ignore[type-var]


def keys(tree: type) -> set[str]:
    """The names of a dataclass's fields."""
    return {field.name for field in dataclasses.fields(tree)}


def fitting(section: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the values that the dataclass has fields for."""
    found = {}
    for key, value in values.items():
        if key in keys(type(section)):
            inner = getattr(section, key)
            found[key] = fitting(inner, value) if dataclasses.is_dataclass(inner) else value
    return found


def _convert(value: Any, hint: Any, where: str, full: str, words: Sequence[str] = ()) -> Any:
    """A YAML value converted to the field's type, or a UsageError with the key, the value and what is allowed.

    words: texts that stand for a value too, such as "auto" for a number.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        kinds = [argument for argument in arguments if argument is not type(None)]
        if value is None and len(kinds) < len(arguments):
            return None
        if len(kinds) == 2:  # a number or a word
            (hint,) = (kind for kind in kinds if typing.get_origin(kind) is not Literal)
            words = [word for kind in kinds for word in typing.get_args(kind)]
            return value if value in words else _convert(value, hint, where, full, words)
        return _convert(value, kinds[0], where, full)
    if origin is Literal:
        if isinstance(value, bool):  # YAML parses a bare on/off as a boolean
            value = "on" if value else "off"
        if value in arguments:
            return value
        raise UsageError(f"{where}: {full} must be one of {', '.join(map(str, arguments))}, not {shown(value)}")
    if origin is tuple:
        pairs = arguments[0] is not float
        try:
            if pairs:
                return tuple((float(x), float(y)) for x, y in value)
            return tuple(float(item) for item in value)
        except (TypeError, ValueError, OverflowError) as error:
            kind = "[progress, share] pairs" if pairs else "numbers"
            raise UsageError(f"{where}: {full} must be a list of {kind}, not {shown(value)}") from error
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 parses 5e-5 as text
        except (ValueError, OverflowError):
            pass
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[hint]
    raise UsageError(f"{where}: {full} must be {' or '.join([kind, *words])}, not {shown(value)}")


def plain(value: Any) -> Any:
    """Convert tuples to lists recursively, for YAML and JSON."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def shown(value: Any) -> str:
    """A value as an error message quotes it: at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def parse_yaml(text: str, aliases: bool = False) -> Any:
    """A YAML text's value; a ValueError says what is wrong with it. The only reader of YAML in the package.

    Refused before anything is built: a text that is too long, nested too deeply or, unless it is one of the package's own
    files, has aliases, which can stand for any number of values ("billion laughs").
    """
    if len(text) > MAX_YAML:
        raise ValueError(f"it is longer than {MAX_YAML // 10**6} million characters")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
            if isinstance(event, yaml.AliasEvent) and not aliases:
                raise ValueError(f"it has the alias *{event.anchor}; write the values out")
            if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_DIGITS and _NUMBER.fullmatch(event.value):
                raise ValueError(f"a number in it has more than {MAX_DIGITS} digits")
        loader = _LOADER(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except ValueError:
        raise
    except Exception as error:  # PyYAML raises almost anything on a value that does not fit its tag, e.g. !!bool 7
        raise ValueError(f"a value does not fit its tag ({type(error).__name__}: {error})") from error
