"""Run the commit protocol, from cutting ranges to committing them (docs/design/exactly-once.md)."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from drumline.infra.clickhouse.client import Client
from drumline.infra.config.settings import Settings
from drumline.schemas.topics import DERIVED_TOPICS
from drumline.sinks.errors import TopicReplaced
from drumline.sinks.expired import count_expired, expired_until_ms
from drumline.sinks.inserts.insert_lanes import InsertLanes
from drumline.sinks.inserts.kernel_names import KernelNames
from drumline.sinks.inserts.ledger import Ledger
from drumline.sinks.kafka.consumer import Commit, SinkConsumer
from drumline.sinks.kafka.dead_letters import DeadLetterSender
from drumline.sinks.ledger_gap import LedgerEnd, is_behind, resolve_gaps
from drumline.sinks.lost_tail import continue_behind
from drumline.sinks.ranges.intent import write_done, write_intent
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.partition import RANGE_BYTES, PartitionState
from drumline.sinks.ranges.pending_range import PendingRange, RangeStage
from drumline.sinks.ranges.resume import check_ledger, follow_ledger
from drumline.sinks.ranges.stored_tail import kafka_topic_id
from drumline.sinks.ranges.write_order import PRESSURE, next_to_write
from drumline.sinks.rejected_ranges import RejectedRanges
from drumline.sinks.telemetry import SinkCounts, count_conflicts, count_range

log = structlog.get_logger()
#: Identities whose history all partitions keep together, at 460 bytes; 16,384 ranks have some 100,000.
MAX_IDENTITIES = 150_000


class CommitCycle:
    """Takes ranges of different partitions through the commit protocol together; they share each commit.

    Owned by `Sink`; used by its thread only. Blocks for requests to Kafka and ClickHouse. Every call may be repeated.
    `ranges`: open ranges, until all are committed. `committed`: when the last ones were (monotonic, s). `connect`:
    creates a ClickHouse client.

    Retry later: TransientError, TransientKafkaError. Fatal: PermanentError, KafkaAccessDenied, LostRecords.
    TopicReplaced: discard the ranges and re-subscribe. Fenced: re-create the client, or stop if another sink has the
    name.
    """

    def __init__(
        self,
        settings: Settings,
        kafka: SinkConsumer,
        dead_letters: DeadLetterSender,
        connect: Callable[[], Client],
        counts: SinkCounts,
    ) -> None:
        self.ranges: list[tuple[PartitionState, PendingRange]] = []
        self.committed = 0.0
        self._settings, self._sink, self._database = settings, settings.sink, settings.clickhouse.database
        self._kafka, self._dead_letters, self._connect, self._counts = kafka, dead_letters, connect, counts
        self._client: Client | None = None
        self._lanes = InsertLanes(connect, self._database, KernelNames())
        self._rejected = RejectedRanges(settings, kafka, self._queries, counts)
        self._released = False

    def open(self) -> bool:
        """Run step 0: start new partitions behind the offsets in the ledger, whatever was committed.

        Returns True if there was a new partition; it is not fetched from yet. Fatal: LostRecords, also where the ledger
        ends before what a sink has committed as stored.
        """
        new = [state for state in self._kafka.states.values() if not state.opened]
        if not new:
            return False
        places = [(state.table.topic.value, kafka_topic_id(state.topic_id), state.partition) for state in new]
        tails = self._ledger().tails(places)
        epochs = self._ledger().epochs(
            [(s.table.topic.value, s.topic_id, s.partition) for s in new if s.table.topic.value in DERIVED_TOPICS]
        )
        ahead: list[Commit] = []
        behind: list[LedgerEnd] = []
        for state, place in zip(new, places, strict=True):
            topic, tail = state.table.topic.value, tails.get(place)
            state.epochs = epochs.get((topic, state.topic_id, state.partition), {})
            try:
                stored = follow_ledger(state, tail)
            except TopicReplaced:  # by another log of the same topic, whose commit Kafka lost
                self._kafka.commit([(state, tail.offset + 1, write_done(tail.topic_id), -1)] if tail else [])
                raise
            check_ledger(state, stored, accept_loss=self._kafka.accept_loss)
            if is_behind(state, stored, accept_loss=self._kafka.accept_loss):
                behind.append((state, stored))
                continue
            if state.intent is not None:
                if stored > state.intent.range.last:  # only its last commit is missing, and perhaps the ledger's rollup
                    self._ledger().insert_again(topic, state.intent.range)
                    state.intent = None
                else:
                    log.info("finishing a range with a committed intent", topic=topic, token=state.intent.range.token)
            if state.intent is None and stored > state.next_offset:
                state.next_offset = stored
                ahead.append((state, stored, write_done(state.topic_id), -1))
        again = resolve_gaps(self._settings, self._kafka, self._queries(), behind) if behind else []
        ahead += [(state, first, write_done(state.topic_id), -1) for state, first in again]
        self._kafka.commit(ahead)
        for state, first in again:
            state.next_offset, state.intent = first, None
            self._kafka.seek(state, first)
        for state in new:
            state.opened = True
        return True

    def accept_tail_loss(self, topic: str, partition: int) -> None:
        """Have the partition continue where its log in Kafka differs from the stored one."""
        state = self._kafka.states.get((topic, partition))
        if state is not None:
            continue_behind(self._kafka, self._ledger(), state)

    def cut(self, over: Callable[[], bool]) -> None:
        """Run step 1, if no ranges are open: cut the next ranges, until `over()`; classify their records.

        A partition has one open range: its commit holds one intent. Fatal: ReplayImpossible.
        """
        if self.ranges:
            return
        states, now = self._kafka.states.values(), time.monotonic()
        chosen = next_to_write(states, self._sink, now)
        for state in states:
            if state.deferred is not None and state.retry.at <= now:
                self.ranges.append((state, state.deferred))
                state.deferred, self._released = None, True
        for state in chosen:
            expired_ms = 0
            if state.intent is None:
                self._load_history(state)
                expired_ms = expired_until_ms(state, self._settings.clickhouse.retention, self._queries)
            self.ranges.append((state, state.cut(self._sink.flush_rows, now, expired_ms)))
            count_conflicts(state)
            if over():
                break

    def _load_history(self, state: PartitionState) -> None:
        """Load what is stored of the processes of the collected records, to find duplicates."""
        topic, known = state.table.topic.value, state.duplicates
        before = OffsetRange(state.topic_id, state.partition, state.entries[0].record.offset, state.next_offset - 1)
        if wanted := state.identities_to_load():
            known.history.update(self._ledger().history(topic, wanted, before))
        places = state.contents_to_load()
        known.contents = self._ledger().contents(topic, places, before) if places else {}

    def advance(self, over: Callable[[], bool]) -> None:
        """Run the commit protocol for all open ranges (docs/design/exactly-once.md).

        2. Produce dead letters and wait for their acknowledgement.
        3. Commit each range's intent to Kafka.
        4. Insert the rows of each range under its deduplication token.
        5. Insert the ledger rows under the same token.
        6. Commit `last + 1` for all ranges.

        Each range remembers its step, so a call after an error resumes there. Returns early once `over()` is true, but
        never without progress.

        Retry later: DeadLettersFailed, TransientError, TransientKafkaError. Fatal: PermanentError, KafkaAccessDenied,
        LostRecords. TopicReplaced: discard the ranges and re-subscribe. Fenced: re-create the client, or stop if
        another sink has the name.
        """
        self.ranges = [(state, pending) for state, pending in self.ranges if self._kafka.holds(state)]
        assert len({id(state) for state, _ in self.ranges}) == len(self.ranges), "two open ranges of a partition"
        self._check_topics()
        uncommitted = []
        for state, pending in self.ranges:
            if pending.stage < RangeStage.DEAD_LETTERS_SENT:  # 2
                sent = self._dead_letters.send(pending.entries, pending.range.topic_id)
                pending.stage = RangeStage.DEAD_LETTERS_SENT
                if sent and over():
                    return
            if pending.stage < RangeStage.INTENT_COMMITTED:
                uncommitted.append((state, pending))
        self._kafka.commit(  # 3
            [(s, p.range.first, write_intent(p.intent), p.leader_epochs[0]) for s, p in uncommitted]
        )
        for _, pending in uncommitted:
            pending.stage, pending.intent_committed_at = RangeStage.INTENT_COMMITTED, time.monotonic()
        before = self._lanes.rows
        try:  # 4 and 5
            done = self._lanes.write((pending for _, pending in self.ranges), over)
        finally:
            self._counts.rows += self._lanes.rows - before
        rejected = list(self._lanes.rejected)
        if not done and not rejected:
            return
        open_ranges = self.ranges
        self.ranges = [(s, p) for s, p in open_ranges if p.stage is RangeStage.LEDGER_INSERTED]
        try:
            self._commit_done()
        finally:
            self.ranges += [(s, p) for s, p in open_ranges if p.stage < RangeStage.LEDGER_INSERTED]
        for pending, error in rejected:
            [at] = [i for i, (_, p) in enumerate(self.ranges) if p is pending]
            state, _ = self.ranges[at]
            resolved = self._rejected.resolve(state, pending, error)
            self.ranges[at : at + 1] = [(state, resolved)] if resolved is not None else []

    def _commit_done(self) -> None:
        """Run step 6 for all `ranges`, which are in the ledger."""
        self._kafka.commit(  # 6
            [(s, p.range.last + 1, write_done(p.range.topic_id), p.leader_epochs[1]) for s, p in self.ranges]
        )
        now_ns = time.time_ns()
        self.committed = time.monotonic() if self.ranges else self.committed
        for state, pending in self.ranges:
            pending.stage = RangeStage.COMMITTED
            state.widen()
            state.rejected = 0 if pending.stored else state.rejected
            self._counts.add(pending)
            count_range(pending, now_ns)
            count_expired(pending, self._settings.clickhouse.retention.of(pending.table.name))
        self.ranges = []
        self._bound_history()

    def _bound_history(self) -> None:
        """Drop the largest histories: they are loaded again when needed, as collected records are unclassified."""
        histories = [state.duplicates.history for state in self._kafka.states.values()]
        for history in sorted(histories, key=len, reverse=True):
            if sum(map(len, histories)) <= MAX_IDENTITIES:
                break
            history.clear()

    def _check_topics(self) -> None:
        """Raise TopicReplaced if a topic was recreated.

        Its offsets then name other records, so no token may be built from them.
        """
        ids = self._kafka.topic_ids(state.table.topic.value for state, _ in self.ranges)
        for state, _ in self.ranges:
            if ids.get(state.table.topic.value) != kafka_topic_id(state.topic_id):
                raise TopicReplaced(state.table.topic.value)

    @property
    def unstored_rows(self) -> int:
        """Return the number of rows in open ranges that are not in ClickHouse yet."""
        return sum(e.rows for _, p in self.ranges if p.stage < RangeStage.ROWS_INSERTED for e in p.stored)

    @property
    def deferred_are_full(self) -> bool:
        """Return True if the ranges that ClickHouse rejects, which are kept until it takes them, reach PRESSURE."""
        kept = [state.deferred for state in self._kafka.states.values() if state.deferred is not None]
        rows = sum(entry.rows for pending in kept for entry in pending.stored)
        memory = sum(entry.memory for pending in kept for entry in pending.entries)
        return rows >= PRESSURE * self._sink.flush_rows or memory >= PRESSURE * RANGE_BYTES

    def take_released(self) -> bool:
        """Return True, once, if a partition may be fetched from again."""
        released, self._released = self._released, False
        return released

    def _ledger(self) -> Ledger:
        return Ledger(self._queries(), self._database)

    def _queries(self) -> Client:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def disconnect(self) -> None:
        """Close connections to ClickHouse; the next query or insert opens new ones."""
        self._lanes.disconnect()
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        """Stop the insert threads; no range can be written afterwards."""
        self._lanes.close()
