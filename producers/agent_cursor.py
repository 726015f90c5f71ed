"""How far each taken segment is in Kafka: one small file, replaced at once and synced, so that a killed agent goes on
there. What Kafka got after the last `save` is published again; sinks recognise it by its sequence."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

#: Below the spool's root; process folders never begin with a dot.
OWN = ".agent"
#: folder -> segment number -> offset up to which Kafka has everything.
Positions = dict[str, dict[int, int]]


class OtherAgent(RuntimeError):
    """Another agent serves this spool."""


def served(root: Path) -> bool:
    """Whether an agent serves a spool, as far as one may see: its folder may be another user's."""
    try:
        with (root / OWN / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


class Cursor:
    """The agent's own folder in the spool, and its lock, held until `close`. Raises OtherAgent, OSError."""

    def __init__(self, root: Path) -> None:
        self.folder = root / OWN
        self._path = self.folder / "cursor.json"
        self._lock = self._locked()
        self.positions = self._load()
        self._saved = json.dumps(self.positions)

    def _locked(self) -> BinaryIO:
        self.folder.mkdir(mode=0o700, exist_ok=True)  # never the root: it is for all users
        lock = (self.folder / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise OtherAgent(f"another agent serves {self.folder.parent}") from None
        return lock

    def _load(self) -> Positions:
        """What was saved; nothing where there is none: then segments are published from their beginning."""
        try:
            found = json.loads(self._path.read_bytes())
            return {str(f): {int(n): int(offset) for n, offset in at.items()} for f, at in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def save(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        """Durable when this returns; nothing is written where nothing changed. Where somebody removed the spool, the
        folder and its lock are made again once the root is there. Raises OtherAgent, OSError."""
        text = json.dumps(positions)
        if not self.folder.is_dir():
            again = self._locked()
            self._lock.close()
            self._lock, self._saved = again, ""
        if text == self._saved:
            return
        scratch = self._path.with_suffix(".tmp")
        with scratch.open("w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        scratch.replace(self._path)
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._saved = text

    def close(self) -> None:
        self._lock.close()
