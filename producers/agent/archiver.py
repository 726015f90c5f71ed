"""Segments that are in Kafka, compressed into S3-compatible storage. A thread of its own: it never holds publishing up.

    <url>/<host>/<process folder>/identity.json
    <url>/<host>/<process folder>/<date>/<number>.seg.zst

A name has one content, so whatever is sent twice is the same object. Downloaded and decompressed (.seg beside
identity.json) it is a spool again. What waits lies in <spool>/.agent/archive, up to a bound; then the oldest goes.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from glob import glob
from pathlib import Path

import structlog

from drumline.infra.runtime.retry import Retry
from drumline.infra.telemetry import metrics
from drumline.producers.agent.cursor import own
from drumline.producers.agent.object_store import Store
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.layout import IDENTITY, OPEN, BadSpool, segment_name
from drumline.producers.spool.quota import bounds
from drumline.producers.spool.reader import Segment, open_file

log = structlog.get_logger()

#: Between two looks for segments; s.
LOOK_S = 1.0
#: How long `drain` waits for a storage that takes nothing; s.
PATIENCE_S = 60.0


class Archiver(threading.Thread):
    """`take` is what the agent does with a segment that is in Kafka. `problem`: why nothing goes out, or "".
    `left_out`: segments that never will."""

    def __init__(
        self,
        folder: Path,
        host: str,
        most_bytes: int,
        store: Store,
        compress: Callable[[bytes], bytes],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="archive", daemon=True)
        self._folder, self._host, self._most_bytes = folder, host, most_bytes
        self._store, self._compress, self._clock = store, compress, clock
        self._halt = threading.Event()
        self._folders = threading.Lock()  # one is not removed while a segment moves in
        self._retry = Retry()
        self.problem, self.left_out = "", 0
        own(folder.parent)
        folder.mkdir(exist_ok=True)

    def take(self, segment: Segment, folder: SpoolDirectory) -> None:
        """Move a segment into the backlog. Where that cannot be it is deleted: Kafka has it. Raises nothing."""
        target = self._folder / folder.path.name
        moved = target / segment_name(segment.number)
        try:
            segment.close()
            with self._folders:
                own(self._folder.parent)  # somebody may have removed the spool
                target.mkdir(parents=True, exist_ok=True)
                (target / IDENTITY).write_bytes(folder.identity_bytes())
                segment.path.rename(moved)
            os.close(open_file(moved))  # nothing else may have come in its place
        except (OSError, BadSpool) as error:
            self.left_out += 1
            log.error("a segment is not archived", folder=folder.path.name, error=str(error))
            metrics.AGENT_ARCHIVE_DROPPED.inc(_size(segment.path))
            for path in (segment.path, moved):
                with suppress(OSError):
                    path.unlink()

    def drain(self, go_on: Callable[[], bool], patience_s: float = PATIENCE_S) -> int:
        """Wait until nothing waits for the storage; no longer than `go_on`, nor than `patience_s` in which nothing
        went. How many segments wait."""
        left, since = self._left(), time.monotonic()
        if left:
            log.info("waiting for the archive", segments=left)
        while left and go_on() and time.monotonic() - since < patience_s:
            self._halt.wait(0.1)
            if (now := self._left()) != left:
                left, since = now, time.monotonic()
        return left

    def _left(self) -> int:
        return len(glob(f"*/*{OPEN}", root_dir=self._folder))  # Path.glob minds folders that vanish

    def stop(self) -> None:
        """What waits stays for the next agent."""
        self._halt.set()
        self.join(5.0)

    def run(self) -> None:
        """Until `stop`."""
        while not self._halt.is_set():
            try:
                self.turn()
            except OSError as error:
                self._say(f"the backlog cannot be used: {error.strerror}")
            self._halt.wait(LOOK_S)

    def turn(self) -> None:
        """Put everything away that waits, oldest first, until something fails. Raises OSError."""
        own(self._folder.parent)
        waiting = sorted(self._folder.glob(f"*/*{OPEN}"), key=lambda path: (path.stat().st_mtime_ns, path))
        waiting = self._bounded(waiting)
        metrics.AGENT_ARCHIVE_BACKLOG.set(sum(_size(path) for path in waiting))
        if self._clock() < self._retry.at:
            return
        for path in waiting:
            if self._halt.is_set():
                return
            try:
                self._put(path)
            except Exception as error:  # whatever the store's client raises
                self._retry.failed(self._clock(), 0.5 + random.random() / 2)
                metrics.AGENT_ARCHIVE_RETRIES.inc()
                self._say(f"nothing can be archived: {str(error).splitlines()[0][:200]}")
                return
            self._retry.worked()
            self._say("")

    def _put(self, path: Path) -> None:
        process, content = path.parent.name, path.read_bytes()
        packed = self._compress(content)
        day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
        self._store(f"{self._host}/{process}/{IDENTITY}", (path.parent / IDENTITY).read_bytes())
        self._store(f"{self._host}/{process}/{day}/{path.name}.zst", packed)
        metrics.AGENT_ARCHIVED.inc(len(packed))
        path.unlink()
        with self._folders:
            if not any(path.parent.glob(f"*{OPEN}")):
                shutil.rmtree(path.parent)

    def _bounded(self, waiting: list[Path]) -> list[Path]:
        """Without the oldest ones, as far as they are too many bytes."""
        total = sum(_size(path) for path in waiting)
        most, _ = bounds(self._folder, self._most_bytes)  # it lies beside the spools
        while waiting and total > most:
            oldest = waiting.pop(0)
            total -= _size(oldest)
            metrics.AGENT_ARCHIVE_DROPPED.inc(_size(oldest))
            self.left_out += 1
            log.warning("the archive's backlog is full, a segment is left out", process=oldest.parent.name)
            oldest.unlink(missing_ok=True)
        return waiting

    def _say(self, problem: str) -> None:
        if bool(problem) != bool(self.problem):
            if problem:
                log.warning("archive", problem=problem)
            else:
                log.info("archiving again")
        self.problem = problem


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
