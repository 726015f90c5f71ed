"""Shutdown of a long-running program by SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

#: Two signals within this time are one request: timeout(1) and batch systems signal the process and its group; s.
SAME_S = 1.0


class ShutdownSignal:
    """Turns the first SIGINT or SIGTERM into a request to stop, which the program's main loop polls.

    Created once, in the main thread; it installs signal handlers. Calling it returns whether a stop is requested; the
    program then completes its work in progress. The next signal ends the process at once, as some answers take a minute
    to time out.
    """

    def __init__(self) -> None:
        self._first, self._since = 0, 0.0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._first:
            self._first, self._since = number, now
        elif now - self._since > SAME_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def __call__(self) -> bool:
        """Return True once a signal has arrived."""
        return self._first != 0

    @property
    def code(self) -> int:
        """The exit code of a clean stop: 130 after Ctrl-C, else 0."""
        return 130 if self._first == signal.SIGINT else 0
