"""The sink: topics to tables, exactly once. The protocol's steps are numbered as in docs/design/exactly-once.md.

One thread does everything but inserts (writers.py), and waits for those, so that nothing is written for a partition
that is no longer held. It polls between inserts and while it waits for ClickHouse to come back, so that a slow or dead
ClickHouse costs no rebalance, and collects nothing meanwhile.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from drumline.infra import heap, metrics
from drumline.infra.backoff import Retry
from drumline.infra.clickhouse import ClickHouseFailed, Client, Unavailable
from drumline.infra.health import Health
from drumline.infra.settings import Settings
from drumline.schemas.codec import Codec
from drumline.schemas.errors import RegistryRefused, RegistryUnavailable
from drumline.sinks.consumer import KafkaTrouble, SinkConsumer, TopicReplaced
from drumline.sinks.deadletter import DeadLetters, DeadLettersFailed
from drumline.sinks.entry import Entry, Record, Verdict, read
from drumline.sinks.flood import FloodGauge
from drumline.sinks.intent import write_done, write_intent
from drumline.sinks.ledger import Ledger
from drumline.sinks.names import KernelNames
from drumline.sinks.partition import PartitionState, Pending, Stage
from drumline.sinks.ranges import OffsetRange
from drumline.sinks.telemetry import at_fault, count_range, observe, waits_for
from drumline.sinks.writers import Writers

log = structlog.get_logger()
REPORT_S = 10.0
OBSERVE_S = 1.0
#: Work goes on for so long, then Kafka is polled: it takes a member that does not poll for 300 s for dead.
TURN_S = 5.0
#: Rows collected over all partitions, in flush_rows, at which everything is written: the bound on memory.
PRESSURE = 2


class Flooded(RuntimeError):
    """Too many dead letters: something is wrong with a producer or with us, not with a record."""


@dataclass(slots=True)
class Counts:
    records: int = 0
    rows: int = 0
    ranges: int = 0
    replays: int = 0
    duplicates: int = 0
    dead: int = 0
    retries: int = 0


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
    names: KernelNames = field(default_factory=KernelNames)
    _gauges: dict[str, FloodGauge] = field(default_factory=dict)
    _cycle: list[tuple[PartitionState, Pending]] = field(default_factory=list)
    _client: Client | None = None
    _retry: Retry = field(default_factory=Retry)
    _waiting: str = ""
    _registry: Retry = field(default_factory=Retry)
    _holding: bool = False
    _turn_ends: float = 0.0
    _reported: tuple[float, int] = (0.0, 0)
    _observed: float = 0.0
    _committed: float = 0.0

    def __post_init__(self) -> None:
        self._writers = Writers(lambda: self.connect(), self.settings.clickhouse.database, self.names)

    def run(self) -> None:
        """Raises Flooded, ReplayImpossible, LostRecords, Fenced, Refused, KafkaRefused, RegistryRefused."""
        self.kafka.subscribe()
        self._committed = time.monotonic()
        metrics.SINK_COMMIT_AGE.set_function(lambda: time.monotonic() - self._committed)
        self._reported = (self._committed, 0)
        try:
            while not self.stopping():
                self._poll()
                if self._retry.at <= time.monotonic():
                    self._work()
                if self._registry.attempt and self._registry.at <= time.monotonic():
                    self._take_parked()
                self._observe()
                self._report()
            if self._cycle and not self._retry.attempt:
                self._work()
        finally:
            self.kafka.close()
            self._writers.close()
            log.info("stopped", **self._totals())

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
        if record is not None:
            self._collect(record)

    def _take_parked(self) -> None:
        """Ask the registry again for the schemas of records that had to wait."""
        parked = [state for state in self.kafka.states.values() if state.parked is not None]
        for state in parked:
            record, state.parked = state.parked, None
            if record is not None:
                self._collect(record)
        if not parked:  # their partitions went to others
            self._registry.worked()
        elif not self._holding:
            self.kafka.resume()

    def _start_over(self) -> None:
        self._cycle.clear()
        self.kafka.drop()
        self.kafka.subscribe()

    def _later(self, error: Exception) -> None:
        """Note when to try again, and fetch nothing until then."""
        wait_s = self._retry.failed(time.monotonic(), random.random())
        self._waiting = waits_for(error)
        self._tell(error, self._retry.attempt, wait_s)
        self._hold()

    def _tell(self, error: Exception, attempt: int, wait_s: float) -> None:
        self.counts.retries += 1
        metrics.SINK_RETRIES.labels(at_fault(error)).inc()
        log.warning("will try again", attempt=attempt, wait_s=round(wait_s, 1), error=str(error))

    def _hold(self) -> None:
        """Fetch nothing until all that is collected is written: the bound on memory."""
        if not self._holding:
            self._holding = True
            self.kafka.pause()

    def _collect(self, record: Record) -> None:
        state = self.kafka.states.get((record.topic, record.partition))
        if state is None or record.offset < state.next_offset:
            return
        entry = self._read(record, state)
        if entry is None:
            return
        if record.offset > state.next_offset and not state.compacted:
            log.warning(
                "offsets are missing in Kafka", topic=record.topic, partition=record.partition,
                first=state.next_offset, last=record.offset - 1,
            )  # fmt: skip
            metrics.SINK_GAPS.labels(record.topic).inc(record.offset - state.next_offset)
        replayed = state.intent is not None and record.offset <= state.intent.range.last
        if not replayed:
            gauge = self._gauges.setdefault(
                record.topic, FloodGauge(self.settings.sink.dead_letter_run, self.settings.sink.dead_letter_ratio)
            )
            why = gauge.add(entry.verdict is Verdict.DEAD)
            if why:
                at = f"partition {record.partition}, offset {record.offset}"
                raise Flooded(f"{record.topic}: {why}; the last at {at}: {entry.error[1]}")
        state.take(entry, time.monotonic())

    def _read(self, record: Record, state: PartitionState) -> Entry | None:
        """None: its schema is new and the registry is away. The partition waits; the record is not dead."""
        known = self.codec.decodes_at_once(record.value)
        if known or self._registry.at <= time.monotonic():
            try:
                entry = read(record, state.table, self.codec)
            except RegistryRefused:
                raise
            except RegistryUnavailable as error:
                wait_s = self._registry.failed(time.monotonic(), random.random())
                self._tell(error, self._registry.attempt, wait_s)
            else:
                if not known:
                    self._registry.worked()
                return entry
        self.kafka.park(state, record)
        return None

    def _work(self) -> None:
        """One try at everything that needs ClickHouse or a commit; leaves off when its turn is over."""
        self._turn_ends = time.monotonic() + TURN_S
        try:
            self._open()
            self._cut_due()
            if self._cycle:
                self._advance()
        except TopicReplaced as error:
            log.warning("topic was deleted or created anew; starting over", topic=str(error))
            self._start_over()
        except (Unavailable, KafkaTrouble, DeadLettersFailed) as error:
            if isinstance(error, ClickHouseFailed):
                self._disconnect()
            self._later(error)
        else:
            if self._cycle:
                self._hold()
                return
            if self.kafka.states:  # without partitions nothing was tried
                self._retry.worked()
                if self._holding:
                    self._holding = False
                    self.kafka.resume()

    def _turn_is_over(self) -> bool:
        return time.monotonic() >= self._turn_ends

    def _open(self) -> None:
        """Step 0: a partition that we just got goes on behind what the ledger has, whatever was committed."""
        new = [state for state in self.kafka.states.values() if not state.opened]
        if not new:
            return
        waters = self._ledger().high_waters(
            [(state.table.topic.value, state.topic_id, state.partition) for state in new]
        )
        ahead = []
        for state in new:
            topic = state.table.topic.value
            stored = waters.get((topic, state.topic_id, state.partition), 0)
            if state.intent is not None:
                if stored > state.intent.range.last:  # all but its last commit, and perhaps the ledger's own rollup
                    self._ledger().feed_again(topic, state.intent.range)
                    state.intent = None
                else:
                    log.info("finishing an announced range", topic=topic, token=state.intent.range.token)
            elif stored < state.next_offset and state.next_offset > 0 and not state.compacted:
                log.info(
                    "ledger ends before the committed offset", topic=topic, ledger=stored, committed=state.next_offset
                )
            if state.intent is None and stored > state.next_offset:
                state.next_offset = stored
                ahead.append((state, stored, write_done(state.topic_id)))
        self.kafka.commit(ahead)
        for state in new:
            state.opened = True
        if not self._holding:
            self.kafka.resume()

    def _cut_due(self) -> None:
        """Step 1: cut ranges of the partitions that are due, and judge their records."""
        if self._cycle:
            return
        sink, now = self.settings.sink, time.monotonic()
        full = sum(state.rows for state in self.kafka.states.values()) >= PRESSURE * sink.flush_rows
        for state in list(self.kafka.states.values()):
            if not (state.due(now, sink.flush_rows, sink.flush_s) or (full and state.entries and state.intent is None)):
                continue
            wanted = state.unknown() if state.intent is None else set()
            if wanted:
                before = OffsetRange(
                    state.topic_id, state.partition, state.entries[0].record.offset, state.next_offset - 1
                )
                state.history.update(self._ledger().history(state.table.topic.value, wanted, before))
            self._cycle.append((state, state.cut(sink.flush_rows, now)))
            if self._turn_is_over():
                break

    def _advance(self) -> None:
        """Steps 2 to 6 for all ranges of the cycle; to be repeated, from wherever it broke off, until that is empty.
        Each call comes further, however slow the others are."""
        self._cycle = [(state, pending) for state, pending in self._cycle if self.kafka.holds(state)]
        self._check_topics()
        announce = []
        for state, pending in self._cycle:
            if pending.stage < Stage.LETTERS_SENT:  # 2: dead letters, acknowledged before anything is announced
                sent = self.letters.send(pending.entries, pending.range.topic_id)
                pending.stage = Stage.LETTERS_SENT
                if sent and self._turn_is_over():
                    return
            if pending.stage < Stage.INTENT_COMMITTED:
                announce.append((state, pending))
        self.kafka.commit([(s, p.range.first, write_intent(p.intent)) for s, p in announce])  # 3: intents
        for _, pending in announce:
            pending.stage = Stage.INTENT_COMMITTED
        before = self._writers.rows
        try:  # 4 and 5: rows and ledger
            if not self._writers.write((pending for _, pending in self._cycle), self._turn_is_over):
                return
        finally:
            self.counts.rows += self._writers.rows - before
        self.kafka.commit([(s, p.range.last + 1, write_done(p.range.topic_id)) for s, p in self._cycle])  # 6
        now_ns = time.time_ns()
        self._committed = time.monotonic() if self._cycle else self._committed
        for state, pending in self._cycle:
            pending.stage = Stage.COMMITTED
            self._count(state, pending)
            count_range(pending, now_ns)
        self._cycle = []

    def _check_topics(self) -> None:
        """A topic created anew has another id: its offsets name other records, so no token may be made of them."""
        ids = self.kafka.topic_ids(state.table.topic.value for state, _ in self._cycle)
        for state, _ in self._cycle:
            if ids.get(state.table.topic.value) != state.topic_id:
                raise TopicReplaced(state.table.topic.value)

    def _count(self, state: PartitionState, pending: Pending) -> None:
        self.counts.ranges += 1
        self.counts.replays += pending.replay
        self.counts.records += len(pending.entries)
        self.counts.dead += sum(entry.verdict is Verdict.DEAD for entry in pending.entries)
        self.counts.duplicates += sum(entry.verdict is Verdict.DUPLICATE for entry in pending.entries)
        if len(state.history) > 20_000:  # asked again when needed; what is collected is not judged yet
            state.history.clear()

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self.connect()
        return self._client

    def _ledger(self) -> Ledger:
        return Ledger(self._connected(), self.settings.clickhouse.database)

    def _disconnect(self) -> None:
        self._writers.disconnect()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _totals(self) -> dict[str, int]:
        return {name: getattr(self.counts, name) for name in self.counts.__slots__}

    def _observe(self) -> None:
        """For metrics and health."""
        now = time.monotonic()
        self.health.beat()
        if now - self._observed < OBSERVE_S:
            return
        self._observed = now
        if self._holding or self.kafka.away or self._registry.attempt:
            self.kafka.look(now)  # fetches, which bring the ends of partitions, rest
        cut = sum(e.rows for _, p in self._cycle if p.stage < Stage.ROWS_INSERTED for e in p.stored)
        observe(self.health, self.kafka.states.values(), cut, self.kafka.lag())
        attempt = self._retry.attempt
        self.health.waits("retry", f"trying again, attempt {attempt}: {self._waiting}" if attempt else "")
        self.health.waits("kafka", "no broker answers" if self.kafka.away else "")

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
                **self._totals(),
            )
            self._reported = (now, self.counts.rows)
            heap.give_back()
