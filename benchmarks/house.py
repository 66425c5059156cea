"""How large the house is: what a reader of the package has to take in. Prints a table; measures no speed but that of starting.

python benchmarks/house.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STORY = "debgcd.train.train"  # the module that tells the story of a run
# Distinct functions of the package that one small `train` calls; run in a process of its own, with a profile hook.
TRAIN = """
import sys, threading
from pathlib import Path
sys.path[:0] = [str(Path({root!r}) / "tests")]
import conftest
from quick import train_arguments
folder = Path({folder!r})
images = conftest._make_folder(folder / "tiny")
called = set()
def hook(frame, event, argument):
    if event == "call" and "/debgcd/" in frame.f_code.co_filename:
        called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_code.co_name))
from debgcd.cli import main
words = train_arguments(images, folder / "run", {more})
if {count}:
    sys.setprofile(hook)
    threading.setprofile(hook)
code = main(words)
sys.setprofile(None)
assert code == 0
named = [name for _, _, name in called if not name.startswith("<")]
modules = [name for name in sys.modules if name == "debgcd" or name.startswith("debgcd.")]
if {predict}:
    import resource, subprocess
    image, out = next(images.rglob("*.png")), folder / "one.csv"
    seconds = []
    for _ in range(3):
        begun = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "debgcd", "predict", folder / "run", image.parent, "-o", out, "--force"]
        subprocess.run(command, check=True, capture_output=True)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime)
    print(min(seconds))
else:
    print(len(called), len(named), len(modules))
"""


def python(code: str) -> str:
    """What a process of its own prints last."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout.strip().splitlines()[-1]


def cpu_seconds(*words: str) -> float:
    """Processor seconds of a command, least of three: other load can only add time."""
    code = "import resource, subprocess, sys; subprocess.run([sys.executable, *%r], stdout=-3, stderr=-3);"
    code += "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    return min(float(python(code % (list(words),))) for _ in range(3))


def trained(more: str = "", count: bool = False, predict: bool = False) -> list[str]:
    """A small training: functions called (all, named) and modules loaded; or the processor seconds of a prediction with it."""
    with tempfile.TemporaryDirectory() as folder:
        return python(TRAIN.format(root=str(ROOT), folder=folder, more=more, count=count, predict=predict)).split()


def main() -> None:
    files = sorted((ROOT / "debgcd").rglob("*.py"))
    lines = [len(path.read_text("utf-8").splitlines()) for path in files]
    count = "len([n for n in sys.modules if n == 'debgcd' or n.startswith('debgcd.')])"
    from debgcd.methods.base import Method

    members = [name for name in vars(Method) if not name.startswith("_")] + ["about"]
    functions, named, _ = trained(count=True)
    torch_alone = cpu_seconds("-c", "import torch")
    rows = {
        "files": len(files),
        "lines": sum(lines),
        "longest file": max(lines),
        "modules after `debgcd train ... --epochs 0 --no-report`": trained('"--epochs", 0, schedule__steps="null"')[2],
        f"modules after `import {STORY}`": python(f"import sys, {STORY}; print({count})"),
        "distinct functions of a small `debgcd train`": f"{functions}, {named} of them named",
        "members of the protocol of a method": len(members),
        "`debgcd --help`, CPU seconds": f"{cpu_seconds('-m', 'debgcd', '--help'):.2f}",
        "`debgcd predict` of a few small images, CPU seconds": f"{float(trained(predict=True)[0]):.2f}",
        "`import torch`, CPU seconds": f"{torch_alone:.2f}",
    }
    for name, value in rows.items():
        print(f"{name:60} {value}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
