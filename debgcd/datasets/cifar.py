"""CIFAR-10 and CIFAR-100: python batches or binary batches.

The images come as arrays. They are written once as PNG files to the cache, in a folder named after their content.

CIFAR's python batches are pickles; `read_pickle` reads plain values from one without unpickling it."""

from __future__ import annotations

import hashlib
import os
import pickletools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from debgcd.datasets.facts import Facts, Listing, as_published, broken, find_folder, need
from debgcd.system.files import new_folder, turn
from debgcd.system.progress import Report, progress, waiting

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
    machine = _Machine()
    for opcode, argument, at in pickletools.genops(content):
        if opcode.name == "STOP":
            return machine.pop()
        if not (machine.push(opcode.name, argument) or machine.change(opcode.name, argument)):
            raise Refused(f"plain values do not need the opcode {opcode.name} at byte {at}")
    raise Refused("it has no end")


class _Machine:
    """The stack of a pickle, for those opcodes that plain values need."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[Any, Any] = {}

    def pop(self) -> Any:
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise Refused("it pops more from its stack than it pushed")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def push(self, step: str, argument: Any) -> bool:
        """Opcodes that put a value on the stack and take none off it; False: not one of them."""
        if step in PLAIN:
            self.stack.append(argument)
        elif step in CONSTANTS:
            self.stack.append(CONSTANTS[step])
        elif step in ("EMPTY_DICT", "EMPTY_LIST"):
            self.stack.append({} if step == "EMPTY_DICT" else [])
        elif step in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif step == "GLOBAL":
            self.stack.append(_name(str(argument)))
        else:
            return False
        return True

    def change(self, step: str, argument: Any) -> bool:
        """All other opcodes; False: one that plain values do not need."""
        stack, pop = self.stack, self.pop
        if step == "MARK":
            self.marks.append(len(stack))
        elif step == "TUPLE":
            stack.append(tuple(self.since_mark()))
        elif step in TUPLES:
            stack.append(tuple(reversed([pop() for _ in range(TUPLES[step])])))
        elif step in ("APPEND", "APPENDS"):
            _extend(stack, [pop()] if step == "APPEND" else self.since_mark())
        elif step in ("SETITEM", "SETITEMS"):
            _fill(stack, [pop(), pop()][::-1] if step == "SETITEM" else self.since_mark())
        elif step in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if step == "MEMOIZE" else argument] = stack[-1]
        elif step == "STACK_GLOBAL":
            second, first = pop(), pop()
            stack.append(_name(f"{first} {second}"))
        elif step == "REDUCE":
            arguments, function = pop(), pop()
            stack.append(_call(function, arguments))
        elif step == "BUILD":
            state = pop()
            _build(stack[-1], state)
        else:
            return step in ("PROTO", "FRAME")
        return True


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


SIDE = 32
PIXELS = SIDE * SIDE


@dataclass(frozen=True)
class Batch:
    """Images and their classes."""

    pixels: np.ndarray  # (N, 32, 32, 3) uint8
    labels: np.ndarray  # (N,) int64


Parts = tuple[list[str], Batch, Batch]  # class names, training images, test images


def cifar10(facts: Facts, root: Path, cache: Path) -> Listing:
    """data_batch_1 ... data_batch_5 and test_batch, with the suffix .bin or none."""
    return _read(facts, root, cache, {"data_batch_1": _python10, "data_batch_1.bin": _binary10})


def cifar100(facts: Facts, root: Path, cache: Path) -> Listing:
    """train and test, with the suffix .bin or none; classes are the fine ones."""
    return _read(facts, root, cache, {"train": _python100, "train.bin": _binary100})


def _read(facts: Facts, root: Path, cache: Path, forms: Mapping[str, Callable[[Facts, Path], Parts]]) -> Listing:
    folder = find_folder(facts, root, lambda place: any((place / sign).is_file() for sign in forms), " or ".join(forms))
    sign = next((sign for sign in forms if (folder / sign).is_file()), next(iter(forms)))
    names, train, test = forms[sign](facts, folder)
    if len(set(names)) != facts.classes:
        raise broken(facts, folder, f"{len(set(names))} class names, expected {facts.classes}")
    for images in (train, test):
        if len(images.labels) and not 0 <= images.labels.min() <= images.labels.max() < facts.classes:
            raise broken(facts, folder, f"a label is not in 0..{facts.classes - 1}")
    files = _as_files(cache, facts, train, test)
    rows = [
        tuple(zip(paths, images.labels.tolist(), strict=True))
        for paths, images in zip(files, (train, test), strict=True)
    ]
    return Listing(folder, tuple(names), rows[0], rows[1])


def _python10(facts: Facts, folder: Path) -> Parts:
    names = _names(facts, need(facts, folder, "batches.meta"), "label_names")
    batches = [_python_batch(facts, need(facts, folder, f"data_batch_{i}"), "labels") for i in range(1, 6)]
    return names, _join(batches), _python_batch(facts, need(facts, folder, "test_batch"), "labels")


def _python100(facts: Facts, folder: Path) -> Parts:
    names = _names(facts, need(facts, folder, "meta"), "fine_label_names")
    train, test = (_python_batch(facts, need(facts, folder, part), "fine_labels") for part in ("train", "test"))
    return names, train, test


def _python_dict(facts: Facts, path: Path) -> dict[str, Any]:
    with as_published(facts, path):
        content = read_pickle(path)
    if not isinstance(content, dict):
        raise broken(facts, path, "it does not hold a dict")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def _names(facts: Facts, path: Path, key: str) -> list[str]:
    names = _python_dict(facts, path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise broken(facts, path, f"it has no {key}")
    return [name.decode("latin1") if isinstance(name, bytes) else name for name in names]


def _python_batch(facts: Facts, path: Path, key: str) -> Batch:
    found = _python_dict(facts, path)
    data, labels = found.get("data"), found.get(key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * PIXELS,):
        raise broken(facts, path, f"its data are not rows of {3 * PIXELS} bytes")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(type(label) is int for label in labels):
        raise broken(facts, path, f"its {key} are not one integer per image ({len(data)})")
    return Batch(_planes(data), np.array(labels, dtype=np.int64))


def _binary10(facts: Facts, folder: Path) -> Parts:
    names = _lines(facts, folder, "batches.meta.txt")
    batches = [_binary_batch(facts, need(facts, folder, f"data_batch_{i}.bin"), 1) for i in range(1, 6)]
    return names, _join(batches), _binary_batch(facts, need(facts, folder, "test_batch.bin"), 1)


def _binary100(facts: Facts, folder: Path) -> Parts:
    train, test = (_binary_batch(facts, need(facts, folder, f"{part}.bin"), 2) for part in ("train", "test"))
    return _lines(facts, folder, "fine_label_names.txt"), train, test


def _binary_batch(facts: Facts, path: Path, labels: int) -> Batch:
    """Rows of `labels` bytes, of which the last is the (fine) class, and 3 × 1024 bytes of red, green and blue."""
    content = np.fromfile(path, np.uint8)
    if not content.size or content.size % (labels + 3 * PIXELS):
        raise broken(facts, path, f"its {content.size} bytes are not whole rows of {labels + 3 * PIXELS} bytes")
    rows = content.reshape(-1, labels + 3 * PIXELS)
    return Batch(_planes(rows[:, labels:]), rows[:, labels - 1].astype(np.int64))


def _lines(facts: Facts, folder: Path, name: str) -> list[str]:
    path = need(facts, folder, name)
    with as_published(facts, path):
        return [line.strip() for line in path.read_text("ascii").splitlines() if line.strip()]


def _planes(rows: np.ndarray) -> np.ndarray:
    """Red, green and blue plane of each image (N, 3072) -> (N, 32, 32, 3)."""
    return np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


def _join(batches: list[Batch]) -> Batch:
    return Batch(
        np.concatenate([batch.pixels for batch in batches]), np.concatenate([batch.labels for batch in batches])
    )


def _as_files(cache: Path, facts: Facts, train: Batch, test: Batch) -> tuple[list[str], list[str]]:
    """The image files of both parts, written unless a folder with the same pixels exists, from whatever form they were read."""
    parts = {"train": train.pixels, "test": test.pixels}
    digest = hashlib.sha256()
    for pixels in parts.values():
        digest.update(str(pixels.shape).encode())
        digest.update(np.ascontiguousarray(pixels).data)
    key = digest.hexdigest()[:16]
    place = Path(os.path.abspath(cache)) / "benchmarks"
    folder = place / f"{facts.name}-{key}"
    if not folder.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        with turn(place, key, waiting(f"{facts.title}: waiting for another process that is writing its image files")):
            if not folder.is_dir():  # not written by the other process
                with progress(f"writing {facts.title} as image files") as report, new_folder(folder) as beside:
                    _write(parts, beside, report)
    names = {part: [os.path.join(folder, part, f"{i:05d}.png") for i in range(len(parts[part]))] for part in parts}
    return names["train"], names["test"]


def _write(parts: dict[str, np.ndarray], folder: Path, report: Report) -> None:
    done, total = 0, sum(map(len, parts.values()))
    for part, images in parts.items():
        (folder / part).mkdir()
        for i, pixels in enumerate(images):
            Image.fromarray(pixels).save(folder / part / f"{i:05d}.png", compress_level=1)
            done += 1
            if done % 1000 == 0 or done == total:
                report(done, total)
    os.sync()  # before the folder gets its name: otherwise a power cut could leave a complete name with empty files
