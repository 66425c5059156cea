"""CIFAR's pickles are read as data: whatever a file says, nothing of it is ever called."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import miniatures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from miniatures import python2_pickle

from debgcd.datasets.cifar import Refused, read_pickle

PIXELS = np.arange(2 * 12, dtype=np.uint8).reshape(2, 12)
BATCH: dict[bytes, Any] = {b"batch_label": b"training batch 1 of 5", b"labels": [6, 300, 70000], b"data": PIXELS}


def read(tmp_path: Path, content: bytes) -> Any:
    (tmp_path / "batch").write_bytes(content)
    return read_pickle(tmp_path / "batch")


def test_the_original_format(tmp_path: Path) -> None:
    found = read(tmp_path, python2_pickle(BATCH))
    assert list(found) == ["batch_label", "labels", "data"]  # Python 2's byte strings are texts here
    assert found["batch_label"] == "training batch 1 of 5"
    assert found["labels"] == [6, 300, 70000]
    assert found["data"].dtype == np.uint8 and np.array_equal(found["data"], PIXELS)


def test_the_miniatures_pickles_are_pickles() -> None:
    """What the test writes by hand, Python itself reads, so it is the format."""
    old = python2_pickle(BATCH).replace(b"numpy.core.multiarray", b"numpy._core.multiarray")
    found = pickle.loads(old, encoding="bytes")
    assert np.array_equal(found[b"data"], PIXELS) and found[b"labels"] == BATCH[b"labels"]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_same_written_by_todays_python(tmp_path: Path, protocol: int) -> None:
    more = {
        "floats": np.array([[0.5, 2.0]], np.float32),
        "big": np.array([1, 70000], ">i4"),
        "fortran": np.asfortranarray(PIXELS),
    }
    found = read(
        tmp_path, pickle.dumps(BATCH | more | {"pair": (1, (2.5, None), True), "long": 2**40, "empty": ()}, protocol)
    )
    assert found[b"labels"] == BATCH[b"labels"] and found[b"batch_label"] == BATCH[b"batch_label"]
    assert np.array_equal(found[b"data"], PIXELS)
    for name, array in more.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)
    assert (found["pair"], found["long"], found["empty"]) == ((1, (2.5, None), True), 2**40, ())


class Evil:
    """What it calls when it is unpickled leaves a mark on the disk."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("deep", [False, True])
def test_nothing_is_called(tmp_path: Path, protocol: int, deep: bool) -> None:
    mark = tmp_path / "mark"
    for evil in (
        Evil(os.system, f"touch {mark}"),
        Evil(os.mkdir, str(mark)),
        Evil(eval, f"open({str(mark)!r}, 'w')"),
        Evil(exec, f"open({str(mark)!r}, 'w')"),
        Evil(io.open, str(mark), "w"),
        Evil(np.load, str(mark), None, True),
        Evil(getattr, os, "system"),
    ):
        try:
            content = pickle.dumps({"data": PIXELS, "labels": [evil]} if deep else evil, protocol)
        except (pickle.PicklingError, TypeError):  # a module cannot be pickled at all
            continue
        with pytest.raises(Refused):
            read(tmp_path, content)
        assert not mark.exists()


# Pickles by hand that misuse what is admitted.
HARMFUL = {
    "global of numpy": b"\x80\x02cnumpy\nload\n.",
    "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0ddtype.__class__\x93.",
    "codecs with another codec": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
    "codecs' decode": b"\x80\x02c_codecs\ndecode\n.",
    "array of objects": b"\x80\x02cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R.",
    "a name as value": b"\x80\x02cnumpy\nndarray\n.",
    "an array that is never filled": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R.",
    "a call of a text": b"\x80\x02U\x02os)R.",
    "a change of a list": b"\x80\x02]}b.",
    "an instance": b"(i__main__\nEvil\n.",
    "an object": b"\x80\x02c__main__\nEvil\n)\x81.",
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent id": b"Pfile\n.",
    "a buffer from outside": b"\x80\x05\x97.",
    "nothing on the stack": b"\x80\x020.",
    "a mark that was never set": b"\x80\x02t.",
    "below the mark": b"\x80\x02K\x01(\x85.",
    "a memory that is empty": b"\x80\x02h\x07.",
    "a tuple as key": b"\x80\x02}()K\x01u.",
    "a list as key": b"\x80\x02}(]K\x01u.",
    "half a pair": b"\x80\x02}(K\x01u.",
    "no end": b"\x80\x02K\x01",
    "no pickle": b"not a pickle",
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("case", HARMFUL)
def test_misuse(tmp_path: Path, case: str) -> None:
    with pytest.raises(Refused):
        read(tmp_path, HARMFUL[case])


def test_shapes_that_lie(tmp_path: Path) -> None:
    good = python2_pickle({b"data": PIXELS})
    shape = good.index(b"(K\x01K\x02K\x0c\x86")
    for sides in (
        b"K\x03K\x0c",
        b"K\x02K\x0d",
        b"J\xff\xff\xff\xffK\x0c",
        b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f",
        b"NN",
        b"U\x012K\x0c",
    ):
        with pytest.raises(Refused):
            read(tmp_path, good[: shape + 3] + sides + good[shape + 7 :])


def test_a_deep_nest_does_not_exhaust_the_stack(tmp_path: Path) -> None:
    """Very many tuples within each other, as a value and as a key, whose hash would recurse."""
    nest = b")" + b"\x85" * 200_000
    assert isinstance(read(tmp_path, b"\x80\x02" + nest + b"."), tuple)
    with pytest.raises(Refused):
        read(tmp_path, b"\x80\x02}" + nest + b"K\x01s.")


def test_every_cut_is_refused(tmp_path: Path) -> None:
    good = python2_pickle(BATCH)
    for end in range(len(good)):
        with pytest.raises(Refused):
            read(tmp_path, good[:end])


@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), steps=st.integers(1, 3))
def test_any_change_gives_plain_values_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, steps: int
) -> None:
    content = bytearray(python2_pickle(BATCH))
    for step in range(steps):
        content[(at * (step + 1)) % len(content)] = byte
    try:
        found = read(tmp_path_factory.getbasetemp(), bytes(content))
    except Refused:
        return
    assert type(found) in (dict, list, tuple, str, bytes, bytearray, int, float, bool, type(None), np.ndarray)


def test_only_pickletools_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own unpicklers are not used, not even a restricted one."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("an unpickler was used")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, fail)
    calls = []
    genops = pickletools.genops
    monkeypatch.setattr(pickletools, "genops", lambda content: calls.append(1) or genops(content))
    assert read(tmp_path, python2_pickle(BATCH))["labels"] == BATCH[b"labels"] and calls


def test_an_evil_batch_is_named(tmp_path: Path) -> None:
    from debgcd.datasets import read_benchmark
    from debgcd.errors import DataError

    made = miniatures.cifar10(tmp_path / "sets")
    (made.folder / "data_batch_3").write_bytes(pickle.dumps(Evil(os.system, f"touch {tmp_path / 'mark'}"), 2))
    with pytest.raises(
        DataError,
        match=r"data_batch_3 is not as published \(it cannot be read: plain values do not need 'posix\.system'",
    ):
        read_benchmark("cifar10", tmp_path / "sets", tmp_path / "cache")
    assert not (tmp_path / "mark").exists()
