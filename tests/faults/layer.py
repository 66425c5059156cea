"""A file layer that fails once: the n-th call of a kind raises an error of the disk, as it may on a full or a network disk."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ERRORS = {
    "full": errno.ENOSPC,
    "broken": errno.EIO,
    "read-only": errno.EROFS,
    "stale": errno.ESTALE,  # a network disk whose server has lost the file
}
KINDS = ("open", "write", "fsync", "rename")


class Layer:
    """Counts the calls of one kind that concern files below a folder, and lets one of them fail."""

    def __init__(self, folder: Path, kind: str, fails: int = 0, error: int = errno.EIO):
        """fails: number of the call, counted from 1; 0: none."""
        self.folder, self.kind, self.fails, self.error, self.calls = str(folder), kind, fails, error, 0

    def _pass(self, path: Any) -> None:
        if not isinstance(path, str | os.PathLike) or not os.path.abspath(path).startswith(self.folder):
            return
        if os.path.basename(path).startswith(".lock"):
            return  # nothing is lost with it
        self.calls += 1
        if self.calls == self.fails:
            raise OSError(self.error, os.strerror(self.error), os.fspath(path))

    @contextmanager
    def installed(self) -> Iterator[Layer]:
        """While the block runs."""
        before = builtins.open, io.open, os.fsync, os.replace, os.rename
        opened = before[0]

        def open_(path: Any, mode: str = "r", *words: Any, **named: Any) -> Any:
            writes = isinstance(mode, str) and set(mode) & set("wax+")
            if writes and self.kind == "open":
                self._pass(path)
            file = opened(path, mode, *words, **named)
            return self._watched(file, path) if writes and self.kind == "write" else file

        def fsync(descriptor: Any) -> None:
            if self.kind == "fsync":
                number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
                self._pass(os.readlink(f"/proc/self/fd/{number}"))
            before[2](descriptor)

        def renamed(original: Callable[..., None]) -> Callable[..., None]:
            def work(source: Any, target: Any, **named: Any) -> None:
                if self.kind == "rename":
                    self._pass(target)
                original(source, target, **named)

            return work

        builtins.open = io.open = open_  # type: ignore[assignment]
        os.fsync, os.replace, os.rename = fsync, renamed(before[3]), renamed(before[4])
        try:
            yield self
        finally:
            builtins.open, io.open, os.fsync, os.replace, os.rename = before

    def _watched(self, file: Any, path: Any) -> Any:
        """A file whose write may fail after half of its content."""
        write = file.write
        if isinstance(file, io.FileIO):  # its attributes are fixed; an unbuffered file is the log of a review
            return file

        def half(content: Any) -> Any:
            try:
                self._pass(path)
            except OSError:
                write(content[: len(content) // 2])
                raise
            return write(content)

        file.write = half
        return file
