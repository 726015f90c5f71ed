"""The protocol: ranges from being cut to being committed. Its steps are numbered as in docs/design/exactly-once.md."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from drumline.infra.clickhouse.client import Client
from drumline.infra.config.settings import Settings
from drumline.sinks.errors import TopicReplaced
from drumline.sinks.inserts.insert_lanes import Writers
from drumline.sinks.inserts.kernel_names import KernelNames
from drumline.sinks.inserts.ledger import Ledger
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.dead_letters import DeadLetters
from drumline.sinks.ranges.intent import write_done, write_intent
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.partition import PartitionState, Pending, Stage
from drumline.sinks.ranges.resume import check_ledger
from drumline.sinks.telemetry import Counts, count_range

log = structlog.get_logger()
#: What is collected over all partitions when everything is written, the bound on memory: rows, in flush_rows; bytes of
#: dead records, which count as no rows and may be 10 MB each.
PRESSURE, DEAD_BYTES = 2, 32 << 20


class Cycle:
    """Ranges of different partitions that are on their way together and share each commit: `ranges`, until all are
    committed. `committed`: when the last ones were (monotonic, s). `connect` makes a ClickHouse client.

    All of it may be tried again. Raises TransientError, PermanentError; KafkaTrouble, KafkaAccessDenied, Fenced;
    TopicReplaced, LostRecords.
    """

    def __init__(
        self,
        settings: Settings,
        kafka: SinkConsumer,
        letters: DeadLetters,
        connect: Callable[[], Client],
        counts: Counts,
    ) -> None:
        self.ranges: list[tuple[PartitionState, Pending]] = []
        self.committed = 0.0
        self._sink, self._database = settings.sink, settings.clickhouse.database
        self._kafka, self._letters, self._connect, self._counts = kafka, letters, connect, counts
        self._client: Client | None = None
        self._writers = Writers(connect, self._database, KernelNames())

    def open(self) -> bool:
        """Step 0: a partition that we just got goes on behind what the ledger has, whatever was committed. Whether
        there was one; it is not fetched from yet."""
        new = [state for state in self._kafka.states.values() if not state.opened]
        if not new:
            return False
        waters = self._ledger().high_waters(
            [(state.table.topic.value, state.topic_id, state.partition) for state in new]
        )
        ahead = []
        for state in new:
            topic = state.table.topic.value
            stored = waters.get((topic, state.topic_id, state.partition), 0)
            check_ledger(state, stored, accept_loss=self._kafka.accept_loss)
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
        self._kafka.commit(ahead)
        for state in new:
            state.opened = True
        return True

    def cut(self, over: Callable[[], bool]) -> None:
        """Step 1, if no ranges are under way: cut those of the partitions that are due, until `over()`, and judge their
        records. Raises ReplayImpossible."""
        if self.ranges:
            return
        sink, now = self._sink, time.monotonic()
        states = list(self._kafka.states.values())
        full = sum(state.rows for state in states) >= PRESSURE * sink.flush_rows
        full = full or sum(state.dead_bytes for state in states) >= DEAD_BYTES
        for state in states:
            if not (state.due(now, sink.flush_rows, sink.flush_s) or (full and state.entries and state.intent is None)):
                continue
            wanted = state.unknown() if state.intent is None else set()
            if wanted:
                before = OffsetRange(
                    state.topic_id, state.partition, state.entries[0].record.offset, state.next_offset - 1
                )
                state.history.update(self._ledger().history(state.table.topic.value, wanted, before))
            self.ranges.append((state, state.cut(sink.flush_rows, now)))
            if over():
                break

    def advance(self, over: Callable[[], bool]) -> None:
        """Steps 2 to 6 for all ranges; to be repeated, from wherever it broke off, until there are none.
        Each call comes further, however slow the others are. Raises DeadLettersFailed."""
        self.ranges = [(state, pending) for state, pending in self.ranges if self._kafka.holds(state)]
        self._check_topics()
        announce = []
        for state, pending in self.ranges:
            if pending.stage < Stage.LETTERS_SENT:  # 2: dead letters, acknowledged before anything is announced
                sent = self._letters.send(pending.entries, pending.range.topic_id)
                pending.stage = Stage.LETTERS_SENT
                if sent and over():
                    return
            if pending.stage < Stage.INTENT_COMMITTED:
                announce.append((state, pending))
        self._kafka.commit([(s, p.range.first, write_intent(p.intent)) for s, p in announce])  # 3: intents
        for _, pending in announce:
            pending.stage, pending.announced = Stage.INTENT_COMMITTED, time.monotonic()
        before = self._writers.rows
        try:  # 4 and 5: rows and ledger
            if not self._writers.write((pending for _, pending in self.ranges), over):
                return
        finally:
            self._counts.rows += self._writers.rows - before
        self._kafka.commit([(s, p.range.last + 1, write_done(p.range.topic_id)) for s, p in self.ranges])  # 6
        now_ns = time.time_ns()
        self.committed = time.monotonic() if self.ranges else self.committed
        for state, pending in self.ranges:
            pending.stage = Stage.COMMITTED
            self._counts.add(pending)
            if len(state.history) > 20_000:  # asked again when needed; what is collected is not judged yet
                state.history.clear()
            count_range(pending, now_ns)
        self.ranges = []

    def _check_topics(self) -> None:
        """A topic created anew has another id: its offsets name other records, so no token may be made of them."""
        ids = self._kafka.topic_ids(state.table.topic.value for state, _ in self.ranges)
        for state, _ in self.ranges:
            if ids.get(state.table.topic.value) != state.topic_id:
                raise TopicReplaced(state.table.topic.value)

    @property
    def unstored_rows(self) -> int:
        """Rows of the ranges that are not in ClickHouse yet."""
        return sum(e.rows for _, p in self.ranges if p.stage < Stage.ROWS_INSERTED for e in p.stored)

    def _ledger(self) -> Ledger:
        if self._client is None:
            self._client = self._connect()
        return Ledger(self._client, self._database)

    def disconnect(self) -> None:
        """Connections to ClickHouse are made anew with the next question or range."""
        self._writers.disconnect()
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        """No range can be written any more."""
        self._writers.close()
