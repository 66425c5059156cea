"""The command line: parsing, errors and exit codes; the commands are in `commands/`."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from debgcd import __version__
from debgcd.commands.completion import SCRIPTS, candidates
from debgcd.errors import DataError, DebgcdError, UsageError, suggest
from debgcd.system import distributed
from debgcd.system.progress import say, speaking, timed

EXAMPLES = """\
examples:
  debgcd demo                                     discover five unlabelled digits in a few minutes
  debgcd check photos/                            labelled images, broken files, and what a run would do
  debgcd estimate-k photos/                       estimate the number of categories, known and new
  debgcd train photos/ -o runs/photos             discover categories; their number is estimated
  debgcd train photos/ --k 20 -o runs/photos      20 categories in total: known classes and new ones
  debgcd resume runs/photos                       continue an interrupted run
  debgcd train --benchmark cub --root data/       a published data set with its published split (see debgcd fetch)
  debgcd evaluate runs/photos                     accuracy on images whose true class is known
  debgcd predict runs/photos more/ -o out.csv     assign new images to the categories
  debgcd add runs/photos next_week/               add them to the run; what fits nothing becomes new categories
  debgcd report runs/photos                       write the run's report again: one page, to open or to send
  debgcd review runs/photos                       review the categories in a page: select, name, merge, split, undo
  debgcd name runs/photos new-03=lynx              names for categories; new-04+new-07=fox merges two
  debgcd train --from runs/photos -o runs/again   train again with these names as labels
  debgcd export runs/photos --to folders -o out/  the images in folders by category; also csv, coco, onnx, ...
  debgcd push runs/photos anna/pond-insects       share the model on the Hugging Face hub
  debgcd reproduce ssb --root data/               a table of the paper: its numbers and ours
  debgcd doctor                                   what this machine has, and what would make it faster

photos/ holds labelled/<class>/... and unlabelled/..., or class folders next to a folder named unlabelled. A CSV or
Parquet file with the columns path and label (empty: unlabelled) works too.
"""

# Errors of a disk, a path or its permissions, not of the program: one sentence instead of a traceback.
WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}
PATH_ERRORS = {errno.EROFS, errno.EACCES, errno.EPERM}
PATH_ERRORS |= {errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}

# Commands in the order of the help, each with its file in commands/.
COMMANDS = {name: name for name in ("demo", "check", "fetch", "config", "methods")}
COMMANDS |= {"estimate-k": "estimate_k", "train": "train", "resume": "train"}
COMMANDS |= {
    name: name
    for name in (
        "evaluate",
        "predict",
        "add",
        "report",
        "review",
        "name",
        "export",
        "push",
        "reproduce",
        "bench",
        "doctor",
    )
}
# Commands that share their work among ranks; any other one runs on rank 0 alone.
RANKED = {"train", "resume", "evaluate", "predict", "reproduce"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a wrong call, 3 for unusable data, 130 after Ctrl-C or SIGTERM."""
    # torch reads this variable when it is loaded. Threads that wait without spinning cost little on an idle machine, and
    # make training much faster on one where another program occupies a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _prepare_streams()
    words = sys.argv[1:] if arguments is None else [str(word) for word in arguments]
    if words[:1] == ["--complete"]:
        print("\n".join(candidates(_parser(words[1] if len(words) > 2 else None), words[1:])))
        return 0
    parser = _parser(words[0] if words else None)
    options = parser.parse_args(words)
    if not hasattr(options, "command"):
        parser.print_help()
        return 0
    # numerical libraries abort without a working directory
    if not _has_working_directory():
        return _complain("the working directory was deleted; change to a folder that exists", DataError.exit_code)
    try:
        if options.command_name not in RANKED:
            return 0 if distributed.launched() and os.environ["RANK"] != "0" else _run(options)
        with distributed.joined():
            return _run(options)
    except DebgcdError as error:
        return _complain(str(error), error.exit_code)


def _run(options: argparse.Namespace) -> int:
    """Run the command, print the message of an error, and return the exit code."""
    with _termination_as_interrupt():
        try:
            with (
                _ignore_sigterm_after_an_error(),
                _print_on_rank0(),
                timed() if options.verbose else speaking(not options.quiet),
            ):
                distributed.require_same_code()
                options.command(options)
                # a write error must be raised where it can be reported
                sys.stdout.flush()
                distributed.barrier()
            return 0
        except DebgcdError as error:
            advice = _how_to_continue(options) if isinstance(error, distributed.Lost) else ""
            if options.verbose:
                traceback.print_exc()
            return _complain(_sentence(error, options) + advice, error.exit_code)
        except KeyboardInterrupt:
            advice = "; to start again, repeat the command" if options.command_name == "train" else ""
            return _complain(f"stopped{_how_to_continue(options) or advice}", 130)
        except BrokenPipeError:
            # the reader is gone: print nothing at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        except OSError as error:
            if error.errno not in WRITE_ERRORS | PATH_ERRORS:
                distributed.announce_failure()
                raise
            where = f" {error.filename}" if error.filename else ""
            # an error in one of our own files has its name, so without a name it is standard output
            if error.filename is None and error.errno in WRITE_ERRORS:
                where = " standard output"
                sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (nothing is left to be written at exit)
            return _complain(
                f"cannot use{where}: {error.strerror}; {_advice(error, options)}{_how_to_continue(options)}", 3
            )
        except BaseException:
            distributed.announce_failure()
            raise


