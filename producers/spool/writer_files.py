"""Files of a spool folder (layout.py) as its writer uses them: identity, lock, and the segment being written."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from drumline.producers.ipc.plain_file import real_folder
from drumline.producers.spool.directory import MOST_SEGMENTS, SpoolDirectory
from drumline.producers.spool.exited_eviction import read_segment
from drumline.producers.spool.folder_layout import (
    IDENTITY,
    LOCK,
    OPEN,
    RESERVE_BYTES,
    RESERVED,
    SCRATCH,
    TAKEN,
    identity_text,
    segment_name,
)
from drumline.producers.spool.location import make_root
from drumline.producers.spool.quota import HostSpools, SpoolLimits, SpoolQuota
from drumline.producers.spool.segment_format import SEGMENT_MAGIC
from drumline.producers.spool.segments import SegmentFile, WrittenSegments


class WriterFiles:
    """Creates a new spool folder and writes its files. Owned by SpoolWriter, which holds its own lock around each call.

    Every method accesses the disk and raises OSError.

    `folder`: its path. `active`: the segment that `write` appends to while `is_open`. `written`: the others.
    """

    def __init__(
        self,
        root: Path,
        process: Mapping[str, Any],
        limits: SpoolLimits,
        spools: HostSpools,
        resumed: tuple[str, int] = ("", 0),
    ) -> None:
        """Create a folder, or go on in the one of a killed writer: `resumed`, its name and a segment number that is
        higher than all that it used.
        """
        self._descriptor = -1
        self.active = SegmentFile(-1)
        make_root(root)
        if root.stat().st_mode & stat.S_ISGID:  # its group is the agent's; no code of the job runs in this process
            os.umask(0o007)
        name, first_segment = resumed if (root / resumed[0]).is_dir() else ("", 0)
        self.folder = real_folder(root) / (name or f"{process['process_id']}-{secrets.token_hex(4)}")
        if not name:
            self.folder.mkdir(mode=0o770)
        self._directory = SpoolDirectory(self.folder)
        self.written = WrittenSegments(self._directory)
        self._quota = SpoolQuota(self.folder, limits, spools)
        self._lock = -1
        try:
            if self._directory.about().st_uid != os.geteuid():  # whoever may rename it in the root has exchanged it
                raise PermissionError(errno.EPERM, "another user's folder is in its place", str(self.folder))
            self._lock = self._directory.open_file(LOCK, os.O_CREAT | os.O_RDWR)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if name:
                self._adopt(first_segment)
            with suppress(OSError):
                self._directory.write(RESERVED, bytes(RESERVE_BYTES))
            self.identify(process)  # last: the agent publishes no folder without it
        except BaseException:
            self.close()
            if not name:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _adopt(self, first_segment: int) -> None:
        """Take over the segments that a killed writer left."""
        self._directory.recover()
        files = self._directory.files()
        for number in files[TAKEN]:
            self.written.append(SegmentFile(number))
        for number in files[OPEN]:
            self.written.append(read_segment(self._directory, number))
        self.active = SegmentFile(max([first_segment - 1, *files[TAKEN], *files[OPEN]]))

    @property
    def is_present(self) -> bool:
        """True while the folder is there."""
        return self._directory.is_present()

    @property
    def is_open(self) -> bool:
        """True while a segment is being written."""
        return self._descriptor >= 0

    @property
    def used(self) -> int:
        """Bytes of all segments."""
        return self.written.used + self.active.bytes

    @property
    def limit(self) -> int:
        """Bytes that all segments may take now."""
        return self._quota.limit

    def identify(self, process: Mapping[str, Any]) -> None:
        """Replace the identity of the process."""
        scratch = f"{IDENTITY}{SCRATCH}"
        self._directory.write(scratch, identity_text(process).encode())
        self._directory.rename(scratch, IDENTITY)

    def open_segment(self) -> None:
        """Begin the next segment. On a full disk the oldest are evicted for it."""
        self.refresh()
        self._fit(0)
        before, self.active = self.active, SegmentFile(self.active.number + 1)
        name = segment_name(self.active.number)
        self._descriptor = self._directory.open_file(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND)
        try:
            self.write([SEGMENT_MAGIC])
        except OSError:
            self._close_segment()
            self._directory.unlink(name)
            self.active = before
            raise

    def end_segment(self) -> None:
        """Close the active segment."""
        self._close_segment()
        self.written.append(self.active)
        self.active = SegmentFile(self.active.number)

    def write(self, parts: list[bytes]) -> None:
        """Append all parts or nothing: an incomplete frame is cut off again.

        Raises:
            OSError: the file system is full, or a limit is reached.
        """
        size = sum(len(part) for part in parts)
        try:
            wrote = os.writev(self._descriptor, parts)
            if wrote < size:  # the file system is full, or a limit is reached; the next write shows which
                raise OSError(f"{wrote} of {size} bytes were written")
        except OSError:
            os.ftruncate(self._descriptor, self.active.bytes)
            raise
        self.active.bytes += size

    @property
    def full_reason(self) -> str:
        """Reason for `limit`, as a sentence."""
        return self._quota.full_reason

    def refresh(self) -> None:
        """Drop the segments that the agent has deleted, and measure the quota."""
        self.written.refresh()
        self._quota.measure(self.used, len(self.written))

    def make_space(self, size: int) -> bool:
        """Evict until `size` bytes fit. Returns False if that is not possible."""
        if self.used + size <= self.limit and not self._quota.due:
            return True
        self.refresh()
        return self._fit(size)

    def _fit(self, size: int) -> bool:
        self._quota.reclaim(self.used, len(self.written), self.used + size)
        while self.used + size > self.limit or len(self.written) >= MOST_SEGMENTS:
            if not self.written.evict_oldest():
                return False
        return True

    def use_reserve(self) -> None:
        """Free the space that was reserved for the final losses."""
        self._directory.unlink(RESERVED)

    def _close_segment(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def close(self) -> None:
        """Close the files and the lock. In the child of a fork the parent keeps its lock."""
        self._close_segment()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1
