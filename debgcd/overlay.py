"""Override values in a tree of frozen dataclasses with plain data; unknown keys and wrong types raise helpful errors."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from debgcd.errors import UsageError

Tree = TypeVar("Tree")


def merge(section: Tree, values: Mapping[str, Any], where: str, path: str = "") -> Tree:
    """The dataclass with the fields in `values` replaced; `where` names the source of the values in error messages."""
    hints = typing.get_type_hints(type(section))
    changes = {}
    for key, value in values.items():
        full = f"{path}{key}"
        if key not in hints:
            raise UsageError(f"{where}: unknown key {full!r}{suggest(str(key), list(hints))}")
        current = getattr(section, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise UsageError(f"{where}: {full} is a section; give it keys, not {value!r}")
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


def _convert(value: Any, hint: Any, where: str, full: str) -> Any:
    """A YAML value converted to the field's type, or a UsageError with the key, the value and what is allowed."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        if value is None and type(None) in arguments:
            return None
        (hint,) = (argument for argument in arguments if argument is not type(None))
        return _convert(value, hint, where, full)
    if origin is Literal:
        if isinstance(value, bool):  # YAML parses a bare on/off as a boolean
            value = "on" if value else "off"
        if value in arguments:
            return value
        raise UsageError(f"{where}: {full} must be one of {', '.join(map(str, arguments))}, not {value!r}")
    if origin is tuple:
        try:
            return tuple((float(x), float(y)) for x, y in value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{where}: {full} must be a list of [progress, share] pairs, not {value!r}") from error
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 parses 5e-5 as text
        except (ValueError, OverflowError):
            pass
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[hint]
    raise UsageError(f"{where}: {full} must be {kind}, not {value!r}")


def plain(value: Any) -> Any:
    """Convert tuples to lists recursively, for YAML and JSON."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def suggest(name: str, allowed: Sequence[str]) -> str:
    """ " (did you mean ...?)" for a misspelt name, or the allowed names if there are fewer than 20."""
    close = difflib.get_close_matches(name, allowed, n=1)
    return (
        f" (did you mean {close[0]!r}?)" if close else f" (allowed: {', '.join(allowed)})" if len(allowed) < 20 else ""
    )
