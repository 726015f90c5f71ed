"""Segments with rows that stay on this host: compressed, in a folder of the agent's, up to a bound.

    <folder>/<process folder>/identity.json
                              deleted         until when rows may be missing; ns since the epoch
                              <number>-<first ns>-<last ns>-<complete ns>-<first step>-<last step>.kept

The name has the times and steps in it. The content is a segment (spool/segment_format.py) of the process's kept batches
and steps, compressed with zstd. Beyond the bound the oldest are deleted, of whatever process.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from drumline.infra.telemetry import metrics
from drumline.producers.rollup.folder import write_private
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.envelope import read_envelope
from drumline.producers.spool.folder_layout import IDENTITY, BadSpool, ProcessIdentity
from drumline.producers.spool.quota import bounds
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.segment_format import DATA, KEPT, SEGMENT_MAGIC, Frame, head, scan
from drumline.schemas.batch import Batch, decode
from drumline.schemas.model import RecordModel, model
from drumline.schemas.registry import lock_file_registry
from drumline.schemas.topics import KEPT_TOPICS, Topic

log = structlog.get_logger()

#: Most bytes of a segment; writers close them at 8 MiB.
MOST_SEGMENT = 64 << 20
SUFFIX, DELETED = ".kept", "deleted"
#: What is kept: steps too, by which rows are found.
_KEPT = {(DATA, str(Topic.STEP)), *((KEPT, str(topic)) for topic in KEPT_TOPICS)}


@dataclass(frozen=True, slots=True, order=True)
class KeptSegment:
    """Names a kept segment by what is in it; times are ns since the epoch.

    `first_ns`, `last_ns`: first row, and when the last batch was sent; 0 without a batch. `complete_ns`: later segments
    have no kernel that starts before it. `first_step`, `last_step`: -1 without a step.
    """

    number: int
    first_ns: int
    last_ns: int
    complete_ns: int
    first_step: int
    last_step: int

    @property
    def name(self) -> str:
        """Name of its file."""
        steps = f"{self.first_step}-{self.last_step}" if self.first_step >= 0 else "none-none"
        return f"{self.number:012d}-{self.first_ns}-{self.last_ns}-{self.complete_ns}-{steps}{SUFFIX}"


def named(name: str) -> KeptSegment | None:
    """Return what a file's name states; None for another file."""
    parts = name.removesuffix(SUFFIX).split("-")
    if not name.endswith(SUFFIX) or len(parts) != 6:
        return None
    with suppress(ValueError):
        return KeptSegment(*(-1 if part == "none" else int(part) for part in parts))
    return None


def writer_model(identity: ProcessIdentity, topic: str) -> RecordModel:
    """Return the schema of a process's batches, of this release or an earlier one. Raises UnknownSchema."""
    fingerprint, released = identity.schemas.get(topic, ""), lock_file_registry()
    if fingerprint == model(topic).fingerprint:
        return model(topic)
    return released.model_of(released.id_of_version(topic, fingerprint))


