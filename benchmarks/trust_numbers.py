"""How far the numbers can be trusted: writes docs/trust-the-numbers.md from the results of the tests named below.

.venv/bin/python benchmarks/trust_numbers.py

It runs, per method, the tests that compare its losses, clusters and hooks with slow forms written from the papers, and those that
hold the published values of each preset, and writes down how many passed and how far apart the numbers were: every comparison
by pytest.approx or torch.testing.assert_close is measured, not only whether it was within its tolerance. Comparisons with the
authors' own functions cannot be tests, since their code is not part of this repository: their results, with the commit of each,
are in benchmarks/results/public.json. What is open or different is quoted from docs/methods.md.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # for grid.py

from grid import write_between  # noqa: E402

from debgcd.methods import METHODS  # noqa: E402
from debgcd.system.files import read_json  # noqa: E402
from debgcd.system.machine import facts  # noqa: E402
from debgcd.system.text_table import markdown_table  # noqa: E402

ROOT = HERE.parent
ApproxScalar: Any = type(pytest.approx(1.0))
PAGE = ROOT / "docs" / "trust-the-numbers.md"
TIGHT = 1e-3  # comparisons with a wider tolerance are about statistics, not about equal numbers
PEERS, MORE, LOSSES = "tests/methods/test_peers.py", "tests/methods/test_more_peers.py", "tests/losses"
# Tests against slow forms, per method; a file stands for all of its tests.
SLOW = {
    "debgcd": [f"{LOSSES}/test_losses.py", "tests/methods/test_debgcd.py", "tests/novelty/test_one_vs_all.py"],
    "simgcd": ["tests/methods/test_simgcd.py"],
    "gcd": ["tests/methods/test_gcd.py"],
    "kmeans": ["tests/cluster/test_kmeans.py", "tests/cluster/test_lloyd.py"],
    "rankstats": [f"{MORE}::test_the_total_of_rankstats", f"{LOSSES}/test_contrast_losses.py"],
    "uno": [f"{PEERS}::test_the_total_of_uno", f"{LOSSES}/test_uno_losses.py"],
    "orca": [f"{PEERS}::test_the_total_of_orca", f"{LOSSES}/test_orca_losses.py"],
    "xcon": [f"{MORE}::test_the_total_of_xcon"],
    "opencon": [f"{MORE}::test_the_total_of_opencon_and_where_its_prototypes_go"],
    "promptcal": [f"{MORE}::test_the_first_stage_of_promptcal", f"{MORE}::test_the_second_stage_of_promptcal"],
    "dccl": [f"{MORE}::test_the_total_of_dccl_and_where_its_centres_go", f"{LOSSES}/test_memory_losses.py"],
    "gpc": [f"{MORE}::test_the_total_of_gpc", "tests/cluster/test_mixture.py"],
    "mugcd": [f"{PEERS}::test_the_total_of_mugcd", f"{LOSSES}/test_mugcd_losses.py"],
    "infosieve": [f"{MORE}::test_the_total_of_infosieve"],
    "cipr": [f"{MORE}::test_the_total_of_cipr", "tests/cluster/test_snc.py"],
    "sptnet": [
        f"tests/model/test_prompts.py::{name}"
        for name in (
            "test_each_turn_has_its_views_and_what_learns",
            "test_the_prompts_rate_rises_for_a_thousand_steps_and_falls_to_zero_by_step",
            "test_the_prompts_share_of_the_steps_is_that_of_the_public_code",
        )
    ],
}
# What all methods share.
COMMON = {
    "accuracy, Eq. 15": ["tests/evaluate/test_accuracy.py"],
    "learning rate and optimiser": ["tests/train/test_length.py::test_our_sgd_is_torchs_to_the_bit"]
    + [
        f"tests/train/test_length.py::{name}"
        for name in (
            "test_by_epoch_the_rate_is_that_of_torchs_scheduler_stepped_once_per_epoch",
            "test_a_rate_that_falls_in_steps_is_that_of_torchs_scheduler",
        )
    ],
    "ViTs against the library's forward pass": ["tests/model/test_vit.py", "tests/model/test_original.py"],
    "lite0 against the library's forward pass": ["tests/model/test_lite.py"],
    "the paper's numbers": ["tests/data/test_paper_numbers.py"],
    "the nine benchmarks' layouts and labelled halves": ["tests/data/test_benchmarks.py"],
}
PRESETS = {
    "paper": ["tests/test_config.py::test_presets_load_and_paper_is_the_defaults"],
    "paper, released": [
        "tests/test_overlays.py::test_every_benchmark_over_every_preset",
        "tests/test_overlays.py::test_simgcd_is_as_in_its_public_scripts",
        "tests/test_overlays.py::test_gcd_is_as_in_its_public_code",
    ],
    "released": ["tests/test_paper_map.py::test_values_of_the_public_scripts_are_those_of_the_overlays"],
    "paper, released, from the original files to new images, with a tiny ViT": [
        "tests/data/test_benchmarks_cli.py::test_a_preset_from_the_original_files_to_new_images"
    ],
    "every table, full and small: rows that differ": [
        "tests/reproduce/test_experiments.py::test_each_row_of_a_table_trains_in_another_way_than_every_other"
    ],
}


class Recorder:
    """A pytest plugin: the outcome of every test, and the largest difference that a comparison in it saw."""

    def __init__(self) -> None:
        self.passed: dict[str, bool] = {}
        self.apart: dict[str, float] = {}
        self._at = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._at = item.nodeid
        with self._measured():
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.passed[report.nodeid] = report.passed

    @contextmanager
    def _measured(self) -> Iterator[None]:
        equal, close = ApproxScalar.__eq__, torch.testing.assert_close

        def measured_equal(approx: ApproxScalar, actual: Any) -> bool:
            said = equal(approx, actual)
            try:
                expected, found = float(approx.expected), float(actual)
                if said and float(approx.tolerance) <= TIGHT * max(1.0, abs(expected)):
                    self._note(abs(found - expected) / max(1.0, abs(expected)))
            except (TypeError, ValueError):
                pass
            return said

        def measured_close(actual: Any, expected: Any, **more: Any) -> None:
            close(actual, expected, **more)
            if isinstance(actual, torch.Tensor) and actual.numel() and actual.is_floating_point():
                apart = (actual - expected).detach().abs().max() / expected.detach().abs().max().clamp_min(1.0)
                self._note(float(apart))

        ApproxScalar.__eq__, torch.testing.assert_close = measured_equal, measured_close
        try:
            yield
        finally:
            ApproxScalar.__eq__, torch.testing.assert_close = equal, close

    def _note(self, apart: float) -> None:
        if apart == apart:  # not two equal NaNs
            self.apart[self._at] = max(apart, self.apart.get(self._at, 0.0))

    def row(self, title: str, tests: list[str]) -> list[str]:
        """A row of a table: what, cases that passed, the largest difference, the tests."""
        own = [
            node
            for node in self.passed
            if any(node == test or re.match(rf"{re.escape(test)}(::|\[|$)", node) for test in tests)
        ]
        passed, apart = sum(self.passed[node] for node in own), [self.apart[node] for node in own if node in self.apart]
        told = "–" if not apart else "0" if max(apart) == 0 else f"{max(apart):.0e}"
        return [title, f"{passed} of {len(own)}", told, ", ".join(f"`{test.rpartition('/')[2]}`" for test in tests)]


def main() -> None:
    os.chdir(ROOT)
    asked = [*SLOW.values(), *COMMON.values(), *PRESETS.values()]
    recorder = Recorder()
    tests = sorted({test for group in asked for test in group})
    pytest.main([*tests, "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "0"], plugins=[recorder])
    missing = [test for test in tests if not any(node.startswith(test) for node in recorder.passed)]
    if missing:
        sys.exit(f"no result of {', '.join(missing)}")
    write_between(PAGE, "benchmarks/trust_numbers.py", page(recorder))


def page(recorder: Recorder) -> str:
    """The tables, as Markdown."""
    machine, head = facts(), ["", "tests passed", "largest difference", "tests"]
    titles = {name: METHODS[name].about.title for name in SLOW}
    public = read_json(HERE / "results" / "public.json")
    compared = [
        [
            titles[entry["method"]],
            f"{entry['repository']} @ {entry['commit']}",
            entry["what"],
            entry["inputs"],
            f"{entry['apart']:.0e}" if entry["apart"] else "0",
        ]
        for entry in public["comparisons"]
    ]
    without = [
        title for name, title in titles.items() if name not in {entry["method"] for entry in public["comparisons"]}
    ]
    parts = [
        f"Measured {machine['date']}, {machine['processor']}, torch {machine['versions']['torch']}, by `benchmarks/trust_numbers.py`"
        f"{', with every case of the soak tier' if os.environ.get('DEBGCD_SOAK') else ''}.",
        "## Against the papers",
        "Slow forms with loops, written from the papers. The difference is relative where the expected value is larger than 1. –: only equal or not.",
        markdown_table(head, [recorder.row(titles[name], tests) for name, tests in SLOW.items()]),
        "## Against the authors' functions",
        f"The same random inputs to their function and to ours; {public['date']}. Their functions ran as they are, but for those of "
        "DebGCD and OpenCon and for losses within a training loop, whose lines were typed in.",
        markdown_table(["", "public code", "function", "inputs", "largest difference"], compared),
        f"Without a comparison that names a commit: {', '.join(without)}. Where methods.md says *compared* of one of these, the commit was not kept.",
        "## What all methods share",
        markdown_table(head, [recorder.row(title, tests) for title, tests in COMMON.items()]),
        "## Presets and tables",
        markdown_table(head, [recorder.row(title, tests) for title, tests in PRESETS.items()]),
        "## What is open, and what differs",
        "Of DebGCD, SimGCD and GCD: in [paper.md](paper.md#exact-where-the-public-code-is-exact). Of the others, in the words of "
        "[methods.md](methods.md):",
    ]
    points = [f"- **{titles[name]}.** {text}" for name in SLOW if (text := open_points(titles[name]))]
    return "\n\n".join([*parts, "\n".join(points)])


def open_points(title: str) -> str:
    """What docs/methods.md calls open or different for a method, in its own words."""
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    section = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None:
        return ""
    points = re.findall(
        r"^- \*\*((?:Open|Different)[^*]*)\*\*(.*?)(?=^- \*\*|^\Z|^$)", section[1], re.MULTILINE | re.DOTALL
    )
    return " ".join(f"*{name}* {' '.join(words.split())}" for name, words in points)


if __name__ == "__main__":
    main()
