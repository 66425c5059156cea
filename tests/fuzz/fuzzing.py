"""What the fuzz tests share: how many inputs, how files are damaged, and what may come out of a reader."""

from __future__ import annotations

import copy
import json
import os
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings

from debgcd.data.image.decode import Unusable
from debgcd.errors import DataError, UsageError

EXAMPLES = int(os.environ.get("DEBGCD_FUZZ", "30"))  # per test; `make soak` sets 10 000
GIGABYTE = 1_000_000_000
LONGEST = 2  # seconds of the processor, per input

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,  # by the clock, a busy machine would fail; `survives` looks at the process's own time
    derandomize="DEBGCD_FUZZ" not in os.environ,  # the same inputs on every run of the tests, others in each soak
    database=None,
    suppress_health_check=list(HealthCheck),
)

SPECIAL = [0, 1, -1, 2**31 - 1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"), True, False, None]
SPECIAL += ["", " ", "\0", "a" * 5000, "../..", "\ud800", "ä", [], {}, [[]], [None], {"": {}}]


def survives(read: Callable[[], Any]) -> None:
    """Call a reader; an answer and the errors that are said in words are fine, anything else fails the test."""
    begun = time.process_time()
    with suppress(UsageError, DataError, Unusable):
        read()
    assert time.process_time() - begun < LONGEST


@st.composite
def damaged(draw: st.DrawFn, originals: Sequence[bytes]) -> bytes:
    """A valid file with a few bytes changed, inserted, removed, repeated, or its end cut off."""
    content = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        length = draw(st.integers(0, 32))
        match draw(st.sampled_from(["flip", "set", "insert", "remove", "repeat", "cut"])):
            case "flip" if content:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "set":
                new = draw(st.sampled_from([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"]) | st.binary(max_size=8))
                content[at : at + len(new)] = new
            case "insert":
                content[at:at] = draw(st.binary(max_size=32))
            case "remove":
                del content[at : at + length]
            case "repeat":
                content[at:at] = content[at : at + length] * draw(st.integers(1, 50))
            case "cut":
                del content[at:]
    return bytes(content)


values = st.recursive(
    st.sampled_from(SPECIAL) | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@st.composite
def edited(draw: st.DrawFn, original: Any) -> Any:
    """A JSON value with one to three of its parts replaced, removed or added."""
    found = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, 3))):
        place = found
        while isinstance(place, dict | list) and place:
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or draw(st.booleans()):
                break
            place = place[key]
        if not isinstance(place, dict | list) or not place:
            break
        match draw(st.sampled_from(["replace", "remove", "add", "swap"])):
            case "replace":
                place[key] = copy.deepcopy(draw(values))  # some values are shared between draws
            case "remove":
                del place[key]
            case "add" if isinstance(place, dict):
                place[draw(st.text(max_size=8))] = copy.deepcopy(draw(values))
            case "swap" if isinstance(place, list):
                place.append(place.pop(key))
    return found


def peak_in_a_child(work: Callable[[], object]) -> int:
    """Bytes that `work` adds to the memory of a process that may not have a gigabyte of address space more."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + GIGABYTE,) * 2)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            work()
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            os.write(writer, str((after - before) * 1024).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, "rb") as file:
        said = file.read()
    assert said, "the process failed; its traceback is above"
    return int(said)
