"""States of a system that last some seconds and end by a timer, whatever the caller waits for meanwhile: halts."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Any

import psutil

#: How long a halt lasts, and the step of a clock: shorter and longer than the sessions of a sink and a worker; s.
SHORTEST_S, LONGEST_S = 5.0, 30.0


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Describes a state by what it changes (`key`), how it begins and how it ends."""

    key: Hashable
    begin: Callable[[], object]
    end: Callable[[], object]


class Spans:
    """Holds the states that last. Call `end` last: all end at once then."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._due: dict[Hashable, tuple[float, Disturbance]] = {}
        self._timers: list[Timer] = []

    def begin(self, spans: Iterable[Disturbance], seconds: float) -> float:
        """Begin all of them; return when they end (monotonic; s). A later end of an earlier one with its key stays."""
        begun = list(spans)
        due = time.monotonic() + seconds
        with self._lock:
            for span in begun:
                span.begin()
                self._due[span.key] = (max(due, self._due.get(span.key, (due, span))[0]), span)
            due = max((self._due[span.key][0] for span in begun), default=due)
        timer = Timer(due - time.monotonic(), self._end, (due,))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()
        return due

    @property
    def is_over(self) -> bool:
        """Return whether none lasts."""
        return not self._due

    def end(self) -> None:
        """End all that last."""
        for timer in self._timers:
            timer.cancel()
        self._end(float("inf"))

    def _end(self, until: float) -> None:
        with self._lock:
            for key, (due, span) in list(self._due.items()):
                if due <= until:
                    span.end()
                    del self._due[key]


def halt(process: psutil.Process) -> Disturbance:
    """Return a halt of a process: SIGSTOP, and SIGCONT at its end."""
    return Disturbance(process, _unless_exited(process.suspend), _unless_exited(process.resume))


def _unless_exited(action: Callable[[], Any]) -> Callable[[], None]:
    def act() -> None:
        with suppress(psutil.NoSuchProcess):  # killed meanwhile; psutil compares start times
            action()

    return act
