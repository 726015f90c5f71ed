"""A folder for each worker of a machine, held (flock) for as long as the worker lives."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.worker_status import workers_dir

#: Folders of workers without a name; @: no name that Kafka takes.
UNNAMED = "unnamed@{}"


class NameTaken(ValueError):
    """Another worker of this machine runs under the name."""


class Home:
    """`path`: exists, and only its owner may read it. Until `leave`, or until the process ends, no other worker gets
    it."""

    def __init__(self, path: Path) -> None:
        """Raises BlockingIOError if it is another's, OSError if it cannot be made."""
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise

    def leave(self) -> None:
        os.close(self._lock)


def move_in(settings: Settings) -> Home:
    """The worker's own folder; of workers without a name, the first that is free.

    A worker's group takes two of one name for one, which is here now and there: neither gets anything done. Raises
    NameTaken, OSError.
    """
    name = settings.stream.instance
    for folder in [name] if name else map(UNNAMED.format, count(1)):
        with suppress(BlockingIOError):
            return Home(workers_dir(settings) / folder)
    raise NameTaken(
        f"a worker named {name!r} runs on this machine already; give each a name of its own (--instance or "
        "DRUMLINE_STREAM__INSTANCE), or none"
    )
