"""Finds the kept batches of some steps of one process, and spools those that were not published before.

They go the ordinary way: in a spool folder of the process, whose writer has exited. Batches keep their sequences, by
which a sink recognises one that a killed agent spools again.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from drumline.infra.telemetry import metrics
from drumline.producers.rollup.folder import write_private
from drumline.producers.rollup.kept_segments import KeptSegment, KeptSegments
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.envelope import read_envelope
from drumline.producers.spool.files import PASSED, agent_folder, opened
from drumline.producers.spool.folder_layout import IDENTITY, BadSpool, ProcessIdentity, read_identity, segment_name
from drumline.producers.spool.segment_format import KEPT, PULLED, SEGMENT_MAGIC, Frame, head
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic

#: File of a process's folder with the sequences that were published, by topic.
PUBLISHED = "published.json"
#: Most bytes of one process that are spooled at once; the rest follows when they are in Kafka.
MOST_BYTES = 32 << 20
#: Begin of the names of folders that are being written, and of what follows the process in those that are spooled.
PULL = "pull-"
#: Begin and end of a step; ns since the epoch.
Span = tuple[int, int]


@dataclass(slots=True)
class Pulled:
    """Counts what a look for some steps of one process found.

    `steps`: those that are kept whole. `kept`: the first and the last of all such steps; None without one.
    `rows`: published now.
    `before`: rows of these steps that were published earlier. `is_complete`: no later segment has more of them.
    `is_cut`: there is more than is spooled at once.
    """

    steps: set[int] = field(default_factory=set)
    kept: Span | None = None
    rows: int = 0
    before: int = 0
    is_complete: bool = False
    is_cut: bool = False


def pull(segments: KeptSegments, root: Path, process: str, first: int, last: int) -> Pulled:
    """Publish the kept batches of steps `first` to `last` of a process. Blocks for disk and CPU.

    `root`: of the spools. Raises OSError, BadSpool, BadRecord.
    """
    kept, identity, result = segments.segments(process), segments.identity(process), Pulled()
    spans: list[Span] = []
    deleted_ns = segments.deleted_until_ns(process)
    numbered = [segment for segment in kept if segment.first_step >= 0]
    for segment in numbered:
        wanted = segment.first_step <= last and first <= segment.last_step
        if not wanted and result.kept is not None:
            result.kept = min(result.kept[0], segment.first_step), max(result.kept[1], segment.last_step)
            continue
        for step, span in _steps(segments, identity, segments.read(process, segment)):
            if span[0] <= deleted_ns:  # not all of its rows are left
                continue
            lowest, highest = result.kept or (step, step)
            result.kept = min(lowest, step), max(highest, step)
            if first <= step <= last:
                result.steps.add(step)
                spans.append(span)
    newest_end = max((end for _, end in spans), default=0)
    has_last = last in result.steps or (result.kept is not None and result.kept[1] > last)
    result.is_complete = has_last and any(segment.complete_ns >= newest_end for segment in kept)
    if not spans:
        return result
    _publish(
        segments, root, process, identity, [s for s in kept if _meets(s.first_ns, s.last_ns, spans)], spans, result
    )
    return result


def is_pulling(root: Path, process: str) -> bool:
    """Return whether rows of an earlier pull of a process are still in the spool. Raises OSError."""
    with os.scandir(root) as entries:
        return any(entry.name.startswith(f"{process}-{PULL}") for entry in entries)


def remove_unfinished(root: Path) -> None:
    """Delete what an agent left that was killed while it wrote."""
    with suppress(OSError), agent_folder(root) as descriptor:
        for path in Path(f"/proc/self/fd/{descriptor}").glob(f"{PULL}*"):
            shutil.rmtree(path, ignore_errors=True)


def _publish(
    segments: KeptSegments,
    root: Path,
    process: str,
    identity: ProcessIdentity,
    chosen: Iterable[KeptSegment],
    spans: list[Span],
    result: Pulled,
) -> None:
    published = _published(segments.path(process))
    known = {topic: set(sequences) for topic, sequences in published.items()}
    size = 0
    with agent_folder(root) as descriptor, opened(root, PASSED) as spools:
        scratch = Path(f"/proc/self/fd/{descriptor}/{PULL}{secrets.token_hex(4)}")
        try:
            for segment in chosen:
                result.is_cut = size > MOST_BYTES
                if result.is_cut:
                    break
                content: list[bytes] = []
                for frame in segments.read(process, segment):
                    if frame.kind != KEPT or (sequence := _sequence(segments, identity, frame, spans)) < 0:
                        continue
                    if sequence in known.setdefault(frame.topic, set()):
                        result.before += frame.rows
                        continue
                    known[frame.topic].add(sequence)
                    content += (head(PULLED, frame.topic, frame.key, frame.rows, 1, frame.body), frame.body)
                    result.rows += frame.rows
                    metrics.AGENT_PULLED.labels(frame.topic).inc(frame.rows)
                if content:
                    scratch.mkdir(mode=0o700, exist_ok=True)
                    size += (scratch / segment_name(segment.number)).write_bytes(b"".join([SEGMENT_MAGIC, *content]))
            if result.rows:
                (scratch / IDENTITY).write_bytes(_newest_identity(segments, root, process, identity))
                os.rename(scratch.name, f"{process}-{scratch.name}", src_dir_fd=descriptor, dst_dir_fd=spools)
                _remember(segments.path(process), known)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _steps(segments: KeptSegments, identity: ProcessIdentity, frames: Iterable[Frame]) -> Iterable[tuple[int, Span]]:
    for frame in frames:
        if frame.topic == Topic.STEP and frame.rows:
            columns = segments.decoded(identity, frame).columns
            starts, ends = columns["start_ns"], columns["start_ns"] + columns["duration_ns"]
            if {"gpu_start_ns", "gpu_duration_ns"} <= columns.keys():  # its kernels end after it does on the host
                ends = np.maximum(ends, columns["gpu_start_ns"] + columns["gpu_duration_ns"])
            yield from zip(columns["step"].tolist(), zip(starts.tolist(), ends.tolist(), strict=True), strict=True)


def _meets(first_ns: int, last_ns: int, spans: Iterable[Span]) -> bool:
    return any(first_ns <= end and start <= last_ns for start, end in spans)


def _sequence(segments: KeptSegments, identity: ProcessIdentity, frame: Frame, spans: list[Span]) -> int:
    """Return the sequence of a batch that has a row in a span, else -1."""
    try:
        envelope = read_envelope(frame.topic, frame.body)
        if not frame.rows or not _meets(envelope["base_time_ns"], envelope["sent_ns"], spans):
            return -1
        batch: Batch = segments.decoded(identity, frame)
    except ValueError:  # BadRecord too
        return -1
    starts = batch.columns["start_ns"]
    ends = starts + batch.columns["duration_ns"].astype(np.int64)
    inside = any(bool(np.any((starts <= end) & (ends >= start))) for start, end in spans)
    return int(envelope["sequence"]) if inside else -1


def _newest_identity(segments: KeptSegments, root: Path, process: str, known: ProcessIdentity) -> bytes:
    """Return the identity of a process as its writer left it last; its record replaces the one in Kafka."""
    with suppress(OSError, BadSpool):
        content = SpoolDirectory(root / process).identity_bytes()
        if read_identity(content, process).process_id == known.process_id:
            return content
    return SpoolDirectory(segments.path(process)).identity_bytes()


def _published(place: Path) -> dict[str, list[int]]:
    try:
        return {str(topic): list(sequences) for topic, sequences in json.loads((place / PUBLISHED).read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _remember(place: Path, known: dict[str, set[int]]) -> None:
    text = json.dumps({topic: sorted(sequences) for topic, sequences in known.items()})
    write_private(place / PUBLISHED, text.encode())
