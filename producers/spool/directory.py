"""Spool folder of one process, as seen by its readers: its identity, whether its writer runs, its segments."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from drumline.producers.spool.files import LISTED, PASSED, open_file, opened
from drumline.producers.spool.folder_layout import (
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

#: Most bytes read of an identity.
MAX_IDENTITY = 1 << 20
#: Most segments that a writer leaves; with segments of 30 s, days of an outage. Most files that a reader lists.
MOST_SEGMENTS, MOST_FILES = 16_384, 1 << 16
#: Files that a writer creates before its identity.
UNNAMED = frozenset({LOCK, RESERVED, f"{IDENTITY}{SCRATCH}"})


class SpoolDirectory:
    """Reads and cleans the folder of one process. Every method accesses the disk. Thread-safe.

    Every access is through a descriptor of the folder that the first one has opened. So whatever a user lays in its
    place or below is neither read, renamed nor deleted by an agent that may do more than that user. Methods raise
    FileNotFoundError or NotADirectoryError where that folder is not there any more.

    `user`: owner of the folder as `folders` saw it, else -1.
    """

    def __init__(self, path: Path, user: int = -1) -> None:
        self.path, self.user = path, user
        self._file: tuple[int, int] | None = None

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Yield a descriptor of the folder. Raises OSError."""
        if self._file is None:
            with opened(self.path.parent, PASSED) as root:
                descriptor = os.open(self.path.name, LISTED, dir_fd=root)
        else:  # whatever the root is now, below it only the same folder will do
            descriptor = os.open(self.path, LISTED)
        try:
            about = os.fstat(descriptor)
            self._file = self._file or (about.st_dev, about.st_ino)
            if (about.st_dev, about.st_ino) != self._file:
                raise FileNotFoundError(errno.ENOENT, "another folder is in its place", self.path.name)
            yield descriptor
        finally:
            os.close(descriptor)

    def is_present(self) -> bool:
        """Return whether the folder is still there."""
        try:
            with self.opened():
                return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # it may not be read now
            return True

    def about(self) -> os.stat_result:
        """Return the status of the folder. Raises OSError."""
        with self.opened() as directory:
            return os.fstat(directory)

    def changed_ns(self) -> int:
        """Return when a name was last added or removed; ns. A hint, at the cost of one system call. Raises OSError."""
        return os.stat(self.path, follow_symlinks=False).st_mtime_ns

    def names(self) -> list[str]:
        """Return the names of its files. Raises OSError, BadSpool."""
        with self.opened() as directory, os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, MOST_FILES + 1)]
        if len(names) > MOST_FILES:
            raise BadSpool(f"more than {MOST_FILES} files, which no writer leaves")
        return names

    def has(self, name: str) -> bool:
        """Return whether a name is present, also a link's. Raises OSError."""
        with self.opened() as directory:
            try:
                os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return True

    def open_file(self, name: str, access: int = os.O_RDONLY) -> int:
        """Open a plain file of the folder's owner and return its descriptor. Raises OSError, BadSpool."""
        with self.opened() as directory:
            return open_file(name, access, directory)

    def write(self, name: str, content: bytes) -> None:
        """Write a file. Raises OSError, BadSpool."""
        with open(self.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as handle:
            handle.write(content)

    def rename(self, name: str, to: str, directory: int | None = None) -> None:
        """Rename a file, also into another folder, whose descriptor is `directory`. Raises OSError."""
        with self.opened() as source:
            os.rename(name, to, src_dir_fd=source, dst_dir_fd=source if directory is None else directory)

    def unlink(self, *names: str) -> None:
        """Delete files, if they are present. Raises OSError."""
        with self.opened() as directory:
            for name in names:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)

    def identity_bytes(self) -> bytes:
        """Return the content of the identity file. Raises OSError, BadSpool."""
        with open(self.open_file(IDENTITY), "rb") as handle:
            return handle.read(MAX_IDENTITY)

    def identity(self) -> ProcessIdentity:
        """Return the identity of the process. Raises OSError, BadSpool."""
        return read_identity(self.identity_bytes(), self.path.name)

    def writer_exited(self) -> bool:
        """Return whether the writer has ended, in any way: then its lock is free. Raises OSError, BadSpool."""
        if not self.has(LOCK):  # a copy of a spool
            return True
        with open(self.open_file(LOCK), "rb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def is_foreign(self) -> bool:
        """Return whether no writer created it. Raises OSError, and BadSpool for segments without an identity."""
        names = set(self.names())
        if IDENTITY in names:
            return False
        if any(_segments(names).values()) and not self.has(IDENTITY):
            raise BadSpool(f"{IDENTITY} is missing: the process of these segments is unknown")
        # A writer may be killed while it creates its folder, and an agent while it removes it.
        by_writer = LOCK in names or re.search(r"-[0-9a-f]{8}$", self.path.name)
        return not (by_writer and names <= UNNAMED)

    @contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Hold the writer's lock and yield whether that succeeded: no process works in the folder then.

        Raises OSError, BadSpool.
        """
        if not self.has(LOCK):  # a copy of a spool
            yield True
            return
        with open(self.open_file(LOCK, os.O_RDWR), "r+b") as handle:  # NFS needs write access to lock
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def files(self) -> dict[str, list[int]]:
        """Return the numbers of the segments, lowest first, by suffix. Raises OSError."""
        return _segments(self.names())

    def take(self, after: int = -1, writer_exited: bool = False) -> str | None:
        """Rename the next segment to .taken and return its name, None if there is none. Raises OSError.

        Segments that an agent took before come first, from number `after` + 1 on; then the oldest of the others.
        """
        files = self.files()
        if left := [number for number in files[TAKEN] if number > after]:
            return segment_name(left[0], TAKEN)
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
        taken = segment_name(files[OPEN][0], TAKEN)
        try:
            self.rename(segment_name(files[OPEN][0]), taken)
        except FileNotFoundError:  # the writer evicted it just now
            return None
        return taken

    def has_later_segment(self, number: int) -> bool:
        """Return whether a segment after `number` exists. Raises OSError."""
        return any(numbers and numbers[-1] > number for numbers in self.files().values())

    def disk_bytes(self) -> int:
        """Return the bytes of the file system that its files take. Raises OSError."""
        total = 0
        with self.opened() as directory, os.scandir(directory) as entries:
            for entry in islice(entries, MOST_FILES):
                with suppress(FileNotFoundError):  # deleted since
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
        return total

    def remove(self) -> None:
        """Delete the folder, whose writer has exited and whose rows are in Kafka; a folder below it keeps it.

        Raises OSError.
        """
        self.unlink(*sorted(self.names(), key=[IDENTITY, *UNNAMED].__contains__))  # those last, by which it is known
        self._remove_empty()

    def remove_unnamed(self) -> None:
        """Delete a folder without identity. Raises OSError if anything but UNNAMED is in it."""
        self.unlink(*UNNAMED)
        self._remove_empty()

    def _remove_empty(self) -> None:
        with opened(self.path.parent, PASSED) as root:
            os.rmdir(self.path.name, dir_fd=root)  # no link, and nothing that has content

    def recover(self) -> None:
        """Finish or undo an eviction whose process was killed. Only while `exclusive`. Raises OSError."""
        files = self.files()
        self.unlink(*(segment_name(number, SCRATCH) for number in files[SCRATCH]))
        replaced = bool(files[REPLACED]) and files[REPLACED][-1] in files[OPEN]
        for number in files[REPLACED]:
            if replaced:
                self.unlink(segment_name(number, REPLACED))
            else:
                self.rename(segment_name(number, REPLACED), segment_name(number))


def _segments(names: Iterable[str]) -> dict[str, list[int]]:
    """Return the numbers of the segments among file names, lowest first, by suffix."""
    numbers: dict[str, list[int]] = {suffix: [] for suffix in (OPEN, TAKEN, REPLACED, SCRATCH)}
    for name in sorted(names):
        number, dot, suffix = name.partition(".")
        if dot and number.isdecimal() and (known := numbers.get(dot + suffix)) is not None:
            known.append(int(number))
    return numbers
