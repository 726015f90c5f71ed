"""Both straggler stages over a stream of batches without Kafka: what `drumline evaluate` and the tests run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drumline.schemas.batch import Batch
from drumline.streams.communicator_stage import CommunicatorStage
from drumline.streams.job_stage import JobStage
from drumline.streams.thresholds import StragglerConfig

TICK_NS = 1_000_000_000
INPUT = frozenset({"gpu.collective.v1", "gpu.step.v1", "gpu.device.v1"})


def verdicts(batches: Iterable[tuple[int, Batch]], config: StragglerConfig) -> Iterator[Batch]:
    """gpu.straggler.v1 batches, all revisions, as they become ready.

    `batches`: (time in ns, batch); the largest time so far is the clock. At the end everything falls silent.
    """
    communicators, jobs = CommunicatorStage({}, config), JobStage({}, config)
    now, ticked, offset = 0, 0, 0

    def forward(late: list[Batch]) -> Iterator[Batch]:
        for batch in late:
            yield from sent(jobs.on_batch(batch, offset, now))
            communicators.mark_sent(batch)

    def sent(found: list[Batch]) -> Iterator[Batch]:
        for batch in found:
            jobs.mark_sent(batch)
            yield batch

    def tick() -> Iterator[Batch]:
        yield from forward(communicators.on_tick(now, True))
        yield from sent(jobs.on_tick(now, True))

    for time_ns, batch in batches:
        offset += 1
        now = max(now, time_ns)
        if batch.topic == "gpu.collective.v1":
            yield from forward(communicators.on_batch(batch, offset, now))
        elif batch.topic in INPUT:
            yield from sent(jobs.on_batch(batch, offset, now))
        if now - ticked >= TICK_NS:
            ticked = now
            yield from tick()
    for _ in range(2):  # first the communicators fall silent, then what they still said is judged
        now += config.idle_ns + TICK_NS
        yield from tick()


def latest(found: Iterable[Batch]) -> dict[tuple[str, int], Batch]:
    """(run, first step) -> the highest revision of each window."""
    out: dict[tuple[str, int], Batch] = {}
    for batch in found:
        out[(batch.envelope["run"], int(batch.envelope["first_step"]))] = batch
    return out
