"""Positions up to which each taken segment is in Kafka: one small file, replaced atomically and synced.

A killed agent resumes there. Batches acknowledged after the last `save` are published again; sinks recognise them by
their sequence.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from drumline.producers.spool.layout import BadSpool
from drumline.producers.spool.reader import open_file

#: Below the spool's root; process folders never begin with a dot.
AGENT_FOLDER = ".agent"
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


def ensure_agent_folder(folder: Path) -> int:
    """Create the agent's folder if need be and return its inode.

    All users may write into the spool's root, and the agent may write where others may not. So a folder that
    another user can have filled with links is not used. Raises OSError.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)  # never the root: it is for all users
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o022:
        raise OSError(errno.EPERM, f"{AGENT_FOLDER} is a link, another user's, or others may write there: remove it")
    return about.st_ino


class Cursor:
    """Saved positions in the agent's folder of the spool, and its lock, held until `close`. Raises OtherAgent,
    OSError.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / AGENT_FOLDER
        self._path = self.folder / "cursor.json"
        self._lock = self._locked()
        self.positions = self._load()
        self._saved = json.dumps(self.positions)

    def _locked(self) -> BinaryIO:
        self._inode = ensure_agent_folder(self.folder)
        lock = (self.folder / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise OtherAgent(f"another agent serves {self.folder.parent}") from None
        return lock

    def _load(self) -> Positions:
        """Return the saved positions; none where there are none, so that segments are published from their
        beginning.
        """
        try:
            saved = json.loads(self._path.read_bytes())
            return {str(f): {int(n): int(offset) for n, offset in at.items()} for f, at in saved.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def save(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        """Write the positions durably if they changed.

        Where the spool was removed, recreate the folder and its lock once the root is back. Raises OtherAgent, OSError.
        """
        text = json.dumps(positions)
        if not self._is_there():
            lock = self._locked()
            self._lock.close()
            self._lock, self._saved = lock, ""
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

    def _is_there(self) -> bool:
        try:
            return self.folder.lstat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()
