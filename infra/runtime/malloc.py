"""Return of freed heap memory to the system, which glibc would keep."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """Return glibc's malloc_trim(3); None with another C library (musl)."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


def trim() -> bool:
    """Return the free pages of all heaps to the system, and whether there were any. Takes milliseconds.

    Batches of some megabytes are allocated and freed in several threads. glibc keeps the pages of each thread, so
    resident memory grows for hours while the used memory does not.
    """
    trim = _trim()
    return trim is not None and bool(trim(0))
