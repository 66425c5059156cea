"""Plain values out of a pickle, without unpickling: CIFAR's python batches are such files.

A pickle is a program that may call anything. Here `pickletools` only takes it apart; what its steps mean is done by hand
and for arrays, numbers, texts, lists, tuples and dicts alone. The few functions that numpy's pickles name are not called
either: what they would build is built from their arguments. Every other step is refused.
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
    """A pickle that is damaged, or that wants more than plain values."""


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
    """The value in a pickle: dicts, lists, tuples, texts, bytes, numbers and arrays; else Refused."""
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
            raise Refused("it takes more from its stack than it has put there")
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
            raise Refused(f"the step {step} at byte {at} is not one that plain values need")
    raise Refused("it has no end")


def _extend(stack: list[Any], items: list[Any]) -> None:
    if type(stack[-1]) is not list:
        raise Refused("it appends to what is no list")
    stack[-1].extend(map(_value, items))


def _fill(stack: list[Any], items: list[Any]) -> None:
    keys = items[::2]
    # plain keys only: the hash of a deeply nested tuple can exhaust the machine's stack
    if type(stack[-1]) is not dict or len(items) % 2 or any(type(key) not in (str, bytes, int) for key in keys):
        raise Refused("it fills what is no dict, or under keys that are no texts")
    stack[-1].update(zip(keys, map(_value, items[1::2]), strict=True))


def _name(text: str) -> _Name:
    if text not in NAMES:
        raise Refused(f"it wants to use {text.replace(' ', '.')!r}, which plain values do not need")
    return _Name(text)


def _call(function: Any, arguments: Any) -> Any:
    """What one of the admitted names would return for these arguments."""
    name = function.text if isinstance(function, _Name) else ""
    if name in RECONSTRUCT:
        return _Array()
    if name in FROM_BUFFER:
        buffer, kind, shape, order = arguments
        return _Array(_array(buffer, kind, shape, order == "F"))
    if name == "numpy dtype":
        code = arguments[0]
        if not re.fullmatch(r"[uif][1248]", code):
            raise Refused(f"it holds an array of the type {code!r}, which is no number")
        return _Type(code)
    if name == "_codecs encode" and arguments[1] == "latin1":
        return str(arguments[0]).encode("latin1")
    raise Refused("it calls what is no function of arrays")


def _build(target: Any, state: Any) -> None:
    if isinstance(target, _Type):
        if state[1] not in ("|", "<", ">"):
            raise Refused(f"it holds an array of the byte order {state[1]!r}")
        target.order = state[1]
    elif isinstance(target, _Array):
        _, shape, kind, fortran, raw = state
        target.value = _array(raw, kind, shape, fortran)
    else:
        raise Refused("it changes what is no array")


def _array(raw: str | bytes | bytearray, kind: Any, shape: Any, fortran: Any) -> np.ndarray:
    if not isinstance(kind, _Type) or any(type(side) is not int or side < 0 for side in shape):
        raise Refused("it holds an array without a plain type or shape")
    content = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)  # Python 2's texts are bytes
    flat = np.frombuffer(content, np.dtype(kind.order + kind.code))
    return flat.reshape(shape, order="F" if fortran else "C")


def _value(item: Any) -> Any:
    if isinstance(item, _Array) and item.value is not None:
        return item.value
    if isinstance(item, _Array | _Type | _Name):
        raise Refused("it holds something that is no plain value")
    return item
