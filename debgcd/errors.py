"""The two ways in which a command can refuse: the call was wrong, or the data cannot be used.

Each message is one sentence that says what is wrong, where, and what to do about it. The command line prints it without a
traceback and exits with the error's code.
"""


class DebgcdError(Exception):
    """Anything that debgcd says to its user instead of failing with a traceback."""

    exit_code = 1


class UsageError(DebgcdError):
    """The call was wrong: an unknown option or key, a value out of range, a run directory that is not empty."""

    exit_code = 2


class DataError(DebgcdError):
    """The call was right but the files cannot be used: no images, a corrupted checkpoint, a full disk."""

    exit_code = 3
