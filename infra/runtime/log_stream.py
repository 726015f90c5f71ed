"""The standard error of a program as a place for log lines, whose loss must not end the program."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable


def gap_line(lines: int, reason: str) -> str:
    """Return the text that stands for lost lines."""
    return f"{lines} lines of this log are lost: {reason}"


class LogStream:
    """Writes log lines to a file descriptor, without a buffer, and counts those that it cannot write.

    A full disk, a closed pipe or a lost terminal raises nothing. The next line that can be written is preceded by the
    number of lost ones and the reason. Any thread may write; a write blocks as long as the descriptor does.
    """

    def __init__(self, descriptor: int | None = None, gap: Callable[[int, str], str] = gap_line) -> None:
        """Take a descriptor (None: that of the process's standard error, if it has one) and a text for lost lines."""
        if descriptor is None and sys.__stderr__ is not None:
            descriptor = sys.__stderr__.fileno()
        self._descriptor, self._gap = descriptor, gap
        self._lock = threading.Lock()
        self._reason = ""
        self.lost = 0

    def write(self, text: str) -> int:
        """Write whole lines, or count them as lost. Return the number of characters."""
        with self._lock:
            gap = f"{self._gap(self.lost, self._reason)}\n" if self.lost else ""
            try:
                self._write_all((gap + text).encode(errors="backslashreplace"))
            except OSError as error:
                self.lost, self._reason = self.lost + text.count("\n"), error.strerror or str(error)
            else:
                self.lost = 0
        return len(text)

    def _write_all(self, data: bytes) -> None:
        while data and self._descriptor is not None:
            data = data[os.write(self._descriptor, data) :]

    def flush(self) -> None:
        """Do nothing: there is no buffer."""
