"""The sink's loop: topics to tables, exactly once. What becomes of records is in intake.py, of ranges in cycle.py.

One thread does everything but inserts (writers.py), and waits for those, so that nothing is written for a partition
that is no longer held. It polls between inserts and while it waits for ClickHouse to come back, so that a slow or dead
ClickHouse costs no rebalance, and collects nothing meanwhile.
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
from drumline.sinks.commit_cycle import Cycle
from drumline.sinks.errors import Astray, Fenced, KafkaTrouble, TopicReplaced
from drumline.sinks.intake import Intake
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.dead_letters import DeadLetters, DeadLettersFailed
from drumline.sinks.telemetry import Counts, observe, waits_for

log = structlog.get_logger()
REPORT_S = 10.0
OBSERVE_S = 1.0
#: Work goes on for so long, then Kafka is polled: it takes a member that does not poll for 300 s for dead.
TURN_S = 5.0


@dataclass
class Sink:
    """`connect` makes a ClickHouse client. `run` ends when `stopping()` says so, or raises what stopped it."""

    settings: Settings
    kafka: SinkConsumer
    letters: DeadLetters
    connect: Callable[[], Client]
    codec: Codec
    stopping: Callable[[], bool]
    counts: Counts = field(default_factory=Counts)
    health: Health = field(default_factory=Health)
    _retry: Retry = field(default_factory=Retry)
    _waiting: str = ""
    _holding: bool = False
    _turn_ends: float = 0.0
    _reported: tuple[float, int] = (0.0, 0)
    _observed: float = 0.0

    def __post_init__(self) -> None:
        self._intake = Intake(self.settings.sink, self.kafka, self.codec, self.counts)
        self._cycle = Cycle(self.settings, self.kafka, self.letters, lambda: self.connect(), self.counts)

    def run(self) -> None:
        """Raises Flooded, ReplayImpossible, LostRecords, Fenced, PermanentError, KafkaAccessDenied, RegistryRefused."""
        self.kafka.subscribe()
        self._cycle.committed = time.monotonic()
        metrics.SINK_COMMIT_AGE.set_function(lambda: time.monotonic() - self._cycle.committed)
        self._reported = (self._cycle.committed, 0)
        registry = self._intake.registry
        try:
            while not self.stopping():
                self._poll()
                if self._retry.at <= time.monotonic():
                    self._work()
                if registry.attempt and registry.at <= time.monotonic():
                    self._take_parked()
                self._observe()
                self._report()
            if self._cycle.ranges and not self._retry.attempt:
                self._work()
        finally:
            self.kafka.close()
            self._cycle.close()
            log.info("stopped", **asdict(self.counts))

    def _poll(self) -> None:
        try:
            record = self.kafka.poll(0.1)
        except KafkaTrouble as error:  # an assignment that could not be taken up
            self._later(error)
            self._start_over()
            return
        except TopicReplaced as error:
            log.warning("topic was created anew; starting over", topic=str(error))
            self._start_over()
            return
        except (Fenced, Astray) as error:
            self._renew(error)
            return
        if record is not None:
            self._intake.take(record)

    def _take_parked(self) -> None:
        if self._intake.take_parked() and not self._holding:
            self.kafka.resume()

    def _start_over(self) -> None:
        self._cycle.ranges.clear()
        self.kafka.drop()
        self.kafka.subscribe()

    def _renew(self, error: Fenced | Astray) -> None:
        """Start over with new clients of Kafka's, unless another sink has our name. Raises Fenced."""
        if isinstance(error, Astray):
            log.warning("starting over with a new client", error=str(error))
        elif self.kafka.unchallenged():
            log.warning("fenced, and nobody else has this name; joining again", error=str(error))
        else:
            raise error
        self._cycle.ranges.clear()
        self.kafka.renew()
        self.kafka.subscribe()

    def _later(self, error: Exception) -> None:
        """Note when to try again, and fetch nothing until then."""
        wait_s = self._retry.failed(time.monotonic(), random.random())
        self._waiting = waits_for(error)
        self.counts.retry(error, self._retry.attempt, wait_s)
        self._hold()

    def _hold(self) -> None:
        """Fetch nothing until all that is collected is written: the bound on memory."""
        if not self._holding:
            self._holding = True
            self.kafka.pause()

    def _work(self) -> None:
        """One try at everything that needs ClickHouse or a commit; leaves off when its turn is over."""
        self._turn_ends = time.monotonic() + TURN_S
        try:
            if self._cycle.open() and not self._holding:
                self.kafka.resume()
            self._cycle.cut(self._turn_is_over)
            if self._cycle.ranges:
                self._cycle.advance(self._turn_is_over)
        except TopicReplaced as error:
            log.warning("topic was deleted or created anew; starting over", topic=str(error))
            self._start_over()
        except Fenced as error:
            self._renew(error)
        except (TransientError, KafkaTrouble, DeadLettersFailed) as error:
            if isinstance(error, ClickHouseFailed):
                self._cycle.disconnect()
            self._later(error)
        else:
            if self._cycle.ranges:
                self._hold()
                return
            if self.kafka.states:  # without partitions nothing was tried
                self._retry.worked()
                if self._holding:
                    self._holding = False
                    self.kafka.resume()

    def _turn_is_over(self) -> bool:
        return time.monotonic() >= self._turn_ends

    def _observe(self) -> None:
        """For metrics and health."""
        now = time.monotonic()
        self.health.heartbeat()
        if now - self._observed < OBSERVE_S:
            return
        self._observed = now
        if self._holding or self.kafka.aside.away or self._intake.registry.attempt:
            self.kafka.look(now)  # fetches, which bring the ends of partitions, rest
        observe(self.health, self.kafka.states.values(), self._cycle.unstored_rows, self.kafka.lag())
        attempt = self._retry.attempt
        self.health.set_reason("retry", f"trying again, attempt {attempt}: {self._waiting}" if attempt else "")
        self.health.set_reason("kafka", "no broker answers" if self.kafka.aside.away else "")

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
