"""`debgcd train` or `debgcd resume` as a process whose cost is known: what a run took in one go is written beside its folder.

python benchmarks/measured.py train ... -o FOLDER        also writes FOLDER.cost.json

The cost: seconds of the processor, which processor that is, the largest memory in GB. A view bank is made once and serves many
runs; what it took is not part of any run's seconds.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

from debgcd.cli import main
from debgcd.system.files import write_json
from debgcd.system.machine import facts
from debgcd.train import setup


def cost_file(folder: Path) -> Path:
    return folder.with_suffix(".cost.json")


def used() -> tuple[float, float]:
    """Seconds of the processor and the largest memory in GB, so far, of this process and of those that it started."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    memory = max(each.ru_maxrss for each in both) / (2**30 if sys.platform == "darwin" else 2**20)
    return sum(each.ru_utime + each.ru_stime for each in both), memory


def run() -> int:
    opening, open_bank = 0.0, setup.open_bank

    def timed(*args: Any, **named: Any) -> Any:
        nonlocal opening
        before = used()[0]
        bank = open_bank(*args, **named)
        opening += used()[0] - before
        return bank

    setup.open_bank = timed
    code = main()
    if code == 0 and sys.argv[1] == "train":  # a resumed run is only the rest of one
        seconds, memory = used()
        machine = "{processor}, {instructions}".format(**facts())
        cost = {"seconds": round(seconds - opening, 1), "memory": round(memory, 2), "machine": machine}
        write_json(cost_file(Path(sys.argv[-1])), cost)
    return code


if __name__ == "__main__":
    sys.exit(run())
