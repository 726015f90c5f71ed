"""Return of freed heap memory to the system, which glibc would keep, and one heap for all threads."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

#: Of mallopt(3): the most heaps of a process.
_M_ARENA_MAX = -8


@functools.cache
def _glibc(name: str) -> Callable[..., int] | None:
    """Return one of glibc's functions; None with another C library (musl)."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return function


def trim() -> bool:
    """Return the free pages of all heaps to the system, and whether there were any. Takes milliseconds.

    Batches of some megabytes are allocated and freed in several threads. glibc keeps the pages of each thread, so
    resident memory grows for hours while the used memory does not.
    """
    trim = _glibc("malloc_trim")
    return trim is not None and bool(trim(0))


def share_heap() -> bool:
    """Have all threads that start from now on allocate from the main thread's heap; return whether they do.

    glibc gives most threads a heap of their own. Where one thread allocates what another one frees at another time,
    each heap keeps pages with holes that `trim` cannot return.
    """
    set_option = _glibc("mallopt")
    return set_option is not None and bool(set_option(_M_ARENA_MAX, 1))
