"""The machine and its software: cores, processor, versions, optional packages, the cache folder; worker processes."""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import multiprocessing
import os
import platform
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from debgcd.errors import UsageError
from debgcd.system import distributed

WORKER_GRACE = 30  # seconds that a worker goes on after a termination signal
PACKAGES = (
    "debgcd",
    "torch",
    "transformers",
    "numpy",
    "scipy",
    "scikit-learn",
    "pillow",
    "simplejpeg",
    "safetensors",
)


def cache_folder(given: str | os.PathLike[str] | None) -> Path:
    """The folder given, else $DEBGCD_CACHE, else ~/.cache/debgcd."""
    chosen = given or os.environ.get("DEBGCD_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path.home() / ".cache" / "debgcd"
    except RuntimeError as error:  # HOME is not set, and the system does not know this user
        raise UsageError(
            "there is no home folder for the cache; choose another cache folder",
            setting="cache",
            then=", or set DEBGCD_CACHE",
        ) from error


def cores() -> int:
    """Cores available to this process; in a container often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The model name of the CPU where the system provides it, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


@cache
def versions() -> Mapping[str, str]:
    """Versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def environment() -> dict[str, Any]:
    """environment.json of a run: platform, versions and ranks, to explain later why a number differs; and who launched it."""
    found = {"platform": platform.platform(), "cpu": platform.machine(), "ranks": distributed.count(), **versions()}
    launch = distributed.launch()
    return found if launch is None else {**found, "launch": launch}


def facts() -> dict[str, Any]:
    """When and on what a measurement was made."""
    import torch  # here, because torch takes seconds to import and the rest of this module does not need it

    return {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # e.g. AVX2; in a cloud, one name stands for many processors
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def optional(module: str, extra: str | None, what: str) -> Any:
    """Import a module of an optional package, or say what needs it and how to install it.

    extra: the extra of debgcd that installs the package; None: it is installed by its own name.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(package_missing(package, extra, what)) from error


def package_missing(package: str, extra: str | None, what: str) -> str:
    """The sentence that says what needs a package and how to install it; extra: as in `optional`."""
    wanted = package if extra is None else f"'debgcd[{extra}]'"
    return f"{what} needs the package {package}; install it with: pip install {wanted}"


FRESH = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)


class Worker(FRESH.Process):  # type: ignore[name-defined]
    """A process that never imports the caller's script: without `if __name__ == "__main__"` that would run a second time."""

    def start(self) -> None:
        """As any process, while the script has no file."""
        main = vars(sys.modules["__main__"])
        before: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main |= dict.fromkeys(before)
        try:
            super().start()
        finally:
            main |= before


def fresh_workers() -> Any:
    """A context of multiprocessing whose processes are `Worker`s."""
    context: Any = type(FRESH)()
    context.Process = Worker
    return context


def worker_pool(count: int) -> ProcessPoolExecutor:
    """Fresh processes for functions of this package: a fork would copy torch's locks in an arbitrary state."""
    return ProcessPoolExecutor(count, mp_context=fresh_workers(), initializer=begin_worker)


def begin_worker() -> None:
    """Ignore Ctrl-C, which reaches the whole group, because the parent decides when to stop; end if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def begin_patient_worker() -> None:
    """As `begin_worker`, and go on for a while after a termination signal, which may reach the whole group, too.

    Without the worker, the parent could not finish the step that it is in.
    """
    begin_worker()
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(WORKER_GRACE))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # waits for a pipe that the system closes, however the parent ends
        os._exit(1)
