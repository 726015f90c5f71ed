"""Running stages over batches without Kafka, for `drumline evaluate`, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from drumline.infra.runtime.stage import Stage
from drumline.schemas.batch import Batch
from drumline.schemas.record_table import BatchTable, Ints, RecordTable
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.stragglers.stage import JobStage

TICK_NS = 1_000_000_000
#: Windows that recorded steps are cut into at least, if they suffice; a window has two steps or more.
WINDOWS, LEAST_STEPS = 8, 2
#: Such windows have the steps that this needs, however long those take.
ANY_LENGTH_NS = 1 << 62


def fitting_window(steps: int, most: int) -> int:
    """Return the steps of a window for a recording of so many `steps`: `most`, fewer where it has few."""
    return max(LEAST_STEPS, min(most, steps // WINDOWS))


def applied(stage: Stage, table: RecordTable, offsets: Ints, now_ns: int) -> list[Batch]:
    """Return what a stage returns for a table. Raises the error of a unit that failed."""
    out = stage.apply(table, offsets, now_ns)
    for error in stage.failed.values():
        raise error
    return out


def results(
    batches: Iterable[tuple[int, Batch | RecordTable]], stages: Sequence[tuple[Collection[str], Stage]], idle_ns: int
) -> Iterator[Batch]:
    """Yield all batches that the stages return, all revisions; stages read each other's batches too.

    `batches`: (time in ns, batch, or several in one table); the largest time so far is the clock. `stages`: (topics
    that it reads, stage). At the end all sources fall silent for `idle_ns`.
    """
    now, ticked, offset = 0, 0, 0

    def read(batch: Batch | RecordTable) -> Iterator[Batch]:
        nonlocal offset
        table = batch if isinstance(batch, RecordTable) else BatchTable.of([batch])
        first, offset = offset + 1, offset + table.parts
        for topics, stage in stages:
            if table.topic in topics:
                yield from sent(stage, applied(stage, table, np.arange(first, offset + 1), now))

    def sent(stage: Stage, returned: list[Batch]) -> Iterator[Batch]:
        for batch in returned:
            yield from read(batch)
            stage.mark_sent(batch)
            yield batch

    def tick() -> Iterator[Batch]:
        for _, stage in stages:
            yield from sent(stage, stage.on_tick(now, True))

    for time_ns, batch in batches:
        now = max(now, time_ns)
        yield from read(batch)
        if now - ticked >= TICK_NS:
            ticked = now
            yield from tick()
    for _ in range(2):  # first the communicators fall silent, then their last batches are evaluated
        now += idle_ns + TICK_NS
        while returned := list(tick()):  # a tick does not return all of a large job
            yield from returned


def verdicts(batches: Iterable[tuple[int, Batch | RecordTable]], config: StragglerConfig) -> Iterator[Batch]:
    """Return the gpu.straggler.v1 batches of the lateness stage and the straggler stage, all revisions."""
    stages: list[tuple[Collection[str], Stage]] = [
        ((Topic.COLLECTIVE,), CommunicatorStage({}, config)),
        ((Topic.LATENESS, Topic.STEP, Topic.DEVICE, Topic.HOST, Topic.TRANSFER, Topic.STACK), JobStage({}, config)),
    ]
    return (batch for batch in results(batches, stages, config.idle_ns) if batch.topic == Topic.STRAGGLER)


def latest(published: Iterable[Batch]) -> dict[tuple[str, str, int], Batch]:
    """Return (job, run, first step) -> the highest revision of each window."""
    out: dict[tuple[str, str, int], Batch] = {}
    for batch in published:
        out[(batch.envelope["job"], batch.envelope["run"], int(batch.envelope["first_step"]))] = batch
    return out
