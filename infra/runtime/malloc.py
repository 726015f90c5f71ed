"""Memory that a program has freed goes back to the system, where the C library would keep it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim(3); None where the C library is another one (musl)."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


def trim() -> bool:
    """Give the free pages of all heaps back; whether there were any. Milliseconds, so not for every batch.

    Batches of some megabytes come and go in several threads: glibc keeps the pages in the heap of each, and resident
    memory creeps up for hours although what is in use does not.
    """
    trim = _trim()
    return trim is not None and bool(trim(0))