def _sentence(error: DebgcdError, options: argparse.Namespace) -> str:
    """The error's message. If this command has a flag for the setting at fault, the message names the flag."""
    if error.setting is None or not hasattr(options, error.setting):
        return str(error)
    return error.with_flag("-o" if error.setting == "out" else f"--{error.setting}")


def _prepare_streams() -> None:
    """Escape characters that standard streams cannot encode, and connect closed ones to /dev/null.

    Otherwise the next file to be opened would get the number of the closed stream, and libraries would print into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # `open` returns the lowest free descriptor, which is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (until the process ends)
        elif isinstance(getattr(sys, stream), io.TextIOWrapper):
            getattr(sys, stream).reconfigure(errors="backslashreplace")


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C. Training replaces this by `stop_requests`, which first finishes the step."""
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        # a rank still has to part from the others: being told to end then must not change its exit code
        if not (distributed.launched() and signal.getsignal(signal.SIGTERM) is signal.SIG_IGN):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _ignore_sigterm_after_an_error() -> Iterator[None]:
    """After an error, ignore SIGTERM so that the error is printed: a launcher sends SIGTERM to all ranks once one has failed."""
    try:
        yield
    except BaseException:
        if signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise


@contextmanager
def _print_on_rank0() -> Iterator[None]:
    """Discard the standard output of all ranks but rank 0."""
    if not distributed.rank():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _complain(text: str, code: int) -> int:
    """Print an error message and return the exit code; if several ranks fail, only the first one prints."""
    if distributed.announce_failure():
        origin = (
            f"rank {distributed.rank()} on {socket.gethostname()}: " if distributed.rank() and code in (2, 3) else ""
        )
        say(f"debgcd: {origin}{text}", every_rank=True)
    return code


def _advice(error: OSError, options: argparse.Namespace) -> str:
    """The advice that ends the message of an OSError: freeing space helps only on a full disk; the cache has its own option."""
    from debgcd.system.files import FULL
    from debgcd.system.machine import cache_folder

    free_space = "free some space or " if error.errno in FULL else ""
    path = Path(os.path.abspath(error.filename)) if isinstance(error.filename, str) else Path("/")
    with suppress(UsageError):
        # without a home folder there is no cache folder
        if hasattr(options, "bank") and path.is_relative_to(os.path.abspath(cache_folder(options.cache))):
            return f"{free_space}choose another cache folder with --cache, or do without the view bank (--bank off)"
    return f"{free_space}choose another place"


def _how_to_continue(options: argparse.Namespace) -> str:
    """The end of a message, with the command that continues the interrupted work; empty if there is nothing to continue."""
    if options.command_name in ("demo", "fetch", "reproduce"):
        return "; to continue, repeat the command"
    option = {"train": "out", "resume": "run"}.get(options.command_name)
    folder: Path | None = getattr(options, option) if option else None
    # not Path.exists, which raises if the name is too long
    begun = folder is not None and os.path.exists(folder / "config.yaml")
    return f"; to continue: debgcd resume {folder}" if begun else ""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the name that a mistyped one is closest to."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(name) for name in action.choices]
            raise argparse.ArgumentError(action, f"there is no {value!r}{suggest(str(value), names)}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = next((word for word in unknown if word.startswith("-")), unknown[0])
            own = [name for action in self._actions for name in action.option_strings]
            self.error(f"unknown argument {word}{suggest(word.partition('=')[0], own) if word[0] == '-' else ''}")
        return options, unknown

    def error(self, message: str) -> Any:
        if distributed.launched() and os.environ["RANK"] != "0":
            # all ranks have the same command line, and rank 0 prints the error
            raise SystemExit(UsageError.exit_code)
        raise SystemExit(_complain(f"{message}; see {self.prog} --help", UsageError.exit_code))


class _PrintCompletion(argparse.Action):
    """`--completion SHELL`: like --version, prints and ends."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        print(SCRIPTS[values], end="")
        parser.exit()


def _parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser for one command, for which only that command's file is imported; for all commands if the name is unknown."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="debgcd",
        description="Find the categories that your labels do not cover yet: every unlabelled image is assigned to a\n"
        "known class or to a newly discovered category (generalized category discovery, DebGCD, ICLR 2025).",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"debgcd {__version__}")
    shells = ", ".join(SCRIPTS)
    parser.add_argument(
        "--completion",
        choices=SCRIPTS,
        action=_PrintCompletion,
        metavar="SHELL",
        help=f"print a script that completes commands and options in {shells}: source <(debgcd --completion bash)",
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command_name")
    for file in [COMMANDS[command]] if command in COMMANDS else dict.fromkeys(COMMANDS.values()):
        importlib.import_module(f"debgcd.commands.{file}").add(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
