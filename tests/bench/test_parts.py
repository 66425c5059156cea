"""Every part, at toy size, from its start to its lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy import SHAPE, SIZES, toy

from debgcd.reproduce.bench import PARTS, measure
from debgcd.reproduce.bench.measure import MEASURES, Costs, epoch_seconds, run
from debgcd.reproduce.bench.networks import photographs
from debgcd.reproduce.bench.session import DataSet
from debgcd.system.machine import cores

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import memory
import performance

LOAD = memory.Load(images=(16, 32), steps=2, built=2, scaling=((40, 4), (80, 8)), scaling_width=16)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own takes seconds to start; `test_apart.py` does that."""

    def here(work: Any, *arguments: Any) -> tuple[Any, int]:
        return work(*arguments), 2**30

    monkeypatch.setattr(memory, "apart", here)


def test_every_part_that_is_named_exists() -> None:
    assert list(PARTS) == list(MEASURES)


def test_results_are_json_with_a_fixed_form(tmp_path: Path) -> None:
    shown: list[Any] = []
    results = run(toy(tmp_path), {"step": MEASURES["step"]}, shown.append)
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert set(results) == {
        "date",
        "processor",
        "instructions",
        "cores",
        "threads",
        "trunk",
        "repeats",
        "versions",
        "lines",
    }
    assert results["trunk"] in ("float32", "bfloat16")
    assert {"python", "torch", "transformers", "pillow", "simplejpeg", "debgcd"} <= set(results["versions"])
    names = {"part", "what", "unit", "ours", "plain", "ratio", "at_least", "at_most", "computed", "note", "met"}
    assert all(set(line) == names for line in results["lines"])
    assert len(results["lines"]) == len(shown[0]) == 3


def test_step(tmp_path: Path) -> None:
    """With a clock on which everything takes one second all ratios are one."""
    lines = measure.measure_step(toy(tmp_path))
    assert [line.what for line in lines] == [
        "ViT-toy, 4 images, 2 tuned blocks",
        "ViT-toy, 4 images, 2 tuned blocks, from the bank",
        "ViT-toy, 4 images, 1 tuned block, from the bank",
    ]
    assert [(line.unit, line.ours, line.plain, line.ratio) for line in lines] == [("s", 1.0, 1.0, 1.0)] * 3


def test_trunk(tmp_path: Path) -> None:
    (line,) = performance.measure_trunk(toy(tmp_path))
    assert (line.unit, line.ratio) == ("GFLOP/s", 1.0)
    assert line.ours is not None and line.ours > 0


@pytest.mark.parametrize("every", [1, 10])
def test_an_epoch_is_its_steps_and_its_share_of_an_evaluation(every: int) -> None:
    data, costs = DataSet("x", train=70, unlabelled=5, test=7, batch=16), Costs(step=2.0, unlabelled=0.5, test=3.0)
    seconds, epochs = 0.0, 10
    for number in range(1, epochs + 1):
        for _ in range(4):  # whole batches of 16 in 70
            seconds += 16 * 2.0
        if number % every == 0:
            seconds += 5 * 0.5 + 7 * 3.0
    assert epoch_seconds(data, costs, every) == pytest.approx(seconds / epochs)


def test_epoch(tmp_path: Path) -> None:
    """Every timed work takes one second: what comes out can be added up by hand."""
    fresh, built2, built1, schedule = measure.measure_epoch(toy(tmp_path))
    data = SIZES.data
    decoding = 1 / SIZES.small_photos / cores()  # a second for all photographs
    step_, look, from_bank = 1 / SHAPE.batch, 1 / (2 * SHAPE.batch), 1 / data.batch
    drawn, seen = data.train, data.unlabelled + data.test
    plain = drawn * (step_ + decoding) + seen * (look + decoding)
    without = drawn * (step_ + decoding) + seen * (look + decoding) / 10
    bank = drawn * from_bank + (data.unlabelled * from_bank + data.test * (look + decoding)) / 10
    views = SIZES.views.bank_views + 1
    building = data.train * views / (SIZES.built * (SIZES.built_views + 1))
    for line, mine in ((fresh, without), (built2, bank), (built1, bank)):
        assert line.computed and line.unit == "min"
        assert (line.ours, line.plain) == pytest.approx((mine / 60, plain / 60))
        assert line.ratio == pytest.approx(plain / mine)
    assert schedule.ours == pytest.approx((data.epochs * bank + building) / 3600)
    assert schedule.plain == pytest.approx(data.epochs * plain / 3600)


