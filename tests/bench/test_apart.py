"""Work in a process of its own, and how much memory it had."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from debgcd.errors import DebgcdError

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import memory
from memory import Peak, anonymous_bytes, apart

pytestmark = pytest.mark.skipif(anonymous_bytes() is None, reason="this system does not tell RssAnon")
MIB = 2**20


def fill(mebibytes: int) -> int:
    """Fills memory and lets go of it again."""
    return int(np.ones(mebibytes * MIB, np.uint8)[0]) and os.getpid()


def die() -> None:
    os._exit(7)


def test_the_peak_is_that_of_the_other_process() -> None:
    pid, peak = apart(fill, 300)
    assert pid != os.getpid()
    assert peak is not None and 300 * MIB < peak < 700 * MIB


def test_a_process_that_dies_is_an_error() -> None:
    with pytest.raises(DebgcdError, match="die ended with code 7"):
        apart(die)


def test_memory_counts_though_it_is_let_go_of() -> None:
    with Peak() as peak:
        before = peak.bytes
        content = np.ones(200 * MIB, np.uint8)
        peak._look()  # the thread looks by the clock, and a test does not wait
        del content
    assert before is not None and peak.bytes is not None
    assert peak.bytes > before + 150 * MIB


def test_pages_of_a_mapped_file_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(200 * MIB))
    with Peak() as peak:
        before = peak.bytes
        mapped = np.memmap(tmp_path / "x", np.uint8, "r")
        assert mapped.sum() == 0  # every page was read
        peak._look()
    assert before is not None and peak.bytes is not None
    assert peak.bytes < before + 50 * MIB


def test_without_proc_there_is_no_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STATUS", tmp_path / "no such file")
    with Peak() as peak:
        pass
    assert peak.bytes is None
