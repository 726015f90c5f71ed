"""Publishes the busiest seconds of a recording for any number of ranks, with the same load per rank at every size."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from drumline.infra.config.settings import Settings
from drumline.producers.replay.publisher import Publisher
from drumline.producers.replay.recording import RecordedJob, TimedBatch
from drumline.producers.replay.replay import mint_run, time_shift
from drumline.producers.replay.trace import load_manifest
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Topics that the worker reads from producers.
TOPICS = (Topic.KERNEL, Topic.MEMCPY, Topic.COLLECTIVE, Topic.STEP, Topic.DEVICE)
BY_PROCESS = (Topic.KERNEL, Topic.MEMCPY)
#: Advance of the last watermark of a process: beyond the end of every open window.
CLOSING_NS = 60_000_000_000


@dataclass(frozen=True)
class PeakLoad:
    """Describes a published load: `seconds` of job time over all repetitions, and counts by topic."""

    ranks: int
    seconds: float
    rows: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)


def busiest(folder: Path, seconds: float) -> tuple[int, int]:
    """Return (from, to) of the span of that length with most kernels; ns after the recording's first event."""
    recording = RecordedJob(folder, topics=[Topic.KERNEL])
    sent = [(batch.time_ns - recording.first_ns, batch.batch.rows) for batch in recording.batches("busiest")]
    times, rows = (np.array(values, np.int64) for values in zip(*sent, strict=True))
    before = np.concatenate([[0], np.cumsum(rows)])
    length = round(seconds * 1e9)
    until = np.searchsorted(times, times + length)
    first = int(times[(before[until] - before[:-1]).argmax()])
    return first, first + length


def repeated(recording: RecordedJob, run: str, shift_ns: int, span: tuple[int, int]) -> Iterator[TimedBatch]:
    """Yield the batches of `span` in each repetition, with consecutive sequence numbers.

    At the end follows, for each process and topic keyed by process, a batch without rows whose watermark closes every
    window.
    """
    numbers: Counter[tuple[str, str, str]] = Counter()
    closing: dict[tuple[str, str, str], TimedBatch] = {}
    for timed in recording.batches(run, shift_ns):
        if not span[0] <= (timed.time_ns - shift_ns - recording.first_ns) % recording.period_ns < span[1]:
            continue
        envelope = timed.batch.envelope
        feed = (str(timed.batch.topic), timed.key, str(envelope["process_id"]))
        envelope["sequence"], envelope["dropped_before"] = numbers[feed], 0
        numbers[feed] += 1
        if feed[0] in BY_PROCESS:
            closing[feed] = TimedBatch(timed.time_ns, timed.key, _closing(timed.batch, numbers[feed]))
        yield timed
    yield from closing.values()


def _closing(batch: Batch, sequence: int) -> Batch:
    spec = model(batch.topic)
    empty = {column.name: np.zeros(0, column.dtype) for column in spec.columns}
    dictionaries: dict[str, list[str]] = {name: [] for name in spec.dictionaries}
    later = batch.envelope["watermark_ns"] + CLOSING_NS
    return Batch(
        batch.topic, {**batch.envelope, **dictionaries, "rows": 0, "sequence": sequence, "watermark_ns": later}, empty
    )


def publish_busy(settings: Settings, folder: Path, ranks: int, repetitions: int, span: tuple[int, int]) -> PeakLoad:
    """Publish to Kafka as fast as possible. Raises NotDelivered, BadRanks (a ValueError)."""
    manifest = load_manifest(folder, phases=True)
    recording = RecordedJob(folder, ranks=ranks, loop=repetitions, topics=TOPICS, manifest=manifest)
    publisher = Publisher(settings, Codec(), "drumline-bench")
    now = time.time_ns()
    load = PeakLoad(ranks, repetitions * (span[1] - span[0]) / 1e9)
    for timed in repeated(recording, mint_run(now), time_shift(recording, None, False, now), span):
        publisher.publish(timed, now)
    publisher.flush()
    load.rows.update(publisher.rows)
    load.messages.update(publisher.batches)
    return load
