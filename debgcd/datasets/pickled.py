"""Plain values from a pickle without unpickling it: CIFAR's python batches are pickles.

A pickle is a program that may call anything. `pickletools` only disassembles it; this file interprets the opcodes that
arrays, numbers, strings, lists, tuples and dicts need, and refuses every other one. The few numpy functions named in
such pickles are not called either: their results are built from their arguments.
"""

from __future__ import annotations

import pickletools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RECONSTRUCT = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
FROM_BUFFER = {"numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer"}
NAMES = {"numpy ndarray", "numpy dtype", "_codecs encode", *RECONSTRUCT, *FROM_BUFFER}

PLAIN = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BYTEARRAY8"),
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Refused(ValueError):
    """A pickle that is damaged or holds more than plain values."""


@dataclass(frozen=True)
class _Name:
    text: str


@dataclass
class _Array:
    value: np.ndarray | None = None


@dataclass
class _Type:
    code: str  # "u1"
    order: str = "|"


def read_pickle(path: Path) -> Any:
    """The value in a pickle: dicts, lists, tuples, strings, bytes, numbers and arrays; anything else is Refused."""
    content = path.read_bytes()
    try:
        return _value(_run(content))
    except Refused:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, MemoryError) as error:
        raise Refused(f"not a pickle of plain values: {error}") from error


def _run(content: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    def pop() -> Any:
        if marks and len(stack) <= marks[-1]:
            raise Refused("it pops more from its stack than it pushed")
        return stack.pop()

    for opcode, argument, at in pickletools.genops(content):
        step = opcode.name
        if step in PLAIN:
            stack.append(argument)
        elif step in CONSTANTS:
            stack.append(CONSTANTS[step])
        elif step in ("PROTO", "FRAME"):
            continue
        elif step == "MARK":
            marks.append(len(stack))
        elif step == "EMPTY_DICT":
            stack.append({})
        elif step == "EMPTY_LIST":
            stack.append([])
        elif step == "TUPLE":
            stack.append(tuple(since_mark()))
        elif step in TUPLES:
            stack.append(tuple(reversed([pop() for _ in range(TUPLES[step])])))
        elif step in ("APPEND", "APPENDS"):
            _extend(stack, [pop()] if step == "APPEND" else since_mark())
        elif step in ("SETITEM", "SETITEMS"):
            _fill(stack, [pop(), pop()][::-1] if step == "SETITEM" else since_mark())
        elif step in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif step == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif step in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif step == "GLOBAL":
            stack.append(_name(str(argument)))
        elif step == "STACK_GLOBAL":
            second, first = pop(), pop()
            stack.append(_name(f"{first} {second}"))
        elif step == "REDUCE":
            arguments, function = pop(), pop()
            stack.append(_call(function, arguments))
        elif step == "BUILD":
            state = pop()
            _build(stack[-1], state)
        elif step == "STOP":
            return pop()
        else:
            raise Refused(f"plain values do not need the opcode {step} at byte {at}")
    raise Refused("it has no end")


def _extend(stack: list[Any], items: list[Any]) -> None:
    if type(stack[-1]) is not list:
        raise Refused("it appends to something other than a list")
    stack[-1].extend(map(_value, items))


def _fill(stack: list[Any], items: list[Any]) -> None:
    keys = items[::2]
    # plain keys only: hashing a deeply nested tuple can overflow the C stack
    if type(stack[-1]) is not dict or len(items) % 2 or any(type(key) not in (str, bytes, int) for key in keys):
        raise Refused("it fills something other than a dict, or with keys that are not plain")
    stack[-1].update(zip(keys, map(_value, items[1::2]), strict=True))


def _name(text: str) -> _Name:
    if text not in NAMES:
        raise Refused(f"plain values do not need {text.replace(' ', '.')!r}")
    return _Name(text)


def _call(function: Any, arguments: Any) -> Any:
    """What one of the allowed functions would return for these arguments."""
    name = function.text if isinstance(function, _Name) else ""
    if name in RECONSTRUCT:
        return _Array()
    if name in FROM_BUFFER:
        buffer, kind, shape, order = arguments
        return _Array(_array(buffer, kind, shape, order == "F"))
    if name == "numpy dtype":
        code = arguments[0]
        if not re.fullmatch(r"[uif][1248]", code):
            raise Refused(f"it holds an array of the type {code!r}, which is not numeric")
        return _Type(code)
    if name == "_codecs encode" and arguments[1] == "latin1":
        return str(arguments[0]).encode("latin1")
    raise Refused("it calls something other than numpy's array functions")


def _build(target: Any, state: Any) -> None:
    if isinstance(target, _Type):
        if state[1] not in ("|", "<", ">"):
            raise Refused(f"it holds an array with the byte order {state[1]!r}")
        target.order = state[1]
    elif isinstance(target, _Array):
        _, shape, kind, fortran, raw = state
        target.value = _array(raw, kind, shape, fortran)
    else:
        raise Refused("it modifies something other than an array")


def _array(raw: str | bytes | bytearray, kind: Any, shape: Any, fortran: Any) -> np.ndarray:
    if not isinstance(kind, _Type) or any(type(side) is not int or side < 0 for side in shape):
        raise Refused("it holds an array without a plain type or shape")
    content = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)  # strings of Python 2 are bytes
    flat = np.frombuffer(content, np.dtype(kind.order + kind.code))
    return flat.reshape(shape, order="F" if fortran else "C")


def _value(item: Any) -> Any:
    if isinstance(item, _Array) and item.value is not None:
        return item.value
    if isinstance(item, _Array | _Type | _Name):
        raise Refused("it holds something other than plain values")
    return item
