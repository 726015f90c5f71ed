"""Writer of a spool, in the decoder beside a GPU process: appends batches to files that the node agent publishes.

Nothing here raises, waits for another process, or takes more than `max_bytes` and the quota (quota.py). Beyond that the
oldest segments that are not taken are replaced by LOSS frames: for each the agent publishes an empty batch, with the
lost rows in its `dropped_before`. The files are in writer_files.py.
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

from drumline.producers.spool.quota import HostSpools, SpoolLimits
from drumline.producers.spool.segment_format import DATA, KEPT, Losses, add_losses, head, loss_frames, lost
from drumline.producers.spool.writer_files import WriterFiles
from drumline.schemas.batch import Batch, encode
from drumline.schemas.model import model

#: Time until the next attempt after a failure to create the folder or a segment; s.
RETRY_S = 2.0
#: Longest wait of `close` for a writing thread that hangs; s.
CLOSE_S = 2.0


class SpoolWriter:
    """Appends the batches of one process to its spool.

    Owned by the process's decoder; `close` ends it. Methods may be called from any thread, block on the disk only, and
    never raise. In the child of a fork it does nothing.

    `process`: envelope of a gpu.process.v1 record, JSON types only. `spools`: scan of the root, to share between the
    writers of a process. `clock`: monotonic seconds. `resumed`: `position` of a killed writer, to go on in its folder.

    `rows`: written, by topic. `kept`: those of them that stay on the host. `bytes`: of all frames.
    `problem`: reason why nothing can be written now, or "".
    """

    def __init__(
        self,
        root: Path,
        process: Mapping[str, Any],
        limits: SpoolLimits = SpoolLimits(),
        *,
        spools: HostSpools | None = None,
        clock: Callable[[], float] = time.monotonic,
        resumed: tuple[str, int] = ("", 0),
    ) -> None:
        self.rows: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.bytes = 0
        self._lost: Counter[str] = Counter()
        self.problem = ""
        self._root, self._process, self._limits = root, {"sequence": 0, **process}, limits
        self._spools, self._clock = spools or HostSpools(root, clock), clock
        self._lock = threading.Lock()
        self._resumed = resumed
        self._files: WriterFiles | None = None
        self._opened, self._retry_at, self._done = 0.0, float("-inf"), False
        self._identity_is_stale = False  # identity.json
        self._pending: Losses = {}
        _WRITERS.add(self)
        with self._lock:
            self._guarded(self._ready)

    @property
    def folder(self) -> Path | None:
        """Folder of this spool; None before the first success."""
        return self._files.folder if self._files is not None else None

    @property
    def position(self) -> tuple[str, int]:
        """Name of the folder and number of the next segment; ("", 0) before the first success."""
        return (self._files.folder.name, self._files.active.number + 1) if self._files is not None else ("", 0)

    @property
    def dropped(self) -> Counter[str]:
        """Rows lost, by topic: not written, or evicted later."""
        return self._lost + self._files.written.evicted if self._files is not None else +self._lost

    def append(self, topic: str, key: str, body: bytes, rows: int, *, kept: bool = False) -> bool:
        """Append one batch and return whether it was written. `body`: Avro without schema id. `rows`: in the batch.
        `kept`: it stays on the host.

        A dropped batch is counted, and its loss is written in its place as soon as that is possible.
        """
        with self._lock:
            if self._done:
                return False
            if self._guarded(lambda: self._append(KEPT if kept else DATA, topic, key, body, rows)):
                self.rows[topic] += rows
                if kept:
                    self.kept[topic] += rows
                return True
            self._lost[topic] += rows
            self._guarded(lambda: add_losses(self._pending, lost(topic, key, rows, body)), quiet=True)
            return False

    def append_batch(self, key: str, batch: Batch, *, kept: bool = False) -> bool:
        """Append one batch as `append` does."""
        return self.append(str(batch.topic), key, encode(model(batch.topic), batch), batch.rows, kept=kept)

    def identify(self, process: Mapping[str, Any]) -> None:
        """Update the identity with newly known fields (GPU, versions)."""
        with self._lock:
            self._process = {**self._process, **process, "sequence": self._process["sequence"] + 1}
            if self._files is not None and not self._done:
                self._identity_is_stale = not self._guarded(partial(self._files.identify, self._process))

    def close(self) -> None:
        """Write the losses that are not written yet, and close the files. Later batches are not accepted."""
        if not self._lock.acquire(timeout=CLOSE_S):
            return
        try:
            if not self._done:
                self._guarded(self._write_final_losses)
            self._forget()
        finally:
            self._lock.release()

    def _guarded(self, action: Callable[[], Any], quiet: bool = False) -> bool:
        """Run an action and return whether it succeeded. No error must reach the job."""
        try:
            done = action() is not False
            if done and not quiet:
                self.problem = ""
            return done
        except Exception as error:
            self.problem = self.problem if quiet else f"{type(error).__name__}: {error}"
            return False

    def _append(self, kind: int, topic: str, key: str, body: bytes, rows: int) -> bool:
        begin = head(kind, topic, key, rows, 1, body)
        held = lost(topic, key, rows, body)
        size = len(begin) + len(body)
        if size > self._limits.max_bytes // 4:
            raise ValueError(f"a batch of {size} bytes for a spool of {self._limits.max_bytes}")
        files = self._ready()
        if files is None:
            return False
        young = self._clock() - self._opened < self._limits.segment_s
        most = min(self._limits.segment_bytes, files.limit // 16)  # small ones, as whole segments are evicted
        if files.active.held and not (young and files.active.bytes + size <= most):
            files.end_segment()
            files = self._ready()
            if files is None:
                return False
        try:
            fits = files.make_space(size + len(loss_frames(self._pending)))
        except FileNotFoundError:
            if not self._drop_removed_folder():
                raise
            return self._append(kind, topic, key, body, rows)
        if not fits:
            self.problem = files.full_reason
            return False
        while True:
            try:
                self._write_with_losses(files, begin, body)
                break
            except OSError:
                if not files.written.evict_oldest():
                    raise
        add_losses(files.active.held, held)
        files.active.rows[topic] += rows
        self.bytes += size
        return True

    def _write_with_losses(self, files: WriterFiles | None, *parts: bytes) -> None:
        """Write the losses that are not written yet, and `parts` behind them."""
        if files is not None:
            older, files.written.unreported = files.written.unreported, {}
            add_losses(older, self._pending)
            self._pending = older
            files.write([loss_frames(self._pending), *parts])
            add_losses(files.active.held, self._pending)
            self._pending = {}

    def _write_final_losses(self) -> None:
        self._drop_removed_folder()
        if self._pending or self._identity_is_stale or (self._files is not None and self._files.written.unreported):
            self._retry_at = float("-inf")
            if self._files is not None:
                self._files.use_reserve()
            self._write_with_losses(self._ready())
            if self._identity_is_stale and self._files is not None:
                self._files.identify(self._process)

    def _ready(self) -> WriterFiles | None:
        """Create folder and segment if they are missing. Returns None until the next attempt is due."""
        if self._files is not None and self._files.is_open:
            return self._files
        if self._clock() < self._retry_at:
            return None
        self._retry_at = self._clock() + RETRY_S
        self._drop_removed_folder()
        if self._files is None:
            self._files = WriterFiles(self._root, self._process, self._limits, self._spools, self._resumed)
            self._resumed = ("", 0)
        self._files.open_segment()
        self._opened, self._retry_at = self._clock(), float("-inf")
        return self._files

    def _drop_removed_folder(self) -> bool:
        """Return whether the folder was removed; its rows are counted as lost then, in a new folder."""
        files = self._files
        if files is None or files.is_present:
            return False
        files.close()
        losses = files.written.unreported
        for segment in (*files.written, files.active):
            self._lost.update(segment.rows)
            add_losses(losses, segment.held)
        self._lost.update(files.written.evicted)
        add_losses(losses, self._pending)
        self._pending, self._files = losses, None
        return True

    def _forget(self) -> None:
        self._done = True
        if self._files is not None:
            self._files.close()

    def _after_fork(self) -> None:
        """Close the files in the child; they are the parent's."""
        self._lock = threading.Lock()
        self._forget()


_WRITERS: weakref.WeakSet[SpoolWriter] = weakref.WeakSet()


def _inert_after_fork() -> None:
    for writer in list(_WRITERS):
        writer._after_fork()


os.register_at_fork(after_in_child=_inert_after_fork)
