"""One process's spool folder, as others than its writer see it: who it is, whether it lives, what segments it has."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from drumline.producers.spool.layout import (
    IDENTITY,
    LOCK,
    OPEN,
    REPLACED,
    RESERVED,
    SCRATCH,
    TAKEN,
    BadSpool,
    ProcessIdentity,
    read_identity,
    segment_name,
)
from drumline.producers.spool.reader import open_file

#: Longer identities are not read; bytes.
MOST_IDENTITY = 1 << 20
#: What a writer makes before it says who it is.
UNNAMED = frozenset({LOCK, RESERVED, f"{IDENTITY}{SCRATCH}"})


class SpoolDirectory:
    """The folder of one process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def identity_bytes(self) -> bytes:
        """Who it is, as it is written. Raises OSError, BadSpool."""
        with open(open_file(self.path / IDENTITY), "rb") as handle:
            return handle.read(MOST_IDENTITY)

    def identity(self) -> ProcessIdentity:
        """Who it is. Raises OSError, BadSpool."""
        return read_identity(self.identity_bytes(), self.path.name)

    def gone(self) -> bool:
        """Whether the writer has ended, in whatever way: then its lock is free. Raises OSError, BadSpool."""
        try:
            with open(open_file(self.path / LOCK), "rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except FileNotFoundError:  # a copy of a spool
            pass
        return True

    def foreign(self) -> bool:
        """Whether no writer made it. Raises OSError, and BadSpool where segments lie in it of whom nobody knows."""
        names = set(os.listdir(self.path))
        if IDENTITY in names:
            return False
        if any(_segments(names).values()) and not (self.path / IDENTITY).exists():
            raise BadSpool(f"{IDENTITY} is missing: nobody knows whose segments lie here")
        ours = LOCK in names or re.search(r"-[0-9a-f]{8}$", self.path.name)  # killed while one made it, or removed it
        return not (ours and names <= UNNAMED)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether the writer is gone and nobody else is here in its place; while this lasts, nobody will be. Raises
        OSError, BadSpool."""
        try:
            descriptor = open_file(self.path / LOCK, os.O_RDWR)  # NFS asks for that
        except FileNotFoundError:  # a copy of a spool
            yield True
            return
        with open(descriptor, "r+b") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def files(self) -> dict[str, list[int]]:
        """Numbers of the segments, lowest first, by suffix. Raises OSError."""
        return _segments(os.listdir(self.path))

    def take(self, after: int = -1, gone: bool = False) -> Path | None:
        """The next segment: one that an agent before took (and its number is above `after`), else the oldest that
        nobody took. None: there is none. `gone`: the writer is. Raises OSError."""
        files = self.files()
        if left := [number for number in files[TAKEN] if number > after]:
            return self._name(left[0], TAKEN)
        if files[REPLACED] or files[SCRATCH]:
            if not gone:
                return None  # the writer is throwing away right now
            with self.alone() as alone:
                if not alone:
                    return None  # or another writer, of what a dead one left
                self.recover()
            files = self.files()
        if not files[OPEN]:
            return None
        taken = self._name(files[OPEN][0], TAKEN)
        try:
            self._name(files[OPEN][0], OPEN).rename(taken)
        except FileNotFoundError:  # the writer threw it away just now
            return None
        return taken

    def followed(self, number: int) -> bool:
        """Whether a later segment has been begun. Raises OSError."""
        return any(numbers and numbers[-1] > number for numbers in self.files().values())

    def takes(self) -> int:
        """Bytes of the file system that its files take. Raises OSError."""
        total = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # gone since
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
        return total

    def remove(self) -> None:
        """The writer is gone and everything is in Kafka."""
        shutil.rmtree(self.path)

    def remove_nameless(self) -> None:
        """Raises OSError where anything else lies in it by now."""
        for name in UNNAMED:
            (self.path / name).unlink(missing_ok=True)
        self.path.rmdir()

    def recover(self) -> None:
        """Somebody was killed while it threw away (WrittenSegments): finish, or undo. Only `alone`. Raises OSError."""
        files = self.files()
        for number in files[SCRATCH]:
            self._name(number, SCRATCH).unlink(missing_ok=True)
        replaced = bool(files[REPLACED]) and files[REPLACED][-1] in files[OPEN]
        for number in files[REPLACED]:
            if replaced:
                self._name(number, REPLACED).unlink(missing_ok=True)
            else:
                self._name(number, REPLACED).rename(self._name(number, OPEN))

    def _name(self, number: int, suffix: str) -> Path:
        return self.path / segment_name(number, suffix)


def _segments(names: Iterable[str]) -> dict[str, list[int]]:
    """Which of them are segments: numbers, lowest first, by suffix."""
    found: dict[str, list[int]] = {suffix: [] for suffix in (OPEN, TAKEN, REPLACED, SCRATCH)}
    for name in sorted(names):
        number, dot, suffix = name.partition(".")
        if dot and number.isdecimal() and (known := found.get(dot + suffix)) is not None:
            known.append(int(number))
    return found


def make_root(root: Path) -> None:
    """The folder of all spools, unless it is there: jobs of any user may come first, the agent reads them all. Only
    what was made here is opened to all: in its place may be a link. Raises OSError."""
    if root.is_dir():
        return
    try:
        root.mkdir(parents=True)
        root.chmod(0o1777)
    except FileExistsError:
        if not root.is_dir():
            raise


def folders(root: Path) -> Iterator[SpoolDirectory]:
    """All below `root`, oldest first; not what is hidden. Raises OSError."""
    found = []
    for entry in os.scandir(root):
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            try:
                found.append((entry.stat(follow_symlinks=False).st_ctime_ns, Path(entry.path)))
            except FileNotFoundError:  # gone since
                continue
    for _, path in sorted(found):
        yield SpoolDirectory(path)
