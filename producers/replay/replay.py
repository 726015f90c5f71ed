"""Replay: a recording's batches onto Kafka or into a spool, paced or as fast as possible, with an exact account."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from drumline.producers.replay.publisher import NotDelivered
from drumline.producers.replay.recording import Outgoing, Recording

#: Longest sleep between looks at the stop flag; s.
_NAP_S = 0.1


class Target(Protocol):
    """Where batches go: Kafka (publisher.py) or a spool (spool_target.py). Counts are per topic."""

    @property
    def rows(self) -> Counter[str]: ...
    @property
    def batches(self) -> Counter[str]: ...
    @property
    def handed_over(self) -> Counter[str]: ...
    def publish(self, outgoing: Outgoing, sent_ns: int) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def flush(self) -> None: ...
    def settle(self) -> None: ...


@dataclass(frozen=True)
class ReplaySummary:
    """What one replay did. `rows`, `batches`: per topic, acknowledged by the broker, and nothing else: what sinks must
    hold in the end. `dropped`: rows handed to the client but never acknowledged. `unsent`: rows not handed over because
    the replay was stopped. `problem`: why it ended early, or ""."""

    job: str
    run: str
    ranks: int
    loops: int
    rows: dict[str, int]
    batches: dict[str, int]
    dropped: int
    unsent: int
    interrupted: bool
    problem: str
    first_ns: int
    last_ns: int
    duration_s: float
    skipped_steps: int
    unattributed_collectives: int
    unfinished_ranges: int
    unknown_samples: int

    def as_json(self) -> dict[str, Any]:
        """All fields; times in ns since the epoch."""
        return asdict(self)


def mint_run(now_ns: int) -> str:
    """A run id: when it was, readable, and six random hex digits."""
    when = datetime.fromtimestamp(now_ns / 1e9, UTC)
    return f"{when:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"


def time_shift(recording: Recording, speed: float | None, keep_time: bool, now_ns: int) -> int:
    """What to add to recorded times: as fast as possible (`speed` None) the job ends now, paced it starts now; ns."""
    if keep_time:
        return 0
    return now_ns - (recording.last_ns if speed is None else recording.first_ns)


def replay(
    recording: Recording,
    publisher: Target,
    *,
    speed: float | None = None,
    keep_time: bool = False,
    run: str | None = None,
    stop: threading.Event | None = None,
    progress: Callable[[int], None] = lambda _rows: None,
    now_ns: Callable[[], int] = time.time_ns,
    elapsed_s: Callable[[], float] = time.monotonic,
) -> ReplaySummary:
    """Publish a recording and wait for every acknowledgement. Ends at a batch boundary when `stop` is set.

    `speed`: 1 = as recorded, None = as fast as possible. `progress`: called with each batch's rows once handed over.
    """
    stop = stop or threading.Event()
    started, began_ns = elapsed_s(), now_ns()
    shift = time_shift(recording, speed, keep_time, began_ns)
    run = run or mint_run(began_ns)
    problem, complete = "", False
    try:
        for outgoing in recording.batches(run, shift):
            if speed is not None:
                due = started + (outgoing.time_ns - shift - recording.first_ns) / 1e9 / speed
                while not stop.is_set() and (left := due - elapsed_s()) > 0:
                    publisher.wait(min(left, _NAP_S))
            if stop.is_set():
                break
            publisher.publish(outgoing, now_ns())
            progress(outgoing.batch.rows)
        else:
            complete = True
        publisher.flush()
    except NotDelivered as error:
        problem = str(error)
        publisher.settle()
    except KeyboardInterrupt:  # the second one: do not wait for the broker any longer
        complete = False
    counts = recording.counts
    return ReplaySummary(
        job=recording.job,
        run=run,
        ranks=len(recording.parts),
        loops=recording.loop,
        rows={str(topic): publisher.rows[topic] for topic in recording.topics},
        batches={str(topic): publisher.batches[topic] for topic in recording.topics},
        dropped=sum(publisher.handed_over.values()) - sum(publisher.rows.values()),
        unsent=sum(recording.rows.values()) - sum(publisher.handed_over.values()),
        interrupted=not complete and not problem,
        problem=problem,
        first_ns=recording.first_ns + shift,
        last_ns=recording.last_ns + shift,
        duration_s=round(elapsed_s() - started, 3),
        skipped_steps=sum(c.skipped_steps for c in counts) * recording.loop,
        unattributed_collectives=sum(c.unattributed_collectives for c in counts) * recording.loop,
        unfinished_ranges=sum(c.unfinished_ranges for c in counts) * recording.loop,
        unknown_samples=recording.unknown_samples,
    )
