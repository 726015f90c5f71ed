"""How far each taken segment is in Kafka: one small file, replaced at once and synced, so that a killed agent goes on
there. What Kafka got after the last `save` is published again; sinks recognise it by its sequence."""

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
OWN = ".agent"
#: folder -> segment number -> offset up to which Kafka has everything.
Positions = dict[str, dict[int, int]]


class OtherAgent(RuntimeError):
    """Another agent serves this spool."""


def served(root: Path) -> bool:
    """Whether an agent serves a spool, as far as one may see: its folder may be another user's."""
    try:
        with open(open_file(root / OWN / "lock"), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BadSpool):
        return False
    except OSError:
        return True
    return False


def own(folder: Path) -> int:
    """The inode of the agent's own folder, which is made if need be. Anybody may write into the spool's root, and the
    agent may write where others may not: a folder that somebody else can have filled with links is not used. Raises
    OSError."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)  # never the root: it is for all users
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o022:
        raise OSError(errno.EPERM, f"{OWN} is a link, another user's, or others may write there: remove it")
    return about.st_ino


class Cursor:
    """The agent's own folder in the spool, and its lock, held until `close`. Raises OtherAgent, OSError."""

    def __init__(self, root: Path) -> None:
        self.folder = root / OWN
        self._path = self.folder / "cursor.json"
        self._lock = self._locked()
        self.positions = self._load()
        self._saved = json.dumps(self.positions)

    def _locked(self) -> BinaryIO:
        self._inode = own(self.folder)
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
        if not self._is_there():
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

    def _is_there(self) -> bool:
        try:
            return self.folder.lstat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._lock.close()
