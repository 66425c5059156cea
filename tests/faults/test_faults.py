"""After any single fault of the disk either the result is right, or one sentence says what is wrong; nothing is half written.

Each command runs with a file layer that fails once (`layer.py`), and on a disk that is really full; then it is repeated without.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path

import pytest
from fault_table import Fault
from forks import forked
from layer import ERRORS, KINDS, Layer
from miniatures import draw
from quick import train_arguments
from tiers import SOAK, tiered

from debgcd.cli import main
from debgcd.review.log import carry

VARIES = {"metrics.jsonl", "environment.json", ".lock", "decisions.jsonl"}  # times, versions
CACHES = ".sqlite"  # hashes and thumbnails, which SQLite keeps whole; how many of them are there may differ
STEPS = 6


@dataclass(frozen=True)
class Commands:
    """What a command needs, and the words of it, within one folder that may be anywhere."""

    images: Path
    base: Path  # finished runs to copy

    def prepare(self, name: str, folder: Path) -> list[list[str]]:
        """The commands of a case, in order: what is tried first, and what puts it right after a fault."""
        run, out = folder / "run", folder / "out"
        cache = ["--cache", str(folder / "cache")]
        if name.startswith("train") or name == "resume":
            method = [] if name in ("train", "resume") else ["--method", "sskmeans"]
            bank = ["--bank", "on", *cache]
            words = train_arguments(self.images, run, *bank, *method, schedule__steps=STEPS)
            if name == "resume":
                shutil.copytree(self.base / "begun", run)
                return [["resume", str(run), "--no-report"]]
            return [words, ["resume", str(run), "--no-report"]]
        shutil.copytree(self.base / "run", run)
        if name == "predict":
            return [["predict", str(run), str(self.images / "unlabelled"), "-o", str(out) + ".csv", *cache]]
        if name == "add":
            return [["add", str(run), str(self.base / "later"), *cache]]
        if name == "name":
            return [["name", str(run), "new-01=owl"]]
        if name == "report":
            return [["report", str(run), "-o", str(out) + ".html", *cache]]
        to = name.removeprefix("export ")
        return [["export", str(run), "--to", to, "-o", str(out), *cache]]


@pytest.fixture(scope="module")
def commands(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    base = tmp_path_factory.mktemp("faults")
    assert main(train_arguments(shared_folder, base / "run", "--method", "sskmeans")) == 0
    for i in range(6):
        draw(base / "later" / f"{i}.png", "owl", 700 + i)
    words = train_arguments(
        shared_folder, base / "begun", "--bank", "on", "--cache", base / "cache", schedule__steps=STEPS
    )
    assert forked(lambda: _stopped(words), base / "log") == 130
    return Commands(shared_folder, base)


def _stopped(words: list[str]) -> int:
    from debgcd.train.callbacks import Checkpoints, Interrupted

    original = Checkpoints.after_step

    def stop(self: Checkpoints, done: object) -> bool:
        going = original(self, done)  # type: ignore[arg-type]
        if done.step == STEPS // 2:  # type: ignore[attr-defined]
            raise Interrupted
        return going

    Checkpoints.after_step = stop  # type: ignore[method-assign]
    return main(words)


def content(folder: Path) -> dict[str, bytes]:
    """What a command left under final names, without what differs each time."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in VARIES]
    files = [path for path in files if path.suffix != CACHES]
    return {
        str(path.relative_to(folder)): path.read_bytes().replace(str(folder).encode(), b"FOLDER")
        for path in files
        if not any(part.startswith(".") or part.endswith(".partial") for part in path.relative_to(folder).parts)
        and "health" not in path.name
    }


def done_again(words: list[list[str]], folder: Path) -> int:
    """Repeat a command without the fault, as its user would."""
    for each in words:
        begun = (folder / "run" / "config.yaml").exists()
        if each[0] == "train" and begun:
            continue
        if each[0] == "resume" and not begun:
            continue
        if each[0] == "export" and (folder / "out").exists():
            each = [*each, "--force"] if (folder / "out").is_file() else each
            if (folder / "out").is_dir():
                return 0
        if each[0] in ("predict", "report"):
            each = [*each, "--force"]
        code = main(each)
        if code:
            return code
    return 0


def logged_in_words(log: Path) -> bool:
    """One sentence, no traceback."""
    text = log.read_text("utf-8")
    return "Traceback" not in text and sum(line.startswith("debgcd: ") for line in text.splitlines()) == 1


NAMES = [
    "train",
    "resume",
    "predict",
    "name",
    "add",
    "report",
    "export folders",
    "export coco",
    "export csv",
    "export labelstudio",
]


