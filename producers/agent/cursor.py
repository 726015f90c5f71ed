"""Positions up to which each taken segment is in Kafka: one small file, replaced atomically and synced.

A killed agent resumes there. Batches acknowledged after the last `save` are published again; sinks recognise them by
their sequence.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from drumline.producers.spool.files import agent_folder, open_file
from drumline.producers.spool.folder_layout import AGENT_FOLDER, BadSpool

FILE, SCRATCH_FILE = "cursor.json", "cursor.tmp"
#: folder -> segment number -> offset up to which Kafka has everything.
Positions = dict[str, dict[int, int]]


class OtherAgent(RuntimeError):
    """Another agent serves this spool."""


def is_served(root: Path) -> bool:
    """Return whether an agent serves a spool, as far as permissions show: its folder may be another user's."""
    try:
        with open(open_file(root / AGENT_FOLDER / "lock"), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BadSpool):
        return False
    except OSError:
        return True
    return False


class Cursor:
    """Saved positions in the agent's folder of the spool, and its lock, held until `close`. Raises OtherAgent,
    OSError.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = self._locked()
        self.positions = self._load()
        self._saved = json.dumps(self.positions)

    def _locked(self) -> BinaryIO:
        with agent_folder(self._root) as folder:
            self._inode = os.fstat(folder).st_ino
            lock = os.fdopen(open_file("lock", os.O_RDWR | os.O_CREAT, folder), "r+b")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise OtherAgent(f"another agent serves {self._root}") from None
        return lock

    def _load(self) -> Positions:
        """Return the saved positions; none where there are none, so that segments are published from their
        beginning.
        """
        try:
            with agent_folder(self._root) as folder, open(open_file(FILE, directory=folder), "rb") as handle:
                saved = json.loads(handle.read())
            return {str(f): {int(n): int(offset) for n, offset in at.items()} for f, at in saved.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def save(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        """Write the positions durably if they changed.

        Where the spool was removed, recreate the folder and its lock once the root is back. Raises OtherAgent, OSError.
        """
        text = json.dumps(positions)
        with agent_folder(self._root) as folder:
            if os.fstat(folder).st_ino != self._inode:
                lock = self._locked()
                self._lock.close()
                self._lock, self._saved = lock, ""
            if text == self._saved:
                return
            with open(open_file(SCRATCH_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, folder), "w") as handle:
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(SCRATCH_FILE, FILE, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        self._saved = text

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()
