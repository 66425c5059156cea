"""benchmarks/trust_numbers.py: the tests that it names are there, and the differences that it writes down are those that were."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
import torch

from debgcd.methods import METHODS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import trust_numbers
from trust_numbers import COMMON, PRESETS, ROOT, SLOW, Recorder


@pytest.mark.parametrize(
    "test", sorted({test for of in (SLOW, COMMON, PRESETS) for tests in of.values() for test in tests})
)
def test_every_test_that_the_page_names_exists(test: str) -> None:
    file, _, function = test.partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    assert not function or function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_method_of_the_papers_tables_is_on_the_page() -> None:
    assert set(METHODS) - set(SLOW) <= {
        "sskmeans",
        "detector",
        "pim",
    }  # GCD's clustering; DebGCD's part; no row of a table


def test_the_largest_difference_of_tight_comparisons_is_kept() -> None:
    recorder = Recorder()
    recorder._at = "scalars"
    with recorder._measured():
        assert pytest.approx(2.0, rel=1e-5) == 2.0 + 4e-6
        assert pytest.approx([1.0, 3.0 + 3e-7]) == [1.0, 3.0]
        assert pytest.approx(1.0, abs=0.5) == 1.2  # a wide tolerance is about something else
        assert pytest.approx(1.0) != 1.1
        assert float("nan") == pytest.approx(float("nan"), nan_ok=True)
    recorder._at = "tensors"
    with recorder._measured():
        torch.testing.assert_close(torch.tensor([1.0, 4.0 + 2e-6]), torch.tensor([1.0, 4.0]))
        with pytest.raises(AssertionError):
            torch.testing.assert_close(torch.ones(2), torch.zeros(2))
    assert recorder.apart == {"scalars": pytest.approx(2e-6, rel=1e-3), "tensors": pytest.approx(5e-7, rel=0.1)}
    assert torch.testing.assert_close.__name__ == "assert_close" and pytest.approx(1.0) == 1.0  # put back
    recorder.passed = {
        "tests/a.py::test_one[x]": True,
        "tests/a.py::test_one_more": False,
        "tests/b.py::test_two": True,
    }
    assert recorder.row("A", ["tests/a.py::test_one"]) == ["A", "1 of 1", "–", "`a.py::test_one`"]
    recorder.apart = {"tests/a.py::test_one[x]": 3e-9, "tests/a.py::test_one_more": 1e-7}
    assert recorder.row("A", ["tests/a.py"])[1:3] == ["1 of 2", "1e-07"]


def test_open_points_are_quoted_from_the_methods_page() -> None:
    told = trust_numbers.open_points("μGCD")
    assert told.startswith("*Open:* no training code is public") and "\n" not in told
    assert trust_numbers.open_points("no such method") == ""
