"""The command line: options, errors and exit codes; `commands.py` does the work."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from debgcd import __version__, commands
from debgcd.errors import DebgcdError, UsageError

EXAMPLES = """\
examples:
  debgcd demo                                     discover five digits that no label names, in a few minutes
  debgcd check photos/                            what is labelled, what is broken, what a run would do
  debgcd train photos/ --k 20 -o runs/photos      20 categories in all: known classes and new ones
  debgcd resume runs/photos                       go on after an interruption
  debgcd evaluate runs/photos                     accuracy, where the truth is known
  debgcd predict runs/photos more/ -o out.csv     put new images into the categories

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
        return _complain(
            f"cannot use{where}: {error.strerror}; make room or choose another place{_how_to_go_on(options)}", 3
        )


def _complain(text: str, code: int) -> int:
    print(f"debgcd: {' '.join(text.splitlines())}", file=sys.stderr)  # a file's name may hold a line break
    return code


def _how_to_go_on(options: argparse.Namespace) -> str:
    if options.command is commands.demo:
        return "; to go on, type the same again"
    where = {commands.train: "out", commands.resume: "run"}.get(options.command)
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

    def command(name: str, work: Any, summary: str, example: str) -> argparse.ArgumentParser:
        found = subparsers.add_parser(
            name, help=summary, description=summary, epilog=f"example:\n  {example}", formatter_class=raw
        )
        found.set_defaults(command=work)
        return found

    demo = command(
        "demo", commands.demo, "discover handwritten digits with k-means, SimGCD and DebGCD", "debgcd demo -o demo-run"
    )
    demo.add_argument(
        "-o", dest="out", type=Path, default=Path("demo-run"), metavar="DIR", help="output folder (default demo-run)"
    )
    demo.add_argument("--seed", type=int, default=0)
    _add_cache(demo)

    check = command(
        "check",
        commands.check,
        "say what is labelled, what is broken and what a run would do",
        "debgcd check photos/ --k 20",
    )
    check.add_argument("path", type=Path, metavar="PATH", help="a folder, CSV or Parquet file")
    check.add_argument("--manifest", type=Path, metavar="OUT.csv", help="write the manifest that a run would use")
    check.add_argument("--json", action="store_true", help="the same facts for a program")
    _add_run_options(check)

    train = command(
        "train",
        commands.train,
        "discover categories among partly labelled images",
        "debgcd train photos/ --k 20 -o runs/photos",
    )
    train.add_argument("path", type=Path, metavar="PATH", help="a folder, CSV or Parquet file")
    train.add_argument(
        "-o", dest="out", type=Path, metavar="RUN", help="run directory, new or empty (default runs/<name>)"
    )
    _add_run_options(train)

    resume = command("resume", commands.resume, "go on with a run that was interrupted", "debgcd resume runs/photos")
    resume.add_argument("run", type=Path, metavar="RUN")

    evaluate = command(
        "evaluate",
        commands.evaluate,
        "measure a finished run where the truth is known",
        "debgcd evaluate runs/photos --json",
    )
    evaluate.add_argument("run", type=Path, metavar="RUN")
    evaluate.add_argument("--json", action="store_true", help="the same facts for a program")

    predict = command(
        "predict",
        commands.predict,
        "put new images into the categories of a run",
        "debgcd predict runs/photos more/ -o out.csv",
    )
    predict.add_argument("run", type=Path, metavar="RUN", help="a finished run, or its model folder")
    predict.add_argument("path", type=Path, metavar="PATH", help="an image, a folder, a CSV or Parquet file")
    predict.add_argument("-o", dest="out", type=Path, metavar="OUT.csv", help="default: print")
    _add_cache(predict)
    predict.add_argument("--backbone", metavar="PATH", help="where the backbone's weights are now, if they have moved")
    return parser


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache", metavar="DIR", help="for view banks and weights (default $DEBGCD_CACHE or ~/.cache/debgcd)"
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    _add_cache(parser)
    parser.add_argument("--k", type=int, metavar="K", help="categories in all, known and new")
    parser.add_argument("--method", help="debgcd (default), simgcd or kmeans")
    parser.add_argument("--preset", help="paper, released or small (default: what fits the data and machine)")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--epochs", type=int, metavar="N", help="passes over the data; replaces the preset's length")
    parser.add_argument(
        "--backbone", metavar="NAME", help="lite0, a hub id such as facebook/dino-vitb16, a folder, or a .pth file"
    )
    parser.add_argument(
        "--bank", choices=("auto", "on", "off"), help="compute each image's views once and keep them on disk"
    )
    parser.add_argument("--device", help="auto (default), cpu, cuda, mps")
    parser.add_argument("--workers", type=int, metavar="N", help="decoding processes (default: sized to the machine)")
    parser.add_argument("--config", type=Path, metavar="FILE.yaml", help="values that differ from the preset")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one value, e.g. detector.weight=0.1; repeatable",
    )


if __name__ == "__main__":
    sys.exit(main())
