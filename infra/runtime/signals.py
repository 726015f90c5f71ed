"""How a long-running program is asked to stop: SIGTERM, or Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

#: Two signals within so long are one request: timeout(1) and batch systems send it to the process and to its group; s.
SAME_S = 1.0


class ShutdownSignal:
    """From now on the first SIGINT or SIGTERM asks: `stopping()` is true then, and the program finishes what it has in
    hand. The next one ends the process at once, as any kill may: some answers take a minute not to come."""

    def __init__(self) -> None:
        self._first, self._since = 0, 0.0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._first:
            self._first, self._since = number, now
        elif now - self._since > SAME_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def __call__(self) -> bool:
        return self._first != 0

    @property
    def code(self) -> int:
        """The exit code of a clean stop: 130 after Ctrl-C, as with every command, else 0."""
        return 130 if self._first == signal.SIGINT else 0
