"""Archive of the segments that are in Kafka: compressed, in S3-compatible storage.

    <url>/<host>/<process folder>/identity.json
    <url>/<host>/<process folder>/<date>/<number>.seg.zst

A name has one content, so a repeated upload gives the same object. Downloaded and decompressed (.seg beside
identity.json) it is a spool again. The backlog lies in <spool>/.agent/archive, up to a bound; then the oldest segment
is evicted.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from glob import glob
from pathlib import Path

import structlog

from drumline.infra.runtime.retry import Retry
from drumline.infra.telemetry import metrics
from drumline.producers.agent.object_store import Store
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.files import agent_folder, opened
from drumline.producers.spool.folder_layout import IDENTITY, OPEN, BadSpool, segment_name
from drumline.producers.spool.quota import bounds
from drumline.producers.spool.reader import Segment

log = structlog.get_logger()

#: Period of scanning the backlog; s.
SCAN_S = 1.0
#: Time without an upload after which `drain` ends; s.
STALL_TIMEOUT_S = 60.0


class Archiver(threading.Thread):
    """Uploads segments in a thread of its own, so that it never delays publishing.

    `drumline agent` starts and stops it. The agent's thread calls `take`, which only moves a file.

    Attributes:
        problem: reason why nothing is archived, or "".
        left_out: number of segments that will never be archived.
    """

    def __init__(
        self,
        root: Path,
        host: str,
        most_bytes: int,
        store: Store,
        compress: Callable[[bytes], bytes],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="archive", daemon=True)
        self._root, self._host, self._most_bytes = root, host, most_bytes
        self._store, self._compress, self._clock = store, compress, clock
        self._halt = threading.Event()
        self._folders = threading.Lock()  # held while a folder gets or loses its last segment
        self._retry = Retry()
        self.problem, self.left_out = "", 0
        with self._backlog():
            pass

    @contextmanager
    def _backlog(self) -> Iterator[Path]:
        """Yield the folder of the backlog, below the descriptor of the agent's folder. Raises OSError."""
        with agent_folder(self._root) as descriptor:
            path = Path(f"/proc/self/fd/{descriptor}/archive")
            path.mkdir(exist_ok=True)
            yield path

    def take(self, segment: Segment, folder: SpoolDirectory) -> None:
        """Move a segment into the backlog, or delete it where that fails: Kafka has it. Raises nothing."""
        size, inode = segment.size, segment.inode
        try:
            segment.close()
            with self._folders, self._backlog() as backlog:
                target = backlog / folder.path.name
                target.mkdir(exist_ok=True)
                (target / IDENTITY).write_bytes(folder.identity_bytes())
                moved = target / segment_name(segment.number)
                with opened(target) as directory:
                    folder.rename(segment.name, moved.name, directory)
                if moved.lstat().st_ino != inode:
                    moved.unlink()
                    raise BadSpool(f"{segment.name} is not the file that was published")
        except (OSError, BadSpool) as error:
            self.left_out += 1
            log.error("a segment is not archived", folder=folder.path.name, error=str(error))
            metrics.AGENT_ARCHIVE_DROPPED.inc(size)
            with suppress(OSError):
                folder.unlink(segment.name)

    def drain(self, go_on: Callable[[], bool], stall_timeout_s: float = STALL_TIMEOUT_S) -> int:
        """Wait until the backlog is empty and return how many segments are left.

        Ends when `go_on` is false, or after `stall_timeout_s` without an upload.
        """
        left, since = self._count_pending(), time.monotonic()
        if left:
            log.info("waiting for the archive", segments=left)
        while left and go_on() and time.monotonic() - since < stall_timeout_s:
            self._halt.wait(0.1)
            if (now := self._count_pending()) != left:
                left, since = now, time.monotonic()
        return left

    def _count_pending(self) -> int:
        with suppress(OSError), self._backlog() as backlog:
            return len(glob(f"*/*{OPEN}", root_dir=backlog))  # Path.glob fails on folders that vanish
        return 0

    def stop(self) -> None:
        """Stop the thread; the backlog stays for the next agent."""
        self._halt.set()
        self.join(5.0)

    def run(self) -> None:
        """Archive until `stop`."""
        while not self._halt.is_set():
            try:
                self.archive_pending()
            except OSError as error:
                self._report(f"the backlog cannot be used: {error.strerror}")
            self._halt.wait(SCAN_S)

    def archive_pending(self) -> None:
        """Upload the backlog, oldest first, until something fails. Raises OSError."""
        with self._backlog() as backlog:
            self._archive(backlog)

    def _archive(self, backlog: Path) -> None:
        pending = sorted(backlog.glob(f"*/*{OPEN}"), key=lambda path: (path.stat().st_mtime_ns, path))
        pending = self._bounded(backlog, pending)
        metrics.AGENT_ARCHIVE_BACKLOG.set(sum(_size(path) for path in pending))
        if self._clock() < self._retry.at:
            return
        for path in pending:
            if self._halt.is_set():
                return
            try:
                self._put(path)
            except Exception as error:  # whatever the store's client raises
                self._retry.failed(self._clock(), 0.5 + random.random() / 2)
                metrics.AGENT_ARCHIVE_RETRIES.inc()
                self._report(f"nothing can be archived: {str(error).splitlines()[0][:200]}")
                return
            self._retry.worked()
            self._report("")

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

    def _bounded(self, backlog: Path, pending: list[Path]) -> list[Path]:
        """Evict the oldest segments until the backlog fits its bound, and return the rest."""
        total = sum(_size(path) for path in pending)
        most, _ = bounds(backlog, self._most_bytes)  # it lies beside the spools
        while pending and total > most:
            oldest = pending.pop(0)
            total -= _size(oldest)
            metrics.AGENT_ARCHIVE_DROPPED.inc(_size(oldest))
            self.left_out += 1
            log.warning("the archive's backlog is full, a segment is evicted", process=oldest.parent.name)
            oldest.unlink(missing_ok=True)
        return pending

    def _report(self, problem: str) -> None:
        if bool(problem) != bool(self.problem):
            if problem:
                log.warning("archive", problem=problem)
            else:
                log.info("archiving resumed")
        self.problem = problem


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
