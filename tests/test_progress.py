"""What is said of long work where there is no terminal."""

from __future__ import annotations

import pytest

from debgcd.system.progress import progress


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
