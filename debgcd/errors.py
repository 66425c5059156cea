"""Errors shown to the user without a traceback: a wrong call (exit code 2) or unusable data (exit code 3).

Each message is one sentence: what is wrong, where, and what to do about it. Messages name settings, not command-line flags,
because users of the Python API see them too. An error about a setting carries its name, and `cli.py` adds the flag.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class DebgcdError(Exception):
    """Base class of all errors that are shown to the user as one line.

    setting: what to change, named as in the options of the command line. `message` ends where its flag belongs, and `then`
    continues the sentence: DataError("...; choose another cache folder", setting="cache", then=", or ...").
    """

    exit_code = 1

    def __init__(self, message: str, *, setting: str | None = None, then: str = ""):
        super().__init__(message + then)
        self.message, self.setting, self.then = message, setting, then

    def with_flag(self, flag: str) -> str:
        """The sentence with the flag that changes the setting."""
        return f"{self.message} with {flag}{self.then}"


class UsageError(DebgcdError, ValueError):
    """The call was wrong: an unknown option or key, a value out of range, a run directory that is not empty."""

    exit_code = 2


class DataError(DebgcdError):
    """The call was right but the files cannot be used: no images, a corrupted checkpoint, a full disk."""

    exit_code = 3


def suggest(name: str, allowed: Sequence[str]) -> str:
    """ " (did you mean ...?)" for a misspelt name, or the allowed names if there are fewer than 20."""
    close = difflib.get_close_matches(name, allowed, n=1)
    return (
        f" (did you mean {close[0]!r}?)" if close else f" (allowed: {', '.join(allowed)})" if len(allowed) < 20 else ""
    )
