"""Seams between adapters and engines: adapters wrap methods of its classes, if its version is one that was tried.

Standard library only. A method of another shape than the tried ones is as good as another version.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from drumline.producers.ipc.events import warn

#: Sentences that this process has reported.
_reported: set[str] = set()


class UnknownEngine(Exception):
    """The engine is of a version that was not tried; the message says which."""


def check_version(engine: str, version: str, tried: Sequence[str]) -> None:
    """Accept a version that was tried. Raises UnknownEngine. `tried`: beginnings of versions, the oldest first."""
    if not any(f"{version}.".startswith(f"{known}.") for known in tried):
        raise UnknownEngine(f"{engine} {version or 'of no version'} is not known ({tried[0]} to {tried[-1]} are)")


def is_tried(engine: str, version: str, tried: Sequence[str], kind: Any, name: str) -> bool:
    """Return whether a version was tried; if not, the first call of a method tells so: training imports it too."""
    try:
        check_version(engine, version, tried)
    except UnknownEngine as error:
        sentence = f"iterations and requests are not recorded: {error}"

        def report_sentence(*arguments: Any, **named: Any) -> None:
            if sentence not in _reported:
                _reported.add(sentence)
                warn(sentence)

        if hasattr(kind, name):
            around(kind, name, report_sentence)
        return False
    return True


def method(kind: Any, name: str, parameters: Sequence[str]) -> Any:
    """Return a method of a class. Raises UnknownEngine where it is missing or has other first parameters."""
    bound = getattr(kind, name, None)
    names: list[str] = []
    with suppress(TypeError, ValueError):
        names = list(inspect.signature(bound).parameters)[1 : len(parameters) + 1] if bound else []
    if bound is None or names != list(parameters):
        raise UnknownEngine(f"{kind.__module__}.{kind.__name__}.{name} is not as in the versions that were tried")
    return bound


def around(
    kind: Any,
    name: str,
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
    failed: Callable[[], Any] | None = None,
) -> None:
    """Wrap a method: `before(self, *arguments)` returns a note, and `after(note, result, self, *arguments)` gets it.

    Nothing that they raise reaches the engine. Where the method raises, `failed` is called in place of `after`.
    """
    call = getattr(kind, name)

    @functools.wraps(call)
    def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        note = None
        if before is not None:
            with suppress(Exception):
                note = before(self, *arguments, **named)
        try:
            result = call(self, *arguments, **named)
        except BaseException:
            if failed is not None:
                with suppress(Exception):
                    failed()
            raise
        if after is not None:
            with suppress(Exception):
                after(note, result, self, *arguments, **named)
        return result

    setattr(kind, name, wrapped)


def join(engine: str, attach: Callable[[], object]) -> None:
    """Call `attach`; an engine of an unknown version runs on, and one sentence on stderr tells that it has no rows."""
    try:
        attach()
    except UnknownEngine as error:
        warn(f"iterations and requests are not recorded: {error}")
    except Exception as error:
        warn(f"iterations and requests of {engine} are not recorded: {type(error).__name__}: {error}")
