"""One spool folder (spool_layout.py), as its writer sees it: identity, lock, and the segment that is being written."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from drumline.producers.spool.directory import make_root
from drumline.producers.spool.frames import SEGMENT_MAGIC
from drumline.producers.spool.layout import (
    IDENTITY,
    LOCK,
    RESERVE_BYTES,
    RESERVED,
    SCRATCH,
    identity_text,
    segment_name,
)
from drumline.producers.spool.quota import HostSpools, SpoolQuota
from drumline.producers.spool.segments import SegmentFile, WrittenSegments


class WriterFiles:
    """A new folder; everything raises OSError. `active`: what `write` appends to while `is_open`. `written`: the
    others. `max_bytes`, `host_bytes`, `spools`: spool_room.SpoolQuota's."""

    def __init__(
        self, root: Path, process: Mapping[str, Any], max_bytes: int, host_bytes: int, spools: HostSpools
    ) -> None:
        self._descriptor = -1
        self.active = SegmentFile(-1)
        make_root(root)
        self.folder = root / f"{process['process_id']}-{secrets.token_hex(4)}"
        self.folder.mkdir(mode=0o770)
        self.written = WrittenSegments(self.folder)
        self._room = SpoolQuota(self.folder, max_bytes, host_bytes, spools)
        self._lock = -1
        try:
            self._lock = os.open(self.folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o660)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):
                (self.folder / RESERVED).write_bytes(bytes(RESERVE_BYTES))
            self.identify(process)  # last: the agent publishes no folder without one
        except BaseException:
            self.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    @property
    def used(self) -> int:
        """Bytes that lie here."""
        return self.written.used + self.active.bytes

    @property
    def limit(self) -> int:
        """Bytes that may lie here now."""
        return self._room.limit

    def identify(self, process: Mapping[str, Any]) -> None:
        """Replace who the process is."""
        scratch = self.folder / f"{IDENTITY}{SCRATCH}"
        scratch.write_text(identity_text(process))
        scratch.replace(self.folder / IDENTITY)

    def open_segment(self) -> None:
        """Begin the next one. On a full disk there is room for it once the oldest have given way."""
        self.settle()
        self._fit(0)
        before, self.active = self.active, SegmentFile(self.active.number + 1)
        path = self.folder / segment_name(self.active.number)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o660)
        try:
            self.write([SEGMENT_MAGIC])
        except OSError:
            self._close_segment()
            path.unlink()
            self.active = before
            raise

    def end_segment(self) -> None:
        """It gets no more."""
        self._close_segment()
        self.written.append(self.active)
        self.active = SegmentFile(self.active.number)

    def write(self, parts: list[bytes]) -> None:
        """All of it or nothing: half a frame is taken back."""
        size = sum(len(part) for part in parts)
        try:
            wrote = os.writev(self._descriptor, parts)
            if wrote < size:  # the file system is full, or a limit is reached; the next write would say which
                raise OSError(f"{wrote} of {size} bytes were written")
        except OSError:
            os.ftruncate(self._descriptor, self.active.bytes)
            raise
        self.active.bytes += size

    @property
    def full(self) -> str:
        """Why that is so little."""
        return self._room.full

    def settle(self) -> None:
        """Forget what the agent has deleted, and look how much room there is."""
        self.written.settle()
        self._room.measure(self.used, len(self.written))

    def make_room(self, size: int) -> bool:
        """Throw away until `size` bytes fit; False if that cannot be."""
        if self.used + size <= self.limit and not self._room.due:
            return True
        self.settle()
        return self._fit(size)

    def _fit(self, size: int) -> bool:
        self._room.clear(self.used, len(self.written), self.used + size)
        while self.used + size > self.limit:
            if not self.written.throw_away_oldest():
                return False
        return True

    def use_reserve(self) -> None:
        """Give up what was kept for the end."""
        (self.folder / RESERVED).unlink(missing_ok=True)

    def _close_segment(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def close(self) -> None:
        """Let go of files and lock. In a fork's child this does not release the parent's lock."""
        self._close_segment()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1
