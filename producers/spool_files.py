"""The files of one spool folder, as its writer sees them: segments to append to, the oldest ones to throw away.

    <root>/<process id>-<random>/lock           held (flock) as long as the writer lives
                                 identity.json  who the process is: the record of gpu.process.v1, and its schemas
                                 reserve        room for the last words, should the disk be full then
                                 000000000000.seg, ...   segments (spool_frames.py), the last one is being written

The agent renames a segment to .taken before it reads it; what is not taken is the writer's to throw away. A rename
succeeds for one of the two, so every batch is either published or counted as lost, never both.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.producers.spool_frames import SEGMENT_MAGIC, Losses, add_losses, loss_frames
from drumline.schemas.model import model
from drumline.schemas.topics import TOPICS

FORMAT = 1
LOCK, IDENTITY, RESERVED = "lock", "identity.json", "reserve"
#: What the losses of a process with some tens of communicators take; bytes.
RESERVE_BYTES = 32_768
OPEN, TAKEN, REPLACED, SCRATCH = ".seg", ".taken", ".old", ".tmp"
#: Of the file system: what one spool may take at most, and what is left free: NCCL and data loaders use /dev/shm too.
SHARE, RESERVE = 1 / 8, 0.1


def segment_name(number: int, suffix: str = OPEN) -> str:
    return f"{number:012d}{suffix}"


@dataclass(slots=True, eq=False)
class SegmentFile:
    """`held`: its batches, as the losses they would be. `rows`: of its batches, per topic."""

    number: int
    bytes: int = 0
    held: Losses = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)


class SpoolFiles:
    """A new folder; everything raises OSError. `active`: what `write` appends to while `is_open`. `closed`: the others,
    oldest first. `limit`: bytes that may lie here now. `thrown`: rows that `throw_away_oldest` cost, per topic.
    `untold`: losses that could not be written down."""

    def __init__(self, root: Path, process: Mapping[str, Any], max_bytes: int) -> None:
        self._max_bytes = self.limit = max_bytes
        self._descriptor = -1
        self.active, self._hollow = SegmentFile(-1), SegmentFile(-1)
        self.closed: deque[SegmentFile] = deque()
        self.thrown: Counter[str] = Counter()
        self.untold: Losses = {}
        if not root.is_dir():
            root.mkdir(parents=True, exist_ok=True)
            root.chmod(0o1777)  # jobs of any user may come first, the agent reads them all
        self.folder = root / f"{process['process_id']}-{secrets.token_hex(4)}"
        self.folder.mkdir(mode=0o770)
        self._lock = -1
        try:
            self._lock = os.open(self.folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o660)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):
                (self.folder / RESERVED).write_bytes(bytes(RESERVE_BYTES))
            self.identify(process)  # last: the agent looks at no folder without one
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
        return sum(segment.bytes for segment in self.closed) + self.active.bytes

    def identify(self, process: Mapping[str, Any]) -> None:
        """Replace who the process is."""
        schemas = {str(spec.topic): model(spec.topic).fingerprint for spec in TOPICS if not spec.derived}
        scratch = self.folder / f"{IDENTITY}{SCRATCH}"
        scratch.write_text(json.dumps({"format": FORMAT, "process": process, "schemas": schemas}))
        scratch.replace(self.folder / IDENTITY)

    def open_segment(self) -> None:
        """Begin the next one."""
        self.settle()
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
        self.closed.append(self.active)
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

    def settle(self) -> None:
        """Forget what the agent has deleted, and look how much the file system has left."""
        there = {name.partition(".")[0] for name in os.listdir(self.folder)}
        self.closed = deque(s for s in self.closed if segment_name(s.number, "") in there)
        disk = os.statvfs(self.folder)
        spare = int((disk.f_bavail - RESERVE * disk.f_blocks) * disk.f_frsize)
        self.limit = min(self._max_bytes, int(SHARE * disk.f_blocks * disk.f_frsize), self.used + max(spare, 0))

    def make_room(self, size: int) -> bool:
        """Throw away until `size` bytes fit; False if that cannot be."""
        if self.used + size <= self.limit:
            return True
        self.settle()
        while self.used + size > self.limit:
            if not self.throw_away_oldest():
                return False
        return True

    def use_reserve(self) -> None:
        """Give up what was kept for the end."""
        (self.folder / RESERVED).unlink(missing_ok=True)

    def throw_away_oldest(self) -> bool:
        """Replace the oldest segment that is not taken by what it held. False if there is none.

        Killed anywhere in here the folder holds .old files; the agent brings them back, or deletes them where the
        replacement is there (SpoolFolder.take)."""
        for segment in [s for s in self.closed if s is not self._hollow]:
            if not self._move(segment):  # taken: the agent's now
                continue
            self.thrown.update(segment.rows)
            olds, losses = [segment], segment.held
            if self._hollow in self.closed and self._move(self._hollow):
                losses = {}
                add_losses(losses, self._hollow.held)
                add_losses(losses, segment.held)
                olds.insert(0, self._hollow)
            self._replace(olds, losses)
            return True
        return False

    def _replace(self, olds: list[SegmentFile], losses: Losses) -> None:
        """Write a segment of losses in the place of the last of `olds`; where even that fails they stay in memory."""
        hollow = SegmentFile(olds[-1].number, held=losses)
        content = SEGMENT_MAGIC + loss_frames(losses)
        try:
            self._put(hollow.number, content)
        except OSError:
            self._unlink(olds)  # that makes room
            try:
                self._put(hollow.number, content)
            except OSError:
                hollow = SegmentFile(-1)
                add_losses(self.untold, losses)
        self._unlink(olds)
        for old in olds:
            self.closed.remove(old)
        self._hollow = hollow
        if hollow.number >= 0:
            hollow.bytes = len(content)
            self.closed.appendleft(hollow)

    def _put(self, number: int, content: bytes) -> None:
        scratch = self.folder / segment_name(number, SCRATCH)
        try:
            scratch.write_bytes(content)
            scratch.replace(self.folder / segment_name(number))
        except OSError:
            scratch.unlink(missing_ok=True)
            raise

    def _unlink(self, segments: list[SegmentFile]) -> None:
        for segment in segments:
            (self.folder / segment_name(segment.number, REPLACED)).unlink(missing_ok=True)

    def _move(self, segment: SegmentFile) -> bool:
        """Make it the writer's; False where it is the agent's."""
        path = self.folder / segment_name(segment.number)
        try:
            path.rename(path.with_suffix(REPLACED))
        except FileNotFoundError:
            return False
        return True

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
