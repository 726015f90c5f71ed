"""The package `drumline`: six calls for a job's own code, which cost next to nothing while nothing is attached.

    drumline.attach()                 start collecting in this process (not needed under `drumline run`)
    drumline.step(n)                  begin step n
    with drumline.scope("evaluate"):  mark a named range
    drumline.status()                 state of collecting, as text
    with drumline.iteration({"a": 1}): mark one iteration of an inference engine of your own
    drumline.request("a")             begin a request of it

and one for those who ask for results, docs/guide/connect.md:

    with drumline.connect() as db:    read what is stored, as Arrow tables

Nothing else of the package is loaded before one of them is called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drumline.producers.collector.attach import attach, status
    from drumline.producers.engines.engine_api import iteration, request
    from drumline.views.client.connection import connect

__all__ = ["attach", "connect", "iteration", "request", "scope", "status", "step"]

_ATTACH = "drumline.producers.collector.attach"


def step(number: int) -> None:
    """Begin step `number` and end the one before. Does nothing while nothing is attached."""
    begin = getattr(sys.modules.get(_ATTACH), "step", None)  # another thread may be loading it
    if begin is not None:
        begin(number)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Mark a named range of host time; usable as a decorator too. Does nothing while nothing is attached."""
    begin = getattr(sys.modules.get(_ATTACH), "scope", None)
    if begin is None:
        yield
        return
    with begin(name):
        yield


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'drumline' has no attribute {name!r}")
    if name == "connect":
        from drumline.views.client import connection

        return connection.connect
    if name in ("iteration", "request"):
        from drumline.producers.engines import engine_api

        return getattr(engine_api, name)
    from drumline.producers.collector import attach as module

    return getattr(module, name)