class KeptSegments:
    """Keeps segments, deletes the oldest, reads them. `take` in the agent's thread; reading in any.

    `folder`: the agent's alone. `most_bytes`: of all segments; the file system may allow less (spool/quota.py).
    """

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        compress: Callable[[bytes], bytes],
        decompress: Callable[[bytes], bytes],
    ) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._compress, self._decompress = compress, decompress
        present = sorted(folder.glob(f"*/*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        self._sizes = {path: path.stat().st_size for path in present}  # oldest first
        for process in set(self.processes()) - {path.parent.name for path in present}:
            shutil.rmtree(folder / process, ignore_errors=True)
        self._keeping = set(self.processes())
        self._job_of: dict[str, str] = {}
        self._loss = ""
        self._waiting: dict[tuple[str, int], Counter[str]] = {}
        self._unnoted: dict[str, int] = {}
        self._observe()

    def keeps(self, process: str) -> bool:
        """Return whether rows of a spool folder are kept, or should be."""
        return process in self._keeping or any(name == process for name, _ in self._waiting)

    def processes(self) -> list[str]:
        """Return the names of the spool folders that segments are kept of, also where all are deleted."""
        with os.scandir(self._folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def path(self, process: str) -> Path:
        """Return the folder of a process's segments."""
        return self._folder / process

    def identity(self, process: str) -> ProcessIdentity:
        """Return who the process of a spool folder is. Raises OSError, BadSpool."""
        return SpoolDirectory(self._folder / process).identity()

    def jobs(self) -> set[str]:
        """Return the names of the jobs whose rows are kept."""
        for process in set(self.processes()) - self._job_of.keys():
            with suppress(OSError, BadSpool):
                self._job_of[process] = str(self.identity(process).process.get("job", ""))
        return set(self._job_of.values()) - {""}

    def segments(self, process: str) -> list[KeptSegment]:
        """Return what is kept of a process, oldest first."""
        with suppress(FileNotFoundError), os.scandir(self._folder / process) as entries:
            return sorted(segment for entry in entries if (segment := named(entry.name)) is not None)
        return []

    def deleted_until_ns(self, process: str) -> int:
        """Return the time of the newest row that was deleted; 0 = none was."""
        until_ns = self._unnoted.get(process, 0)
        with suppress(OSError, ValueError):
            return max(until_ns, int((self._folder / process / DELETED).read_text()))
        return until_ns

    def read(self, process: str, segment: KeptSegment) -> list[Frame]:
        """Return the batches of a segment. Raises OSError: it may have been deleted."""
        data = self._decompress((self._folder / process / segment.name).read_bytes())
        return [frame for frame in scan(data[len(SEGMENT_MAGIC) :], complete=True) if isinstance(frame, Frame)]

    def decoded(self, identity: ProcessIdentity, frame: Frame) -> Batch:
        """Return a batch of a process. Raises BadRecord."""
        return decode(writer_model(identity, frame.topic), frame.body, model(frame.topic))

    def begin(self, folder: SpoolDirectory, number: int, frame: Frame) -> None:
        """Prepare to keep a batch of segment `number`. Raises nothing: its rows are counted in windows all the same."""
        self._waiting.setdefault((folder.path.name, number), Counter())[frame.topic] += frame.rows
        if folder.path.name in self._keeping:
            return
        try:
            self._write_identity(folder)
        except (OSError, BadSpool) as error:  # tried again at its next batch
            self._report_loss(folder, error)
        else:
            self._keeping.add(folder.path.name)

    def take(self, segment: Segment, folder: SpoolDirectory) -> None:
        """Keep a segment that has been read, before it is deleted. Raises nothing: Kafka has the rest of it."""
        rows = self._waiting.pop((folder.path.name, segment.number), None)
        if rows is None and folder.path.name not in self._keeping:
            return  # of a process that keeps nothing
        try:
            self._write_identity(folder)
            self._keeping.add(folder.path.name)
            self._keep(segment, folder)
        except Exception as error:  # whatever its user has written
            self._report_loss(folder, error)
            for topic, count in (rows or {}).items():
                metrics.AGENT_DROPPED.labels(topic, "not_kept").inc(count)
            self._note_deleted(folder.path.name, time.time_ns())
        self.tick()

    def tick(self) -> None:
        """Delete what is beyond the bounds, and write what could not be noted before. Raises nothing."""
        with suppress(OSError):
            self._evict()
        for process in list(self._unnoted):
            self._note_deleted(process, 0)
        self._observe()

    def _report_loss(self, folder: SpoolDirectory, error: Exception) -> None:
        """Log the reason why rows are not kept, once while it stays the same."""
        if str(error) != self._loss:
            log.error("rows are not kept, only windows of them", folder=folder.path.name, problem=str(error))
        self._loss = str(error)

    def _write_identity(self, folder: SpoolDirectory) -> None:
        place = self._folder / folder.path.name
        place.mkdir(mode=0o700, exist_ok=True)
        write_private(place / IDENTITY, folder.identity_bytes())

    def _keep(self, segment: Segment, folder: SpoolDirectory) -> None:
        with open(folder.open_file(segment.name), "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_SEGMENT:
                raise BadSpool(f"a segment of more than {MOST_SEGMENT >> 20} MiB, which no writer leaves")
            data = file.read(MOST_SEGMENT)
        identity, content = folder.identity(), [SEGMENT_MAGIC]
        times: list[tuple[int, int, int]] = []
        steps: list[int] = []
        for frame in scan(data[len(SEGMENT_MAGIC) :], complete=True):
            if not isinstance(frame, Frame) or (frame.kind, frame.topic) not in _KEPT:
                continue
            content += (head(frame.kind, frame.topic, frame.key, frame.rows, 1, frame.body), frame.body)
            with suppress(ValueError):  # BadRecord too
                if frame.kind == KEPT:
                    envelope = read_envelope(frame.topic, frame.body)
                    complete = envelope["watermark_ns"] if frame.topic == Topic.KERNEL else 0
                    times.append((envelope["base_time_ns"], envelope["sent_ns"], complete))
                elif frame.rows:
                    steps += self.decoded(identity, frame).columns["step"].tolist()
        steps = [step for step in steps if step >= 0]
        if not times and not steps:
            return
        firsts, lasts, completes = zip(*times, strict=True) if times else ((0,), (0,), (0,))
        kept = KeptSegment(
            segment.number,
            max(0, min(firsts)),
            max(0, *lasts),
            max(0, *completes),
            min(steps, default=-1),
            max(steps, default=-1),
        )
        place = self._folder / folder.path.name
        path, packed = place / kept.name, self._compress(b"".join(content))
        write_private(path, packed)
        self._sizes[path] = len(packed)

    def _evict(self) -> None:
        """Delete the oldest segments until the rest fits. Raises OSError."""
        most, spare = bounds(self._folder, self._most_bytes)
        excess = max(sum(self._sizes.values()) - most, -spare)
        while self._sizes and excess > 0:
            path = next(iter(self._sizes))
            excess -= self._sizes.pop(path)
            self._delete(path)

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)  # first: a full disk takes no note
        if (segment := named(path.name)) is not None:
            self._note_deleted(path.parent.name, segment.last_ns)

    def _note_deleted(self, process: str, until_ns: int) -> None:
        """Note until when rows of a process may be missing; what cannot be written now counts, and is written later."""
        self._unnoted[process] = until_ns = max(until_ns, self.deleted_until_ns(process))
        with suppress(OSError):
            write_private(self._folder / process / DELETED, b"%d" % until_ns)
            self._unnoted.pop(process, None)

    def _observe(self) -> None:
        metrics.AGENT_KEPT_BYTES.set(sum(self._sizes.values()))
