"""How many processes this machine has room for."""

import os


def cores() -> int:
    """Cores that this process may use, which in a container are often fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
