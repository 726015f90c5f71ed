"""The spool's writing end, inside the GPU process: batches into files that the node agent publishes.

    <root>/<process id>-<random>/lock           held (flock) as long as the writer lives
                                 identity.json  who the process is: the record of gpu.process.v1, and its schemas
                                 000000000000.seg, ...   segments (spool_frames.py), the last one is being written

The agent renames a segment to .taken before it reads it; what is not taken is the writer's to throw away. A rename
succeeds for one of the two, so every batch is either published or counted as lost, never both.

Nothing here raises, waits for anybody, or takes more than `max_bytes`: beyond it the oldest segments that nobody has
taken are replaced by what they held (LOSS frames: the agent publishes an empty batch for each one lost, with the rows
in its `dropped_before`).
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.producers.spool_frames import (
    DATA,
    SEGMENT_MAGIC,
    Losses,
    add_losses,
    head,
    loss_frames,
    lost,
)
from drumline.schemas.model import model
from drumline.schemas.topics import TOPICS

FORMAT = 1
LOCK, IDENTITY = "lock", "identity.json"
OPEN, TAKEN, REPLACED, SCRATCH = ".seg", ".taken", ".old", ".tmp"
#: Of the file system: what one spool may take at most, and what is left free: NCCL and data loaders use /dev/shm too.
SHARE, RESERVE = 1 / 8, 0.1
#: After a failure to create the folder or a segment, the next try; s.
RETRY_S = 2.0
#: How long `close` waits for a writing thread that hangs; s.
CLOSE_S = 2.0


def segment_name(number: int, suffix: str = OPEN) -> str:
    return f"{number:012d}{suffix}"


@dataclass(slots=True, eq=False)
class _Segment:
    """`held`: its batches, as the losses they would be. `rows`: of its batches, per topic."""

    number: int
    bytes: int = 0
    held: Losses = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)


class Spool:
    """One writer, for one process. All methods may be called from any thread and never raise.

    `process`: the envelope of a gpu.process.v1 record (feed.process_batch), JSON types only. `max_bytes`: the most that
    may lie here. A segment is closed at `segment_bytes` (0 = 8 MiB), a 16th of what may lie here, or `segment_s`,
    whatever comes first. `clock`: monotonic seconds.

    `rows`: written, per topic. `dropped`: rows lost, per topic, whether not written at all or thrown away later.
    `problem`: why nothing can be written right now, or "". After a fork the child's copy is inert.
    """

    def __init__(
        self,
        root: Path,
        process: Mapping[str, Any],
        *,
        max_bytes: int = 256 << 20,
        segment_bytes: int = 0,
        segment_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.problem = ""
        self._root, self._process = root, {"sequence": 0, **process}
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes or 8 << 20
        self._segment_s, self._clock = segment_s, clock
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._lock_fd = self._fd = -1
        self._closed_segments: deque[_Segment] = deque()
        self._hollow: _Segment | None = None
        self._active = _Segment(-1)
        self._opened = 0.0
        self._pending: Losses = {}
        self._limit, self._retry_at, self._done = max_bytes, float("-inf"), False
        _SPOOLS.add(self)
        with self._lock:
            self._guarded(self._ready)

    @property
    def folder(self) -> Path | None:
        """Where it writes; None before the first success."""
        return self._folder

    def append(self, topic: str, key: str, body: bytes, rows: int) -> bool:
        """Write one batch: its Avro body without schema id. False where it was dropped; that is counted, and told in
        the batch's place as soon as something can be written again."""
        with self._lock:
            if self._done:
                return False
            if self._guarded(lambda: self._append(topic, key, body, rows)):
                self.rows[topic] += rows
                return True
            self.dropped[topic] += rows
            self._guarded(lambda: add_losses(self._pending, lost(topic, key, rows, body)), quiet=True)
            return False

    def identify(self, process: Mapping[str, Any]) -> None:
        """The process is known better now (GPU, versions): replace who it is."""
        with self._lock:
            self._process = {**self._process, **process, "sequence": self._process["sequence"] + 1}
            if self._folder is not None and not self._done:
                self._guarded(self._write_identity)

    def close(self) -> None:
        """The end: what could not be told yet is told if that is possible now. Batches after it are not taken."""
        if not self._lock.acquire(timeout=CLOSE_S):
            return
        try:
            if not self._done and self._pending:
                self._retry_at = float("-inf")
                self._guarded(self._ready) and self._guarded(self._tell)
            self._forget()
        finally:
            self._lock.release()

    def _guarded(self, what: Callable[[], Any], quiet: bool = False) -> bool:
        """Run it; False where it could not be done. Whatever goes wrong here must not reach the job."""
        try:
            done = what() is not False
            if done and not quiet:
                self.problem = ""
            return done
        except Exception as error:
            self.problem = self.problem if quiet else f"{type(error).__name__}: {error}"
            return False

    def _append(self, topic: str, key: str, body: bytes, rows: int) -> bool:
        begin = head(DATA, topic, key, rows, 1, body)
        held = lost(topic, key, rows, body)
        size = len(begin) + len(body)
        if size > self._max_bytes // 4:
            raise ValueError(f"a batch of {size} bytes for a spool of {self._max_bytes}")
        if not self._ready():
            return False
        young = self._clock() - self._opened < self._segment_s
        most = min(self._segment_bytes, self._limit // 16)  # many small ones: the oldest goes as a whole
        if self._active.held and not (young and self._active.bytes + size <= most):
            self._end_segment()
            if not self._ready():
                return False
        if not self._make_room(size + len(loss_frames(self._pending))):
            self.problem = "full, and no segment is left to throw away"
            return False
        while True:
            try:
                self._tell([begin, body])
                break
            except OSError:
                if not self._throw_away_oldest():
                    raise
        add_losses(self._active.held, held)
        self._active.rows[topic] += rows
        return True

    def _tell(self, parts: list[bytes] | None = None) -> None:
        """Write the losses that are not told yet, and `parts` behind them."""
        self._write([loss_frames(self._pending), *(parts or [])])
        add_losses(self._active.held, self._pending)
        self._pending = {}

    def _write(self, parts: list[bytes]) -> None:
        """All of it or nothing: half a frame is taken back."""
        size = sum(len(part) for part in parts)
        wrote = 0
        try:
            wrote = os.writev(self._fd, parts)
            if wrote < size:  # the file system is full, or a limit is reached; the next write would say which
                raise OSError(f"{wrote} of {size} bytes were written")
        except OSError:
            os.ftruncate(self._fd, self._active.bytes)
            raise
        self._active.bytes += size

    def _ready(self) -> bool:
        """Folder and segment are there; makes them. False while waiting for the next try."""
        if self._fd >= 0:
            return True
        if self._clock() < self._retry_at:
            return False
        self._retry_at = self._clock() + RETRY_S
        if self._folder is None:
            self._make_folder()
        self._open_segment()
        self._retry_at = float("-inf")
        return True

    def _make_folder(self) -> None:
        if not self._root.is_dir():
            self._root.mkdir(parents=True, exist_ok=True)
            self._root.chmod(0o1777)  # jobs of any user may come first, the agent reads them all
        folder = self._root / f"{self._process['process_id']}-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o770)
        descriptor = -1
        try:
            descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o660)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._folder = folder
            self._write_identity()  # last: the agent looks at no folder without one
            self._lock_fd = descriptor
        except BaseException:
            self._folder = None
            if descriptor >= 0:
                os.close(descriptor)
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _write_identity(self) -> None:
        assert self._folder is not None
        schemas = {str(spec.topic): model(spec.topic).fingerprint for spec in TOPICS if not spec.derived}
        scratch = self._folder / f"{IDENTITY}{SCRATCH}"
        scratch.write_text(json.dumps({"format": FORMAT, "process": self._process, "schemas": schemas}))
        scratch.replace(self._folder / IDENTITY)

    def _open_segment(self) -> None:
        assert self._folder is not None
        self._settle()
        number = self._active.number + 1
        path = self._folder / segment_name(number)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o660)
        self._active, self._opened = _Segment(number), self._clock()
        try:
            self._write([SEGMENT_MAGIC])
        except OSError:
            os.close(self._fd)
            self._fd = -1
            path.unlink()
            self._active = _Segment(number - 1)
            raise

    def _end_segment(self) -> None:
        os.close(self._fd)
        self._fd = -1
        self._closed_segments.append(self._active)
        self._active = _Segment(self._active.number)

    def _settle(self) -> None:
        """Forget what the agent has deleted, and look how much the file system has left."""
        assert self._folder is not None
        there = {name.partition(".")[0] for name in os.listdir(self._folder)}
        kept = [s for s in self._closed_segments if segment_name(s.number, "") in there]
        self._closed_segments = deque(kept)
        disk = os.statvfs(self._folder)
        spare = int((disk.f_bavail - RESERVE * disk.f_blocks) * disk.f_frsize)
        self._limit = min(self._max_bytes, int(SHARE * disk.f_blocks * disk.f_frsize), self._bytes() + max(spare, 0))

    def _bytes(self) -> int:
        return sum(segment.bytes for segment in self._closed_segments) + self._active.bytes

    def _make_room(self, size: int) -> bool:
        """Throw away until `size` bytes fit; False if that cannot be."""
        if self._bytes() + size <= self._limit:
            return True
        self._settle()
        while self._bytes() + size > self._limit:
            if not self._throw_away_oldest():
                return False
        return True

    def _throw_away_oldest(self) -> bool:
        """Replace the oldest segment that is not taken by what it held. False if there is none.

        Killed anywhere in here the folder holds .old files; the agent brings them back, or deletes them where the
        replacement is there (spool_reader.recover)."""
        assert self._folder is not None
        for segment in [s for s in self._closed_segments if s is not self._hollow]:
            if not self._move(segment, OPEN, REPLACED):  # taken: the agent's now
                continue
            self.dropped.update(segment.rows)
            olds, losses = [segment], segment.held
            if self._hollow in self._closed_segments and self._hollow and self._move(self._hollow, OPEN, REPLACED):
                losses = {}
                add_losses(losses, self._hollow.held)
                add_losses(losses, segment.held)
                olds.insert(0, self._hollow)
            self._replace(olds, losses)
            return True
        return False

    def _replace(self, olds: list[_Segment], losses: Losses) -> None:
        """Write a segment of losses in the place of the last of `olds`; where even that fails they stay in memory."""
        assert self._folder is not None
        number = olds[-1].number
        content = SEGMENT_MAGIC + loss_frames(losses)
        scratch = self._folder / segment_name(number, SCRATCH)
        freed = False
        while True:
            try:
                scratch.write_bytes(content)
                scratch.replace(self._folder / segment_name(number))
                self._hollow = _Segment(number, len(content), losses)
                break
            except OSError:
                scratch.unlink(missing_ok=True)
                if freed:
                    self._hollow = None
                    behind, self._pending = self._pending, losses
                    add_losses(self._pending, behind)
                    break
            self._unlink(olds)
            freed = True
        self._unlink(olds)
        for old in olds:
            self._closed_segments.remove(old)
        if self._hollow is not None:
            self._closed_segments.appendleft(self._hollow)

    def _unlink(self, segments: list[_Segment]) -> None:
        assert self._folder is not None
        for segment in segments:
            (self._folder / segment_name(segment.number, REPLACED)).unlink(missing_ok=True)

    def _move(self, segment: _Segment, before: str, after: str) -> bool:
        assert self._folder is not None
        try:
            (self._folder / segment_name(segment.number, before)).rename(
                self._folder / segment_name(segment.number, after)
            )
        except FileNotFoundError:
            return False
        return True

    def _forget(self) -> None:
        """Let go of files and lock."""
        self._done = True
        for descriptor in (self._fd, self._lock_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._lock_fd = -1

    def _after_fork(self) -> None:
        """In the child: these files are the parent's. Closing its copy of the descriptor does not release the lock."""
        self._lock = threading.Lock()
        self._forget()


_SPOOLS: weakref.WeakSet[Spool] = weakref.WeakSet()


def _inert_after_fork() -> None:
    for spool in list(_SPOOLS):
        spool._after_fork()


os.register_at_fork(after_in_child=_inert_after_fork)
