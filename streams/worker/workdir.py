"""Lock a folder for each worker of a machine (flock), for as long as the worker runs."""

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
    """Fatal: another worker of this machine runs under the name."""


class WorkingDirectory:
    """Holds a worker's locked folder until `unlock`, or until the process ends.

    `path`: exists, and only its owner may read it.
    """

    def __init__(self, path: Path) -> None:
        """Create and lock the folder.

        Raises BlockingIOError if another worker has it, OSError if it cannot be created.
        """
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise

    def unlock(self) -> None:
        """Release the folder to the next worker of that name."""
        os.close(self._lock)


def lock_working_directory(settings: Settings) -> WorkingDirectory:
    """Lock the worker's folder; for a worker without a name, the first free one.

    Two workers of one name would be one member of the group, which moves between them: neither would process anything.
    Raises NameTaken, OSError.
    """
    name = settings.instance
    for folder in [name] if name else map(UNNAMED.format, count(1)):
        with suppress(BlockingIOError):
            return WorkingDirectory(workers_dir(settings) / folder)
    raise NameTaken(
        f"a worker named {name!r} runs on this machine already; give each its own name (--instance or "
        "DRUMLINE_INSTANCE), or none"
    )
