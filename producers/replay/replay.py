"""Replay of a recorded job onto Kafka or into a spool, paced or as fast as possible, with an exact account."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from drumline.producers.replay.publisher import NotDelivered
from drumline.producers.replay.recording import RecordedJob, TimedBatch

#: Longest sleep between two checks of the stop flag; s.
_SLEEP_S = 0.1


class Target(Protocol):
    """Destination of batches: Kafka (publisher) or a spool (spool_target).

    `rows` and `batches` count what was delivered, `queued` the rows that `publish` took, per topic. `publish` and
    `flush` may block; both raise NotDelivered. `wait` lets time pass; `settle` ends after a failure.
    """

    @property
    def rows(self) -> Counter[str]:
        """Delivered rows, per topic."""

    @property
    def batches(self) -> Counter[str]:
        """Delivered batches, per topic."""

    @property
    def queued(self) -> Counter[str]:
        """Rows that `publish` took, per topic."""

    def publish(self, timed: TimedBatch, sent_ns: int) -> None:
        """Take a batch; may block. Raises NotDelivered."""

    def wait(self, seconds: float) -> None:
        """Let time pass, while deliveries go on."""

    def flush(self) -> None:
        """Block until all taken batches are delivered. Raises NotDelivered."""

    def settle(self) -> None:
        """End after a failure, without an error of its own."""


@dataclass(frozen=True)
class ReplayOptions:
    """Course of a replay.

    Attributes:
        speed: 1 = as recorded, None = as fast as possible.
        keep_time: publish recorded times instead of current ones.
        run: id of the run; None = a new one.
        stop: ends the replay at the next batch once it is set.
        progress: called with the rows of each batch once the batch is queued.
    """

    speed: float | None = None
    keep_time: bool = False
    run: str | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[int], None] = lambda _rows: None


@dataclass(frozen=True)
class ReplaySummary:
    """Result of one replay.

    Attributes:
        rows, batches: acknowledged by the broker, per topic; exactly these must be in ClickHouse in the end.
        dropped: rows queued in the client but never acknowledged.
        unsent: rows not queued because the replay was stopped.
        problem: reason for an early end, or "".
    """

    job: str
    run: str
    ranks: int
    loops: int
    rows: dict[str, int]
    batches: dict[str, int]
    dropped: int
    unsent: int
    interrupted: bool  # glossary: a key of the JSON output
    problem: str
    first_ns: int
    last_ns: int
    duration_s: float
    skipped_steps: int
    unattributed_collectives: int
    unfinished_ranges: int
    unknown_samples: int

    def as_json(self) -> dict[str, Any]:
        """Return all fields; times in ns since the epoch."""
        return asdict(self)


def mint_run(now_ns: int) -> str:
    """Return a new run id: its time, readable, and six random hex digits."""
    when = datetime.fromtimestamp(now_ns / 1e9, UTC)
    return f"{when:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"


def time_shift(recording: RecordedJob, speed: float | None, keep_time: bool, now_ns: int) -> int:
    """Return what to add to recorded times, in ns: as fast as possible (`speed` None) the job ends now, paced it
    starts now.
    """
    if keep_time:
        return 0
    return now_ns - (recording.last_ns if speed is None else recording.first_ns)


def replay(
    recording: RecordedJob,
    publisher: Target,
    options: ReplayOptions | None = None,
    *,
    now_ns: Callable[[], int] = time.time_ns,
    elapsed_s: Callable[[], float] = time.monotonic,
) -> ReplaySummary:
    """Publish a recorded job and wait for every acknowledgement; ends at a batch boundary when `options.stop` is
    set.
    """
    options = options or ReplayOptions()
    speed, stop = options.speed, options.stop
    started, began_ns = elapsed_s(), now_ns()
    time_offset_ns = time_shift(recording, speed, options.keep_time, began_ns)
    run = options.run or mint_run(began_ns)
    problem, complete = "", False
    try:
        for timed in recording.batches(run, time_offset_ns):
            if speed is not None:
                due = started + (timed.time_ns - time_offset_ns - recording.first_ns) / 1e9 / speed
                while not stop.is_set() and (left := due - elapsed_s()) > 0:
                    publisher.wait(min(left, _SLEEP_S))
            if stop.is_set():
                break
            publisher.publish(timed, now_ns())
            options.progress(timed.batch.rows)
        else:
            complete = True
        publisher.flush()
    except NotDelivered as error:
        problem = str(error)
        publisher.settle()
    except KeyboardInterrupt:  # the second one: stop waiting for the broker
        complete = False
    counts = recording.counts
    return ReplaySummary(
        job=recording.job,
        run=run,
        ranks=len(recording.rank_sources),
        loops=recording.loop,
        rows={str(topic): publisher.rows[topic] for topic in recording.topics},
        batches={str(topic): publisher.batches[topic] for topic in recording.topics},
        dropped=sum(publisher.queued.values()) - sum(publisher.rows.values()),
        unsent=sum(recording.rows.values()) - sum(publisher.queued.values()),
        interrupted=not complete and not problem,
        problem=problem,
        first_ns=recording.first_ns + time_offset_ns,
        last_ns=recording.last_ns + time_offset_ns,
        duration_s=round(elapsed_s() - started, 3),
        skipped_steps=sum(c.skipped_steps for c in counts) * recording.loop,
        unattributed_collectives=sum(c.unattributed_collectives for c in counts) * recording.loop,
        unfinished_ranges=sum(c.unfinished_ranges for c in counts) * recording.loop,
        unknown_samples=recording.unknown_samples,
    )