@pytest.mark.parametrize("name", tiered(["train", "predict", "name", "export folders"], NAMES))
@pytest.mark.parametrize("kind", KINDS)
def test_one_fault_of_the_disk(commands: Commands, tmp_path: Path, name: str, kind: str, fault: Fault) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    words = commands.prepare(name, folder)
    counted = tmp_path / "calls"

    def whole() -> int:
        with Layer(folder, kind).installed() as layer:
            code = main(words[0])
        counted.write_text(str(layer.calls))
        return code

    assert forked(whole, tmp_path / "log") == 0, (tmp_path / "log").read_text("utf-8")
    reference, calls = content(folder), int(counted.read_text())
    points = range(1, calls + 1) if SOAK else sorted({1, max(1, calls // 2), calls} if calls else ())
    for number, error in product(points, ERRORS) if SOAK else zip(points, cycle(["full", "stale"]), strict=False):
        place = tmp_path / f"{number}-{error}"
        place.mkdir()
        tried = commands.prepare(name, place)

        def faulty(
            place: Path = place, number: int = number, error: str = error, tried: list[list[str]] = tried
        ) -> int:
            with Layer(place, kind, number, ERRORS[error]).installed():
                return main(tried[0])

        log = tmp_path / "fault.log"
        before = content(place)
        code = forked(faulty, log)
        told = f"{name}: {kind} {number}, {error}: {log.read_text('utf-8')}"
        assert code in (0, 3), told
        found = content(place)
        half = [file for file, bytes_ in found.items() if bytes_ not in (reference.get(file), before.get(file))]
        assert not [file for file in half if not begun(file)], (told, half)
        if code:
            assert logged_in_words(log), told
            assert forked(lambda place=place, tried=tried: done_again(tried, place), log) == 0, told + log.read_text()
            found = content(place)
        if name == "name":  # the next command that reads the run brings the model to what the log says
            carry(place / "run")
            found = content(place)
        missing = {file for file in reference if found.get(file) != reference[file]}
        assert not missing, (told, missing)
        fault(f"{kind} fails once ({error})", "refused" if code else "survived")
        shutil.rmtree(place)


def own_disk(folder: Path, size: int) -> bool:
    """A new disk of this size, seen by this process alone; False where the system does not let it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000):
        return False
    subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return subprocess.run(words, capture_output=True).returncode == 0


NO_DISK, WRONG = 77, 78


@pytest.mark.parametrize("name", tiered(["train", "predict"], NAMES))
def test_a_disk_that_is_really_full(commands: Commands, tmp_path: Path, name: str, fault: Fault) -> None:
    """Filled up to so many bytes before a command begins, from nothing left to just enough."""
    folder, log, used = tmp_path / "disk", tmp_path / "log", tmp_path / "used"
    folder.mkdir()

    def whole() -> int:
        if not own_disk(folder, 1 << 30):
            return NO_DISK
        words = commands.prepare(name, folder)
        before = taken(folder)
        code = main(words[0])
        used.write_text(json.dumps([before, taken(folder) - before]))
        shutil.copytree(folder, tmp_path / "reference")
        return code

    code = forked(whole, log)
    if code == NO_DISK:
        pytest.skip("this system lets nobody mount a disk")
    assert code == 0, log.read_text("utf-8")
    reference = {
        file: found.replace(str(folder).encode(), b"FOLDER") for file, found in content(tmp_path / "reference").items()
    }
    before, needs = json.loads(used.read_text())
    parts = 24 if SOAK else 4
    for part in range(parts):
        room = before + needs * part // parts + 4096

        def tight(room: int = room) -> int:
            own_disk(folder, 1 << 30)
            words = commands.prepare(name, folder)
            prepared = content(folder)
            subprocess.run(["mount", "-o", f"remount,size={room}", str(folder)], check=True)
            code = main(words[0])
            found = content(folder)
            half = [file for file, bytes_ in found.items() if bytes_ not in (reference.get(file), prepared.get(file))]
            half = [file for file in half if not begun(file)]
            if half:
                print("half written:", half, flush=True)
                return WRONG
            subprocess.run(["mount", "-o", "remount,size=1073741824", str(folder)], check=True)
            if code:
                print("again", flush=True)
                if done_again(words, folder):
                    return WRONG
            if name == "name":  # the next command that reads the run brings the model to what the log says
                carry(folder / "run")
            found = content(folder)
            wrong = [file for file in reference if found.get(file) != reference[file]]
            print(wrong, flush=True)
            return WRONG if wrong else code

        code = forked(tight, log)
        text = log.read_text("utf-8")
        assert code in (0, 3), f"{name}, {part} of {parts}: {code} {text}"
        assert "Traceback" not in text
        fault("a full disk", "refused" if code else "survived")


def begun(file: str) -> bool:
    """Files of a run that grow or are replaced while it goes on."""
    return file.startswith(("run/config.yaml", "run/checkpoints"))


def taken(folder: Path) -> int:
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
