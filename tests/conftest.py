"""What all tests share: one thread, a cache of their own, a handful of images, and the command line in-process."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from browsers import ADVICE, chromium
from fault_table import OUTCOMES, TRIES, Fault, faults_of, joined, table_of, write_faults
from miniatures import Made, draw
from quick import SETTLE_QUICKLY, train_arguments
from shared_runs import SharedRuns

from debgcd.datasets import Facts, facts_of, resolve
from debgcd.system.text_table import text_table

LONGEST = (  # files that take longest, first, so that no worker ends with one of them (pytest-xdist, --dist loadfile)
    "faults/test_faults.py",
    "ranks/test_ranks_runs.py",
    "train/test_kill.py",
    "review/test_review_page.py",
    "test_cli.py",
    "train/test_determinism.py",
    "train/test_resume.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    places = {folder / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))  # stable: the others stay in their order


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{TRIES}(kind, outcome): a case that passes has {' or '.join(OUTCOMES)} a fault"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if chromium() is None:
        terminalreporter.write_line(ADVICE)
    tried = faults_of(terminalreporter.stats)
    if not tried:
        return
    if "FAULTS" in os.environ:
        assert config.cache is not None
        found = {"tried": tried, "again": []}
        if config.getoption("lf"):  # only what had failed
            found = joined(config.cache.get("faults", {"tried": {}, "again": []}), tried)
        config.cache.set("faults", found)
        write_faults(Path(os.environ["FAULTS"]), **found)
        tried = found["tried"]
    terminalreporter.write_line("\n" + text_table(*table_of(tried)))


@pytest.fixture(autouse=True)
def _tries(request: pytest.FixtureRequest) -> None:
    for mark in request.node.iter_markers(TRIES):
        request.node.user_properties.append((TRIES, mark.args))


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Fault:
    """fault(kind, outcome): a fault that was tried within a test, and how that ended."""

    def tell(kind: str, outcome: str) -> None:
        assert outcome in OUTCOMES
        request.node.user_properties.append((TRIES, [kind, outcome]))

    return tell


@pytest.fixture(autouse=True, scope="session")
def _quiet_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One thread, because small models wait for each other on a busy machine; and never the user's own cache."""
    import torch

    torch.set_num_threads(1)
    before = {name: os.environ.get(name) for name in ("DEBGCD_CACHE", "OMP_NUM_THREADS")}
    os.environ["DEBGCD_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["OMP_NUM_THREADS"] = "1"  # for subprocesses
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _make_folder(folder: Path) -> Path:
    for i in range(10):
        kind = ("cat", "dog")[i % 2]
        draw(folder / "labelled" / kind / f"{i:02d}.png", kind, seed=i)
    for i, kind in enumerate(["cat", "dog"] * 3 + ["owl"] * 8, 10):
        draw(folder / "unlabelled" / f"{i:02d}.png", kind, seed=i)
    return folder


def _make_csv(folder: Path) -> Path:
    table = folder.parent / "tiny.csv"
    rows = []
    for path in sorted((folder / "labelled").rglob("*.png")):
        rows.append([path, path.parent.name, path.parent.name, "train"])
    for path in sorted((folder / "unlabelled").glob("*.png")):
        i = int(path.stem)
        rows.append([path, "", ("cat", "dog")[i % 2] if i < 16 else "owl", "train"])
    for i, kind in enumerate(["cat", "dog", "owl"] * 2, 24):
        rows.append([draw(folder.parent / "held-out" / f"{i}.png", kind, seed=i), "", kind, "test"])
    with open(table, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["path", "label", "truth", "split"], *rows])
    return table


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    """labelled/{cat,dog}/ with 5 images each and unlabelled/ with 14: 3 cats, 3 dogs, 8 owls. A test may change it."""
    return _make_folder(tmp_path / "tiny")


@pytest.fixture
def tiny_manifest_csv(tiny_folder: Path) -> Path:
    """The same images as a CSV with the truth of each, and six more of the test split."""
    return _make_csv(tiny_folder)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As tiny_folder, one for all tests: not to be changed."""
    return _make_folder(tmp_path_factory.mktemp("shared") / "tiny")


@pytest.fixture(scope="session")
def shared_csv(shared_folder: Path) -> Path:
    """As tiny_manifest_csv, one for all tests: not to be changed."""
    return _make_csv(shared_folder)


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> SharedRuns:
    """A finished run of each method, made once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "shared-runs"
    return SharedRuns(folder, lambda images: _make_csv(_make_folder(images)))


@pytest.fixture(autouse=True, scope="session")
def _quick_settling() -> Iterator[None]:
    """In this process and its forks."""
    from debgcd.methods import shared

    before = shared.FROZEN
    exec(SETTLE_QUICKLY)
    yield
    shared.FROZEN = before


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line that says what is wrong; a traceback, a second line or none at all fails the test."""
        assert "Traceback" not in self.out + self.err
        progress = (
            "preset: ",
            "quality: ",
            "backbone: ",
            "view bank: ",
            "image cache: ",
            "reading images: ",
            "hashing images: ",
        )
        progress += (
            "computing views: ",
            "decoding images: ",
            "looking for copies: ",
            "estimating K: ",
            "clustering: ",
            "settling: ",
            "first answer: ",
            "training: ",
            "method: ",
            "categories: ",
            "warning: after ",
        )
        lines = [line for line in self.err.splitlines() if not line.startswith(progress) and "says why" not in line]
        assert len(lines) == 1, f"one line was expected, not {lines}"
        assert lines[0].startswith("debgcd: ")
        return lines[0]


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """`debgcd ...` in this process: command("check", path, "--k", 3)."""

    def call(*arguments: object) -> Said:
        from debgcd.cli import main

        capsys.readouterr()
        handler = signal.getsignal(signal.SIGTERM)
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        finally:
            signal.signal(signal.SIGTERM, handler)  # a rank that fails ignores it until its process ends
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return call


@pytest.fixture
def train(command: Command) -> Command:
    """`debgcd train` of a few fast steps in this process: train(source, run, "--bank", "on", schedule__steps=6)."""

    def call(source: Path, run: Path, *more: object, **settings: object) -> Said:
        return command(*train_arguments(source, run, *more, **settings))

    return call


@pytest.fixture(scope="session")
def arguments() -> Callable[..., list[str]]:
    """The arguments that `train` gives to the command line, for tests that start it in another process."""
    return train_arguments


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Made], Facts]:
    """published("cub", made): from here on the miniature's numbers of images are those that were published."""

    def set_to(name: str, made: Made) -> Facts:
        facts = replace(facts_of(name), train=len(made.train), test=len(made.test))
        monkeypatch.setattr(
            "debgcd.datasets.facts_of", lambda wanted: facts if resolve(wanted) == name else facts_of(wanted)
        )
        return facts

    return set_to
