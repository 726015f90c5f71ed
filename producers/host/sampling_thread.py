"""A thread that samples something of this host again and again."""

from __future__ import annotations

import threading
from abc import abstractmethod

import structlog

log = structlog.get_logger()


class SamplingThread(threading.Thread):
    """Calls `sample` again and again until `stop`; `drumline agent` starts it and calls `stop`.

    What `sample` raises ends nothing: nothing that the kernel shows must end the sampling of a host. It is logged when
    it changes.
    """

    def __init__(self, name: str, subject: str) -> None:
        super().__init__(name=name, daemon=True)
        self._subject, self._halt = subject, threading.Event()

    def stop(self) -> None:
        """Stop the thread."""
        self._halt.set()
        self.join(5.0)

    def run(self) -> None:
        """Sample until `stop`."""
        problem = ""
        while not self._halt.wait(self.pause_s()):
            try:
                self.sample()
            except Exception as error:
                if (text := f"{type(error).__name__}: {error}") != problem:
                    problem = text
                    log.warning(f"{self._subject} cannot be sampled now", problem=text)
        self.close()

    @abstractmethod
    def pause_s(self) -> float:
        """Return the time until the next call of `sample`; s."""

    @abstractmethod
    def sample(self) -> None:
        """Sample once, in this thread."""

    def close(self) -> None:
        """Release what sampling holds, in this thread."""
