"""The spool's writing end, in the decoder beside a GPU process: batches into files that the node agent publishes.

Nothing here raises, waits for anybody, or takes more than `max_bytes` and the part that spool_room.py allows: beyond it
the oldest segments that nobody has taken are replaced by what they held (LOSS frames: the agent publishes an empty
batch for each one lost, with the rows in its `dropped_before`). The files are in spool_files.py.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from drumline.producers.spool.frames import DATA, Losses, add_losses, head, loss_frames, lost
from drumline.producers.spool.quota import PROCESSES, HostSpools
from drumline.producers.spool.writer_files import WriterFiles

#: After a failure to create the folder or a segment, the next try; s.
RETRY_S = 2.0
#: How long `close` waits for a writing thread that hangs; s.
CLOSE_S = 2.0
SEGMENT_BYTES = 8 << 20


class SpoolWriter:
    """One writer, for one process. All methods may be called from any thread and never raise.

    `process`: the envelope of a gpu.process.v1 record (feed.process_batch), JSON types only. `max_bytes`: the most that
    may lie here, `host_bytes`: in all spools below `root` together (spool_room.py; 0: PROCESSES times as much). A
    segment is closed at `segment_bytes`, a 16th of what may lie here, or `segment_s`, whatever comes first. `spools`:
    those below `root`, for several writers in one process. `clock`: monotonic seconds.

    `rows`: written, per topic; `bytes`: of their frames. `dropped`: rows lost, per topic, whether not written at all or
    thrown away later. `problem`: why nothing can be written right now, or "". After a fork the child's copy is inert.
    """

    def __init__(
        self,
        root: Path,
        process: Mapping[str, Any],
        *,
        max_bytes: int = 256 << 20,
        host_bytes: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        segment_s: float = 30.0,
        spools: HostSpools | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows: Counter[str] = Counter()
        self.bytes = 0
        self._lost: Counter[str] = Counter()
        self.problem = ""
        self._root, self._process, self._max_bytes = root, {"sequence": 0, **process}, max_bytes
        self._host_bytes, self._spools = host_bytes or PROCESSES * max_bytes, spools or HostSpools(root, clock)
        self._segment_bytes, self._segment_s, self._clock = segment_bytes, segment_s, clock
        self._lock = threading.Lock()
        self._files: WriterFiles | None = None
        self._opened, self._retry_at, self._done = 0.0, float("-inf"), False
        self._stale = False  # identity.json is
        self._pending: Losses = {}
        _SPOOLS.add(self)
        with self._lock:
            self._guarded(self._ready)

    @property
    def folder(self) -> Path | None:
        """Where it writes; None before the first success."""
        return self._files.folder if self._files is not None else None

    @property
    def dropped(self) -> Counter[str]:
        return self._lost + self._files.written.thrown if self._files is not None else +self._lost

    def append(self, topic: str, key: str, body: bytes, rows: int) -> bool:
        """Write one batch: its Avro body without schema id. False where it was dropped; that is counted, and told in
        the batch's place as soon as something can be written again."""
        with self._lock:
            if self._done:
                return False
            if self._guarded(lambda: self._append(topic, key, body, rows)):
                self.rows[topic] += rows
                return True
            self._lost[topic] += rows
            self._guarded(lambda: add_losses(self._pending, lost(topic, key, rows, body)), quiet=True)
            return False

    def identify(self, process: Mapping[str, Any]) -> None:
        """The process is known better now (GPU, versions): replace who it is."""
        with self._lock:
            self._process = {**self._process, **process, "sequence": self._process["sequence"] + 1}
            if self._files is not None and not self._done:
                self._stale = not self._guarded(partial(self._files.identify, self._process))

    def close(self) -> None:
        """The end: what could not be told yet is told if that is possible now. Batches after it are not taken."""
        if not self._lock.acquire(timeout=CLOSE_S):
            return
        try:
            if not self._done:
                self._guarded(self._last_words)
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
        files = self._ready()
        if files is None:
            return False
        young = self._clock() - self._opened < self._segment_s
        most = min(self._segment_bytes, files.limit // 16)  # many small ones: the oldest goes as a whole
        if files.active.held and not (young and files.active.bytes + size <= most):
            files.end_segment()
            files = self._ready()
            if files is None:
                return False
        try:
            fits = files.make_room(size + len(loss_frames(self._pending)))
        except FileNotFoundError:
            if not self._vanished():
                raise
            return self._append(topic, key, body, rows)
        if not fits:
            self.problem = files.full
            return False
        while True:
            try:
                self._tell(files, begin, body)
                break
            except OSError:
                if not files.written.throw_away_oldest():
                    raise
        add_losses(files.active.held, held)
        files.active.rows[topic] += rows
        self.bytes += size
        return True

    def _tell(self, files: WriterFiles | None, *parts: bytes) -> None:
        """Write the losses that are not told yet, and `parts` behind them."""
        if files is not None:
            older, files.written.untold = files.written.untold, {}
            add_losses(older, self._pending)
            self._pending = older
            files.write([loss_frames(self._pending), *parts])
            add_losses(files.active.held, self._pending)
            self._pending = {}

    def _last_words(self) -> None:
        self._vanished()
        if self._pending or self._stale or (self._files is not None and self._files.written.untold):
            self._retry_at = float("-inf")
            if self._files is not None:
                self._files.use_reserve()
            self._tell(self._ready())
            if self._stale and self._files is not None:
                self._files.identify(self._process)

    def _ready(self) -> WriterFiles | None:
        """Folder and segment are there; makes them. None while waiting for the next try."""
        if self._files is not None and self._files.is_open:
            return self._files
        if self._clock() < self._retry_at:
            return None
        self._retry_at = self._clock() + RETRY_S
        self._vanished()
        if self._files is None:
            self._files = WriterFiles(self._root, self._process, self._max_bytes, self._host_bytes, self._spools)
        self._files.open_segment()
        self._opened, self._retry_at = self._clock(), float("-inf")
        return self._files

    def _vanished(self) -> bool:
        """Whether somebody removed the folder; what was in it is told as lost then, from a new one."""
        files = self._files
        if files is None or files.folder.is_dir():
            return False
        files.close()
        gone = files.written.untold
        for segment in (*files.written, files.active):
            self._lost.update(segment.rows)
            add_losses(gone, segment.held)
        self._lost.update(files.written.thrown)
        add_losses(gone, self._pending)
        self._pending, self._files = gone, None
        return True

    def _forget(self) -> None:
        self._done = True
        if self._files is not None:
            self._files.close()

    def _after_fork(self) -> None:
        """In the child: these files are the parent's."""
        self._lock = threading.Lock()
        self._forget()


_SPOOLS: weakref.WeakSet[SpoolWriter] = weakref.WeakSet()


def _inert_after_fork() -> None:
    for spool in list(_SPOOLS):
        spool._after_fork()


os.register_at_fork(after_in_child=_inert_after_fork)
