"""Spool folder of one process, as seen by its readers: its identity, whether its writer runs, its segments."""

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

#: Most bytes read of an identity.
MAX_IDENTITY = 1 << 20
#: Files that a writer creates before its identity.
UNNAMED = frozenset({LOCK, RESERVED, f"{IDENTITY}{SCRATCH}"})


class SpoolDirectory:
    """Reads and cleans the folder of one process. Every method accesses the disk. Thread-safe: it holds no state."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def identity_bytes(self) -> bytes:
        """Return the content of the identity file. Raises OSError, BadSpool."""
        with open(open_file(self.path / IDENTITY), "rb") as handle:
            return handle.read(MAX_IDENTITY)

    def identity(self) -> ProcessIdentity:
        """Return the identity of the process. Raises OSError, BadSpool."""
        return read_identity(self.identity_bytes(), self.path.name)

    def writer_exited(self) -> bool:
        """Return whether the writer has ended, in any way: then its lock is free. Raises OSError, BadSpool."""
        try:
            with open(open_file(self.path / LOCK), "rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except FileNotFoundError:  # a copy of a spool
            pass
        return True

    def is_foreign(self) -> bool:
        """Return whether no writer created it. Raises OSError, and BadSpool for segments without an identity."""
        names = set(os.listdir(self.path))
        if IDENTITY in names:
            return False
        if any(_segments(names).values()) and not (self.path / IDENTITY).exists():
            raise BadSpool(f"{IDENTITY} is missing: the process of these segments is unknown")
        # A writer may be killed while it creates its folder, and an agent while it removes it.
        by_writer = LOCK in names or re.search(r"-[0-9a-f]{8}$", self.path.name)
        return not (by_writer and names <= UNNAMED)

    @contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Hold the writer's lock and yield whether that succeeded: no process works in the folder then.

        Raises OSError, BadSpool.
        """
        try:
            descriptor = open_file(self.path / LOCK, os.O_RDWR)  # NFS needs write access to lock
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
        """Return the numbers of the segments, lowest first, by suffix. Raises OSError."""
        return _segments(os.listdir(self.path))

    def take(self, after: int = -1, writer_exited: bool = False) -> Path | None:
        """Rename the next segment to .taken and return it, None if there is none. Raises OSError.

        Segments that an agent took before come first, from number `after` + 1 on; then the oldest of the others.
        """
        files = self.files()
        if left := [number for number in files[TAKEN] if number > after]:
            return self._name(left[0], TAKEN)
        if files[REPLACED] or files[SCRATCH]:
            if not writer_exited:
                return None  # the writer evicts at this moment
            with self.exclusive() as is_exclusive:
                if not is_exclusive:
                    return None  # another process evicts what an exited one left
                self.recover()
            files = self.files()
        if not files[OPEN]:
            return None
        taken = self._name(files[OPEN][0], TAKEN)
        try:
            self._name(files[OPEN][0], OPEN).rename(taken)
        except FileNotFoundError:  # the writer evicted it just now
            return None
        return taken

    def has_later_segment(self, number: int) -> bool:
        """Return whether a segment after `number` exists. Raises OSError."""
        return any(numbers and numbers[-1] > number for numbers in self.files().values())

    def disk_bytes(self) -> int:
        """Return the bytes of the file system that its files take. Raises OSError."""
        total = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # deleted since
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
        return total

    def remove(self) -> None:
        """Delete the folder, whose writer has exited and whose rows are in Kafka."""
        shutil.rmtree(self.path)

    def remove_unnamed(self) -> None:
        """Delete a folder without identity. Raises OSError if anything but UNNAMED is in it."""
        for name in UNNAMED:
            (self.path / name).unlink(missing_ok=True)
        self.path.rmdir()

    def recover(self) -> None:
        """Finish or undo an eviction whose process was killed. Only while `exclusive`. Raises OSError."""
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
    """Return the numbers of the segments among file names, lowest first, by suffix."""
    numbers: dict[str, list[int]] = {suffix: [] for suffix in (OPEN, TAKEN, REPLACED, SCRATCH)}
    for name in sorted(names):
        number, dot, suffix = name.partition(".")
        if dot and number.isdecimal() and (known := numbers.get(dot + suffix)) is not None:
            known.append(int(number))
    return numbers


def make_root(root: Path) -> None:
    """Create the folder of all spools if it is missing, writable for all users: jobs of any user may come first.

    Only a folder created here is opened to all: in its place may be a link. Raises OSError.
    """
    if root.is_dir():
        return
    try:
        root.mkdir(parents=True)
        root.chmod(0o1777)
    except FileExistsError:
        if not root.is_dir():
            raise


def folders(root: Path) -> Iterator[SpoolDirectory]:
    """Yield all folders below `root` that are not hidden, oldest first. Raises OSError."""
    by_age = []
    for entry in os.scandir(root):
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            try:
                by_age.append((entry.stat(follow_symlinks=False).st_ctime_ns, Path(entry.path)))
            except FileNotFoundError:  # deleted since
                continue
    for _, path in sorted(by_age):
        yield SpoolDirectory(path)
