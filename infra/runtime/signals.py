"""Shutdown of a long-running program by SIGTERM or Ctrl-C."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from types import FrameType

#: Two signals within this time are one request: timeout(1) and batch systems signal the process and its group; s.
SAME_S = 1.0
#: Time after which a program that was asked to stop ends, whatever it waits for: a pod is killed 30 s after SIGTERM; s.
LONGEST_S = 25.0


def end_in_time() -> None:
    """Let this process end with code 1 after LONGEST_S, printing where it waits, unless it ends by itself before.

    It may be called in a signal's handler. The end needs no Python: a library may hold the interpreter.
    """
    faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=2)


def end_at_sigterm_as_init() -> None:
    """Let SIGTERM end the first process of a container: the kernel ignores it there unless a program handles it."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))


class ShutdownSignal:
    """Turns the first SIGINT or SIGTERM into a request to stop, which the program's main loop polls.

    Created once, in the main thread; it installs signal handlers. Calling it returns whether a stop is requested; the
    program then completes its work in progress, for LONGEST_S at most: what it does not complete is done again at the
    next start. The next signal ends the process at once.
    """

    def __init__(self) -> None:
        self._first, self._since = 0, 0.0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._first:
            self._first, self._since = number, now
            end_in_time()
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
