"""Halts of processes for some seconds: SIGSTOP, and SIGCONT from a timer, whatever the caller waits for meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock, Timer

import psutil

#: How long a halt lasts: shorter and longer than the sessions of a sink and a worker; s.
SHORTEST_S, LONGEST_S = 5.0, 30.0


class Halts:
    """Halts processes. Call `end` last: what is halted then goes on at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._due: dict[psutil.Process, float] = {}
        self._timers: list[Timer] = []

    def halt(self, processes: Iterable[psutil.Process], seconds: float) -> float:
        """Halt all of them; return when they go on (monotonic; s). A later end of an earlier halt stays."""
        victims = list(processes)
        due = time.monotonic() + seconds
        with self._lock:
            for process in victims:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
                    self._due[process] = max(due, self._due.get(process, due))
            due = max((self._due.get(process, due) for process in victims), default=due)
        timer = Timer(due - time.monotonic(), self._resume, (due,))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()
        return due

    @property
    def is_over(self) -> bool:
        """Return whether nothing is halted."""
        return not self._due

    def end(self) -> None:
        """Resume all that are halted."""
        for timer in self._timers:
            timer.cancel()
        self._resume(float("inf"))

    def _resume(self, until: float) -> None:
        with self._lock:
            for process in [process for process, due in self._due.items() if due <= until]:
                with suppress(psutil.NoSuchProcess):  # killed meanwhile; psutil compares start times
                    process.resume()
                del self._due[process]
