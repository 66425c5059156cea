"""What is said of long work where there is no terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from debgcd.system.progress import progress, say, speaking, timed


def test_the_end_is_always_said(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("sorting") as report:
        report(1, 3)
        report(3, 3, "all well")
    assert capsys.readouterr().err == "sorting: 3/3 · all well\n"


def test_work_that_is_part_of_other_work_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal the two bars would draw over each other."""
    with progress("training") as report:
        with progress("clustering") as inner:
            inner(5, 5)
        report(2, 2)
    with progress("clustering") as later:
        later(5, 5)
    assert capsys.readouterr().err == "training: 2/2\nclustering: 5/5\n"


def test_nothing_is_said_where_silence_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with speaking(False):
        say("a decision")
        with progress("sorting") as report:
            report(3, 3)
        with speaking(True):
            say("this")
    say("and this")
    assert capsys.readouterr().err == "this\nand this\n"


def test_a_notebook_has_a_bar_under_the_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One output that is replaced; names are text, not tags. In IPython without a kernel there are lines."""
    drawn: list[str] = []
    handle = SimpleNamespace(update=drawn.append)
    display = SimpleNamespace(HTML=lambda text: text, display=lambda text, display_id: drawn.append(text) or handle)
    shell: Any = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with progress("sorting <b>") as report:
        for done in range(1, 1001):
            report(done, 1000, "a & b")
    assert drawn[-1] == 'sorting &lt;b&gt; <progress value="1000" max="1000"></progress> 1000/1000 a &amp; b'
    assert 2 <= len(drawn) < 100 and capsys.readouterr().err == ""
    shell = SimpleNamespace()
    with progress("sorting") as report:
        report(1, 1)
    assert capsys.readouterr().err == "sorting: 1/1\n"


def test_lines_can_begin_with_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    with timed():
        say("\none")
    say("two")
    assert re.fullmatch(r"\n +0\.\d\d s  one\ntwo\n", capsys.readouterr().err)


def test_quiet_and_verbose(command: Any, shared_folder: Path, tmp_path: Path) -> None:
    loud = command("predict", tmp_path, shared_folder, "-o", tmp_path / "out.csv", "--verbose")
    assert loud.code == 2 and "Traceback" in loud.err
    assert loud.err.splitlines()[-1].startswith("debgcd: ")  # the sentence is the last line, as ever
    words = ("estimate-k", shared_folder, "--set", "views.size=32", "--workers", 0)
    told, silent = command(*words), command(*words, "--quiet")
    assert "backbone: lite0" in told.err and silent.err == ""
    assert (silent.code, silent.out.split(";")[0]) == (0, told.out.split(";")[0])


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is POSIX's")
def test_no_color_is_honoured() -> None:
    """A bar on a terminal has colours, and with NO_COLOR none."""
    program = "from debgcd.system.progress import progress\nwith progress('x') as report: report(1, 2); report(2, 2)"
    colours = {}
    for plain in (False, True):
        chosen = {"NO_COLOR": "1"} if plain else {}
        rest = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        ours, theirs = os.openpty()
        subprocess.run(
            [sys.executable, "-c", program], stderr=theirs, env=rest | {"TERM": "xterm-256color"} | chosen, check=True
        )
        os.close(theirs)
        seen = os.read(ours, 100_000)
        os.close(ours)
        assert b"x" in seen
        colours[plain] = re.findall(rb"\x1b\[[0-9;]*3[0-9][0-9;]*m", seen)
    assert colours[False] and not colours[True]
