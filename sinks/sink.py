"""Run the sink's loop: topics to tables, exactly once (records: intake.py; ranges: commit_cycle.py).

One thread does everything but inserts (insert_lanes.py), and waits for those, so that nothing is written for a
partition that is no longer held. It polls between inserts and while it waits for ClickHouse to return, so that a slow
or unavailable ClickHouse costs no rebalance. Meanwhile it collects nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import structlog

from drumline.infra.clickhouse.client import ClickHouseFailed, Client, TransientError
from drumline.infra.config.settings import Settings
from drumline.infra.runtime import malloc as heap
from drumline.infra.runtime.retry import Retry
from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.health import Health
from drumline.schemas.codec import Codec
from drumline.sinks.commit_cycle import CommitCycle
from drumline.sinks.errors import Fenced, NoKnownBrokers, TailLost, TopicReplaced, TransientKafkaError, UnreadableBatch
from drumline.sinks.intake import Intake
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.dead_letters import DeadLetterSender, DeadLettersFailed
from drumline.sinks.kafka.unreadable import UnreadableBatches
from drumline.sinks.ranges.progress import STALLED_S, Progress
from drumline.sinks.ranges.write_order import is_full
from drumline.sinks.telemetry import SinkCounts, observe, waiting_reason

log = structlog.get_logger()
REPORT_S = 10.0
OBSERVE_S = 1.0
#: Work continues for so long, then Kafka is polled: it removes a member that does not poll for 300 s.
ITERATION_S = 5.0
#: The least time for which records are taken before ranges are written.
COLLECT_S = 0.05


@dataclass
class Sink:
    """Runs one sink process.

    `run` blocks in the caller's thread until `stopping()` is true, or raises the error that stopped it. It closes
    `kafka` at its end. `connect`: creates a ClickHouse client. `counts`: totals of this run. `health`: readiness, for
    the health endpoint.
    """

    settings: Settings
    kafka: SinkConsumer
    dead_letters: DeadLetterSender
    connect: Callable[[], Client]
    codec: Codec
    stopping: Callable[[], bool]
    counts: SinkCounts = field(default_factory=SinkCounts)
    health: Health = field(default_factory=Health)
    _retry: Retry = field(default_factory=Retry)
    _waiting: str = ""
    _holding: bool = False
    _iteration_ends: float = 0.0
    _worked_s: float = 0.0
    _reported: tuple[float, int] = (0.0, 0)
    _observed: float = 0.0

    def __post_init__(self) -> None:
        self._intake = Intake(self.settings.sink, self.kafka, self.codec, self.counts)
        self._progress = Progress()
        self._unreadable = UnreadableBatches(self.kafka.reader)
        self._cycle = CommitCycle(self.settings, self.kafka, self.dead_letters, lambda: self.connect(), self.counts)

    def run(self) -> None:
        """Run until `stopping()`. Errors to retry are handled inside.

        Fatal: ReplayImpossible, LostRecords, Fenced, PermanentError, KafkaAccessDenied,
        RegistryRejected.
        """
        self.kafka.subscribe()
        self._cycle.committed = time.monotonic()
        metrics.SINK_COMMIT_AGE.set_function(lambda: time.monotonic() - self._cycle.committed)
        self._reported = (self._cycle.committed, 0)
        registry = self._intake.registry
        try:
            while not self.stopping():
                self._collect()
                collected = time.monotonic()
                if self._retry.at <= collected:
                    self._work()
                self._worked_s = time.monotonic() - collected
                self._continue_behind_unreadable()
                if self._intake.end_floods() and not self._holding:
                    self.kafka.resume()
                if registry.attempt and registry.at <= time.monotonic():
                    self._take_parked()
                self._observe()
                self._report()
            if self._cycle.ranges and not self._retry.attempt:
                self._work()
        finally:
            self._unreadable.close()
            self.kafka.close()
            self._cycle.close()
            log.info("stopped", **asdict(self.counts))

    def _collect(self) -> None:
        """Take what Kafka has, for as long as the last attempt to write took: the newest record may be a verdict."""
        until, wait_s = time.monotonic() + max(COLLECT_S, self._worked_s), 0.1
        while self._poll(wait_s) and time.monotonic() < until:
            if is_full(self.kafka.states.values(), self.settings.sink):
                break
            wait_s = 0.0
        self._intake.take_waiting()

    def _poll(self, wait_s: float) -> bool:
        """Take one record; return True if there was one."""
        try:
            record = self.kafka.poll(wait_s)
        except TransientKafkaError as error:  # an assignment that failed
            self._schedule_retry(error)
            self._start_over()
            return False
        except TopicReplaced as error:
            log.warning("topic was recreated; starting over", topic=str(error))
            self._start_over()
            return False
        except TailLost as error:
            self._accept(error)
            return False
        except (Fenced, NoKnownBrokers) as error:
            self._recreate_client(error)
            return False
        except UnreadableBatch as error:
            state = self.kafka.states.get((error.topic, error.partition))
            if state is not None and state.unreadable < 0:
                self.kafka.pause_partition(state)
                self._unreadable.search(state, error.offset)
            return False
        if record is not None:
            self._intake.take(record)
        return record is not None

    def _continue_behind_unreadable(self) -> None:
        """Continue behind the batches that cannot be unpacked; each is one dead letter."""
        for state, extents in self._unreadable.take():
            if not self.kafka.holds(state):
                continue
            for first, behind in extents:
                self._intake.take_unreadable(state, first, behind)
            if extents:
                try:
                    self.kafka.seek(state, state.next_offset)
                except TransientKafkaError as error:
                    self._schedule_retry(error)
                    self._start_over()
                    return
            state.unreadable = -1
            if not self._holding:
                self.kafka.resume()

    def _take_parked(self) -> None:
        if self._intake.take_parked() and not self._holding:
            self.kafka.resume()

    def _accept(self, loss: TailLost) -> None:
        """Continue with the log that Kafka has now; after an error start over, which finds the loss again."""
        log.error("Kafka lost records that are stored", error=str(loss))
        try:
            self._cycle.accept_tail_loss(loss.topic, loss.partition)
        except (TransientError, TransientKafkaError) as error:
            self._schedule_retry(error)
            self._start_over()

    def _start_over(self) -> None:
        self._cycle.ranges.clear()
        self.kafka.leave_group()
        self.kafka.subscribe()

    def _recreate_client(self, error: Fenced | NoKnownBrokers) -> None:
        """Start over with new Kafka clients, unless another sink has this one's name. Raises Fenced."""
        if isinstance(error, NoKnownBrokers):
            log.warning("starting over with a new client", error=str(error))
        elif self.kafka.is_sole_member():
            log.warning("fenced, but no other sink has this name; joining again", error=str(error))
        else:
            raise error
        self._cycle.ranges.clear()
        self.kafka.recreate_client()
        self.kafka.subscribe()

    def _schedule_retry(self, error: Exception) -> None:
        """Schedule the next attempt, and fetch nothing until then."""
        wait_s = self._retry.failed(time.monotonic(), random.random())
        self._waiting = waiting_reason(error)
        self.counts.retry(error, self._retry.attempt, wait_s)
        self._hold()

    def _hold(self) -> None:
        """Fetch nothing until all that is collected is written: the bound on memory."""
        if not self._holding:
            self._holding = True
            self.kafka.pause()

    def _work(self) -> None:
        """Make one attempt at everything that needs ClickHouse or a commit; stop when the iteration is over."""
        self._iteration_ends = time.monotonic() + ITERATION_S
        try:
            if self._cycle.open() and not self._holding:
                self.kafka.resume()
            self._cycle.cut(self._iteration_is_over)
            if self._cycle.ranges:
                self._cycle.advance(self._iteration_is_over)
        except TopicReplaced as error:
            log.warning("topic was deleted or recreated; starting over", topic=str(error))
            self._start_over()
        except Fenced as error:
            self._recreate_client(error)
        except (TransientError, TransientKafkaError, DeadLettersFailed) as error:
            if isinstance(error, ClickHouseFailed):
                self._cycle.disconnect()
            self._schedule_retry(error)
        else:
            if self._cycle.ranges:
                self._hold()
                return
            if self.kafka.states:  # without partitions nothing was tried
                self._retry.worked()
                if self._cycle.deferred_are_full:
                    self._hold()
                elif self._cycle.take_released() or self._holding:
                    self._holding = False
                    self.kafka.resume()

    def _iteration_is_over(self) -> bool:
        return time.monotonic() >= self._iteration_ends

    def _observe(self) -> None:
        """Update metrics and health about once a second."""
        now = time.monotonic()
        self.health.heartbeat()
        if now - self._observed < OBSERVE_S:
            return
        self._observed = now
        self.kafka.refresh_end_offsets(now)  # fetches do not report the ends of partitions that stand still
        if reason := self.kafka.unread(now):
            log.warning("subscribing again", reason=reason)
            self._start_over()
        self.health.set_reason("topics", self.kafka.coverage.reason)
        lags = self.kafka.lags()
        observe(self.health, self.kafka.states.values(), self._cycle.unstored_rows, sum(lags.values()))
        behind = {place: state.next_offset for place, state in self.kafka.states.items() if lags.get(place)}
        stalled = [f"{topic} partition {partition}" for topic, partition in self._progress.stalled(behind, now)]
        reason = f"nothing is read for {STALLED_S:.0f} s of {', '.join(stalled[:3])}" if stalled else ""
        self.health.set_reason("stalled", reason)
        attempt = self._retry.attempt
        self.health.set_reason("retry", f"trying again, attempt {attempt}: {self._waiting}" if attempt else "")
        self.health.set_reason("kafka", "no broker answers" if self.kafka.events.brokers_down else "")

    def _report(self) -> None:
        now = time.monotonic()
        since, rows = self._reported
        if now - since >= REPORT_S:
            rate = (self.counts.rows - rows) / (now - since)
            log.info(
                "sink",
                rows_per_s=round(rate),
                lag=self.kafka.lag(),
                partitions=len(self.kafka.states),
                **asdict(self.counts),
            )
            self._reported = (now, self.counts.rows)
            heap.trim()
