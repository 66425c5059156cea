"""`debgcd train` or `debgcd resume` as a process whose cost is known: what a run took in one go is written beside its folder.

python benchmarks/measured.py train ... -o FOLDER        also writes FOLDER.cost.json

The cost: seconds of the processor, which processor that is, the largest memory in GB.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from debgcd.cli import main
from debgcd.files import write_json
from debgcd.machine import facts


def cost_file(folder: Path) -> Path:
    return folder.with_suffix(".cost.json")


if __name__ == "__main__":
    code = main()
    if code == 0 and sys.argv[1] == "train":  # a resumed run is only the rest of one
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        memory = max(each.ru_maxrss for each in used) / (2**30 if sys.platform == "darwin" else 2**20)
        seconds = sum(each.ru_utime + each.ru_stime for each in used)
        machine = "{processor}, {instructions}".format(**facts())
        cost = {"seconds": round(seconds, 1), "memory": round(memory, 2), "machine": machine}
        write_json(cost_file(Path(sys.argv[-1])), cost)
    sys.exit(code)
