"""The command line: options, errors and exit codes; `commands/` does the work."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from debgcd import __version__
from debgcd.commands import bench, check, config, demo, estimate_k, evaluate, fetch, predict, reproduce, train
from debgcd.errors import DebgcdError, UsageError

EXAMPLES = """\
examples:
  debgcd demo                                     discover five digits that no label names, in a few minutes
  debgcd check photos/                            what is labelled, what is broken, what a run would do
  debgcd estimate-k photos/                       how many categories there are, known and new
  debgcd train photos/ -o runs/photos             discover categories; how many there are is estimated
  debgcd train photos/ --k 20 -o runs/photos      20 categories in all: known classes and new ones
  debgcd resume runs/photos                       go on after an interruption
  debgcd train --benchmark cub --root data/       a published set with its published split (debgcd fetch gets it)
  debgcd evaluate runs/photos                     accuracy, where the truth is known
  debgcd predict runs/photos more/ -o out.csv     put new images into the categories
  debgcd reproduce ssb --root data/               a table of the paper, its numbers beside ours

photos/ holds labelled/<class>/... and unlabelled/..., or class folders beside a folder named unlabelled; a CSV or
Parquet file with the columns path and label (empty: unlabelled) does as well.
"""

# what is wrong with the place that a file is to go to or come from, and not with the program
PLACES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
PLACES |= {errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a wrong call, 3 for data that cannot be used, 130 after Ctrl-C."""
    # Read when torch is loaded. Threads that wait without spinning lose little on an idle machine; on a busy one, where a
    # core is taken by another program, training is much faster.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = _parser()
    options = parser.parse_args(arguments)
    if not hasattr(options, "command"):
        parser.print_help()
        return 0
    try:
        options.command(options)
        return 0
    except DebgcdError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _complain(f"stopped{_how_to_go_on(options)}", 130)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader has left; say nothing at exit either
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in PLACES:
            raise
        where = f" {error.filename}" if error.filename else ""
        return _complain(f"cannot use{where}: {error.strerror}; {_advice(error, options)}{_how_to_go_on(options)}", 3)


def _complain(text: str, code: int) -> int:
    print(f"debgcd: {' '.join(text.splitlines())}", file=sys.stderr)  # a file's name may hold a line break
    return code


def _advice(error: OSError, options: argparse.Namespace) -> str:
    """Where else to write: room helps only where it lacks, and the cache is chosen by an option of its own."""
    from debgcd.machine import cache_folder
    from debgcd.store import FULL

    room = "make room or " if error.errno in FULL else ""
    where = Path(os.path.abspath(error.filename)) if isinstance(error.filename, str) else Path("/")
    if hasattr(options, "bank") and where.is_relative_to(os.path.abspath(cache_folder(options.cache))):
        return f"{room}choose another place with --cache, or do without a view bank: --bank off"
    return f"{room}choose another place"


def _how_to_go_on(options: argparse.Namespace) -> str:
    if options.command in (demo.demo, fetch.fetch, reproduce.reproduce):
        return "; to go on, type the same again"
    where = {train.train: "out", train.resume: "run"}.get(options.command)
    folder: Path | None = getattr(options, where) if where else None
    begun = folder is not None and os.path.exists(folder / "config.yaml")  # Path.exists raises for a name too long
    return f"; to go on: debgcd resume {folder}" if begun else ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        print(f"debgcd: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(UsageError.exit_code)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="debgcd",
        description="Find the categories that your labels do not cover yet: every unlabelled image is put into a known\n"
        "class or into a newly discovered one (generalized category discovery, DebGCD, ICLR 2025).",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"debgcd {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (demo, check, fetch, config, estimate_k, train, evaluate, predict, reproduce, bench):
        command.add(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
