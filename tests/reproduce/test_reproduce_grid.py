"""A grid of runs: each once, several at a time on several places, stopped and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tiers import tiered

from debgcd import config as configuration
from debgcd.data.manifest import from_paths
from debgcd.reproduce.grid import Cell, ImageList, cell, devices, finish

# Stands in for the command line: leaves what a finished run leaves, and a line about itself.
PROGRAM = """
    import json, os, pathlib, sys, time
    words = sys.argv[1:]
    folder = pathlib.Path(words[-1])
    config = json.loads({configs!r})
    with open({book!r}, "a") as book:
        book.write(json.dumps([words[0], folder.name, os.environ.get("CUDA_VISIBLE_DEVICES")]) + "\\n")
    if folder.name in {bad!r}:
        sys.exit("debgcd: no such weights")
    {wait}
    (folder / "model").mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "manifest.csv").write_text("path,label\\n/a.png,cat\\n")
    (folder / "predictions.csv").write_text("")
"""
DECIDED = {"k": 3, "backbone": {"tuned_blocks": 1}, "views": {"bank": "off"}, "run": {"precision": "fp32"}}
CONFIG = configuration.override(configuration.compose("small"), DECIDED, where="test")


def program(tmp_path: Path, wait: str = "pass", bad: tuple[str, ...] = ()) -> list[str]:
    file = tmp_path / "program.py"
    values = {
        "configs": json.dumps(configuration.dump(CONFIG)),
        "book": str(tmp_path / "book"),
        "bad": bad,
        "wait": textwrap.dedent(wait),
    }
    file.write_text(textwrap.dedent(PROGRAM).format(**values))
    return [sys.executable, str(file)]


def book(tmp_path: Path) -> list[list[str]]:
    return [json.loads(line) for line in (tmp_path / "book").read_text().splitlines()]


def images(tmp_path: Path, name: str = "/a.png") -> ImageList:
    return ImageList.of("cub", from_paths([name], ["cat"]), tmp_path / "out")


def cells(tmp_path: Path, rows: dict[str, dict], seeds: int = 1) -> list[Cell]:
    return [
        cell(row, seed, images(tmp_path), configuration.override(CONFIG, values, where=row), tmp_path / "out")
        for row, values in rows.items()
        for seed in range(seeds)
    ]


def test_rows_of_one_configuration_are_one_run(tmp_path: Path) -> None:
    grid = cells(tmp_path, {"DebGCD": {}, "(6)": {"detector": {"weight": 1.0}}, "(5)": {"detector": {"weight": 0.2}}})
    same, again, other = (each.folder for each in grid)
    assert same == again != other
    assert finish(grid, [None], program(tmp_path)) == {}
    assert len(book(tmp_path)) == 2


def test_other_images_or_settings_are_other_runs_but_not_where_it_runs(tmp_path: Path) -> None:
    (one,) = cells(tmp_path, {"a": {}})
    (device,) = cells(tmp_path, {"a": {"run": {"workers": 3, "cache": "/elsewhere"}}})
    assert one.folder == device.folder
    other = cell("a", 0, images(tmp_path, "/b.png"), CONFIG, tmp_path / "out")
    assert other.folder != one.folder and other.images.path != one.images.path


def test_the_methods_own_number_of_blocks_is_the_same_run_said_or_not(tmp_path: Path) -> None:
    unsaid, two, one = cells(
        tmp_path, {name: {"backbone": {"tuned_blocks": blocks}} for name, blocks in (("a", None), ("b", 2), ("c", 1))}
    )
    assert unsaid.folder == two.folder != one.folder


def test_a_damaged_folder_is_a_run_to_do_and_stops_no_other(tmp_path: Path) -> None:
    grid = cells(tmp_path, {"a": {}}, seeds=2)
    finish(grid, [None], program(tmp_path))
    (grid[0].folder / "config.yaml").write_text("method: [")
    assert [each.finished for each in grid] == [False, True]


def test_what_is_finished_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = cells(tmp_path, {"a": {}, "b": {"k": 4}}, seeds=2)
    finish(grid[:2], [None], program(tmp_path))
    finish(grid, [None], program(tmp_path))
    assert len(book(tmp_path)) == 4 and "4 runs: 2 done, 2 to do" in capsys.readouterr().err


def test_one_run_at_a_time_on_each_gpu(tmp_path: Path) -> None:
    # a run ends only when another one runs beside it, or the test would hang: each waits for two names in the book
    wait = f"while len(open({str(tmp_path / 'book')!r}).readlines()) < 2: time.sleep(0.01)"
    grid = cells(tmp_path, {"a": {}}, seeds=4)
    assert finish(grid, ["0", "2"], program(tmp_path, wait)) == {}
    assert {place for _, _, place in book(tmp_path)} == {"0", "2"} and len(book(tmp_path)) == 4


def test_devices_are_those_that_may_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for count, names in ((0, [None]), (1, [None]), (3, ["0", "1", "2"])):
        monkeypatch.setattr("torch.cuda.device_count", lambda count=count: count)
        assert devices() == names
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert devices() == ["4", "6", "7"]


@pytest.mark.parametrize("places", [[None], ["0", "1"]])
def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, places: list[str | None]) -> None:
    grid = cells(tmp_path, {"a": {}}, seeds=3)
    failed = finish(grid, places, program(tmp_path, bad=("seed-1",)))
    assert list(failed) == [grid[1].folder]
    assert failed[grid[1].folder] == "no such weights"
    assert "no such weights" in grid[1].log.read_text()
    assert [each.finished for each in grid] == [True, False, True]


@pytest.mark.parametrize("places", [[None], [None, None]])
def test_each_run_that_ends_well_is_told_at_once(tmp_path: Path, places: list[None]) -> None:
    grid = cells(tmp_path, {"a": {}}, seeds=4)
    finish(grid[:1], [None], program(tmp_path))
    seen: list[tuple[int, bool]] = []
    finish(grid, places, program(tmp_path, bad=("seed-2",)), lambda each: seen.append((each.seed, each.finished)))
    assert sorted(seen) == [(1, True), (3, True)]  # the first was finished before, the third failed


@pytest.mark.parametrize("number", tiered([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]))
def test_told_to_stop_it_tells_the_run_once_and_starts_no_other(tmp_path: Path, number: signal.Signals) -> None:
    wait = f"""
    import signal
    def told(*_):
        with open({str(tmp_path / "told")!r}, "a") as file: file.write("told\\n")
        sys.exit(130)
    signal.signal(signal.SIGINT, told)
    open({str(tmp_path / "ready")!r}, "w").close()
    while True: time.sleep(0.01)"""
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys, pathlib
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
        from test_reproduce_grid import cells
        from debgcd.reproduce.grid import finish
        try:
            finish(cells(pathlib.Path({str(tmp_path)!r}), {{"a": {{}}}}, seeds=3), [None], {program(tmp_path, wait)!r})
        except KeyboardInterrupt:
            sys.exit(130)
        """)
    )
    parent = subprocess.Popen([sys.executable, str(script)], env=os.environ)
    while not (tmp_path / "ready").exists():
        assert parent.poll() is None
    parent.send_signal(number)
    assert parent.wait(timeout=60) == 130
    assert (tmp_path / "told").read_text() == "told\n" and len(book(tmp_path)) == 1


def test_a_run_that_has_begun_is_resumed(tmp_path: Path) -> None:
    (one,) = cells(tmp_path, {"a": {}})
    one.write()
    command = one.command()
    assert command[:3] == ["debgcd", "train", str(one.images.path)] and one.images.path.read_text() == one.images.text
    assert configuration.load(Path(command[command.index("--config") + 1])) == one.config
    one.folder.mkdir(parents=True)
    (one.folder / "config.yaml").write_text(configuration.dump(one.config))
    assert one.command() == ["debgcd", "resume", "--no-report", str(one.folder)]
