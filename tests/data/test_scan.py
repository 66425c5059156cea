"""Every image is decoded once, in processes that may die of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from debgcd.data import scan as scan_module
from debgcd.data.manifest import Manifest, Skipped, from_paths
from debgcd.data.scan import scan


def image(path: Path, colour: str = "red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), colour).save(path, "PNG")
    return path


def damaged(folder: Path) -> Manifest:
    good = [image(folder / f"{i}.png") for i in range(12)]
    whole = good[3].read_bytes()
    good[3].write_bytes(whole[: len(whole) // 2])
    good[5].write_text("no image")
    os.mkfifo(folder / "pipe.jpg")
    manifest = from_paths([*good, folder / "pipe.jpg", folder / "gone.jpg"], ["x"] * 6 + [None] * 8)
    return Manifest(**{**vars(manifest), "skipped": (Skipped("before", "reason"),)})


@pytest.mark.parametrize("pooled", [False, True])
def test_scan_moves_what_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooled: bool) -> None:
    monkeypatch.setattr(scan_module, "FEWEST_FOR_WORKERS", 1 if pooled else 1000)
    monkeypatch.setattr(scan_module, "FILES_PER_TASK", 5)
    seen: list[tuple[int, int]] = []
    manifest = scan(damaged(tmp_path), workers=2, on_progress=lambda done, total: seen.append((done, total)))
    assert [path.name for path in manifest.paths] == [f"{i}.png" for i in range(12) if i not in (3, 5)]
    assert manifest.labels == ("x",) * 4 + (None,) * 6
    assert [(Path(s.file).name, s.reason.split(":")[0]) for s in manifest.skipped] == [
        ("before", "reason"),
        ("3.png", "truncated"),
        ("5.png", "not-an-image"),
        ("pipe.jpg", "not-a-file"),
        ("gone.jpg", "missing"),
    ]
    assert all(": " in entry.reason for entry in manifest.skipped[1:])
    assert [total for _, total in seen] == [14] * 3
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (14, 14)


SCRIPT = """
import sys
from pathlib import Path
from debgcd.data import scan
from debgcd.data.manifest import from_paths
print("begun")
scan.FEWEST_FOR_WORKERS, scan.FILES_PER_TASK = 1, 2
found = scan.scan(from_paths(sorted(Path(sys.argv[1]).iterdir())), workers=2)
print([path.name for path in found.paths], [entry.reason for entry in found.skipped])
"""
# Python runs it at its start, so in the workers too
KILLER = """
import os
from debgcd.data import scan
real = scan.decode
def decode(path, short_side=None):
    if path.name == "2.png":
        os._exit(9)  # as a crash in a C library would
    return real(path, short_side)
scan.decode = decode
"""


def run_script(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "script.py"), str(folder / "images")]
    places = os.pathsep.join([str(folder), str(Path(scan_module.__file__).parents[2])])
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True, timeout=60)


def test_a_file_that_kills_the_decoder_costs_only_itself(tmp_path: Path) -> None:
    for i in range(5):
        image(tmp_path / f"images/{i}.png")
    (tmp_path / "sitecustomize.py").write_text(KILLER)
    done = run_script(tmp_path)
    assert done.stdout == (
        "begun\n['0.png', '1.png', '3.png', '4.png'] ['corrupt: decoding it crashed the process']\n"
    ), done.stderr


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    image(tmp_path / "images/0.png"), image(tmp_path / "images/1.png")
    done = run_script(tmp_path)
    assert done.stdout == "begun\n['0.png', '1.png'] []\n" and done.stderr == "", done.stderr
