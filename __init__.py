"""What a job may call: `import drumline`. All of it is free while nothing is attached.

    drumline.attach()                 start collecting in this process (not needed under `drumline run`)
    drumline.step(n)                  step n begins now
    with drumline.scope("evaluate"):  a named range
    drumline.status()                 what is being done, in words

This is the package `drumline` itself: nothing of it is loaded before something attaches, or asks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drumline.producers.collector.attach import attach, status

__all__ = ["attach", "scope", "status", "step"]

_ATTACH = "drumline.producers.collector.attach"


def step(number: int) -> None:
    """Step `number` begins now, and the one before ends."""
    begin = getattr(sys.modules.get(_ATTACH), "step", None)  # another thread may be loading it
    if begin is not None:
        begin(number)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """A named range around what the host does; a decorator too."""
    begin = getattr(sys.modules.get(_ATTACH), "scope", None)
    if begin is None:
        yield
        return
    with begin(name):
        yield


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'drumline' has no attribute {name!r}")
    from drumline.producers.collector import attach as module

    return getattr(module, name)