def test_epoch_takes_each_time_from_where_it_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"fresh-2": 3.0, "plain-2": 50.0, "plain-1": 70.0, "bank-2": 1e6, "bank-1": 1e6}
    times = {"bank-2": 0.7, "bank-1": 0.2, "plain": 11.0, "fresh": 5.0, "look-2": 0.03, "look-1": 0.01, "build": 13.0}
    monkeypatch.setattr(measure, "step_seconds", lambda session, shape: steps)
    monkeypatch.setattr(measure, "_part_seconds", lambda session, shape: times)
    monkeypatch.setattr(measure, "decode_seconds", lambda *_: {"ours": 0.5 * cores(), "plain": 1.5 * cores()})
    fresh, built2, built1, schedule = measure.measure_epoch(toy(tmp_path))
    plain2, plain1 = (24 * (step + 1.5) + (16 + 8) * (11 + 1.5) for step in (50, 70))
    bank2 = 24 * 0.7 + (16 * 0.03 + 8 * 5.5) / 10
    expected = [
        ((24 * 3.5 + (16 + 8) * 5.5 / 10) / 60, plain2 / 60),
        (bank2 / 60, plain2 / 60),
        ((24 * 0.2 + (16 * 0.01 + 8 * 5.5) / 10) / 60, plain1 / 60),
        ((2 * bank2 + 24 * 3 * 13) / 3600, 2 * plain2 / 3600),
    ]
    for line, values in zip((fresh, built2, built1, schedule), expected, strict=True):
        assert (line.ours, line.plain) == pytest.approx(values)


def test_decode(tmp_path: Path) -> None:
    session = toy(tmp_path)
    lines = measure.measure_decode(session)
    assert [line.unit for line in lines] == ["ms", "cosine"] * 2
    assert [line.ours for line in lines[::2]] == [500.0, 500.0]  # a second for two photographs
    assert all(line.ours is not None and 0.9 < line.ours <= 1.0001 for line in lines[1::2])


def test_both_ways_of_decoding_give_the_same_image(tmp_path: Path) -> None:
    for path in photographs(toy(tmp_path), (64, 48), 2):
        own, plain = measure.own_way(path, 30), measure.plain_way(path, 30)
        assert tuple(own.shape[1:]) == plain.shape[:2] == (30, 40)
        assert np.abs(own.permute(1, 2, 0).numpy().astype(int) - plain).mean() < 0.1


def test_photographs_differ_and_are_the_same_each_time(tmp_path: Path) -> None:
    first, second = (photographs(toy(tmp_path / name), (40, 30), 20) for name in ("a", "b"))
    content = [path.read_bytes() for path in first]
    assert len(set(content)) == 20
    assert content == [path.read_bytes() for path in second]


def test_predict(tmp_path: Path) -> None:
    lines = measure.measure_predict(toy(tmp_path))
    assert [(line.unit, line.ours) for line in lines] == [("images/s", 3.0)] * 2


@pytest.mark.usefixtures("in_this_process")
def test_memory(tmp_path: Path) -> None:
    lines = memory.measure_memory(toy(tmp_path), LOAD)
    assert [(line.unit, line.ours, line.met) for line in lines] == [
        ("GiB", 1.0, True),
        ("GiB", 1.0, True),
        ("times", 1.0, True),
        ("GiB", 1.0, True),
    ]
    for images in LOAD.images:  # what was measured was a whole run
        run_folder = tmp_path / f"memory-{images}"
        assert (run_folder / "predictions.csv").is_file()
        assert json.loads((run_folder / "evaluation.json").read_text())["views"] == "views: bank 2, decode exact"
    assert not list(tmp_path.glob("memory-*-bank"))


def test_memory_says_so_where_the_system_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STATUS", tmp_path / "no such file")
    (line,) = memory.measure_memory(toy(tmp_path), LOAD)
    assert line.ours is None
    assert "/proc/self/status" in line.note


@pytest.mark.usefixtures("in_this_process")
def test_scaling(tmp_path: Path) -> None:
    lines = memory.measure_scaling(toy(tmp_path), LOAD)
    assert len(lines) == 4 * len(LOAD.scaling)
    assert lines[0].what == "40 images, 4 categories: step of the heads"
    assert all(line.ours is not None and line.ours > 0 for line in lines)
