"""Take records from Kafka into their partitions: decoded, rejected, or waiting for their schema.

Missing offsets are counted, and floods of dead letters slow their partition down.
"""

from __future__ import annotations

import random
import time

import structlog

from drumline.infra.config.settings import SinkSettings
from drumline.infra.runtime.retry import Retry
from drumline.infra.telemetry import metrics
from drumline.schemas.codec import Codec
from drumline.schemas.errors import BadRecord, RegistryRejected, RegistryUnavailable
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.ranges.dead_letter_limit import FLOOD_RATIO, FLOOD_RUN, FLOOD_S, RUN_S, FloodGuard
from drumline.sinks.ranges.disposition import UNREADABLE, Disposition, RangeEntry, Record
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.reading import read_all, read_together, received
from drumline.sinks.telemetry import SinkCounts

log = structlog.get_logger()
#: Bytes of memory of records that wait to be read together, of all partitions.
MOST_BYTES = 4 << 20


class Intake:
    """Decodes records and passes them to their partitions; owned by `Sink`, used by its thread only.

    May block for a request to the schema registry. `registry`: attempts to reach a registry that failed, and when the
    next is due (monotonic, s).
    """

    def __init__(self, settings: SinkSettings, kafka: SinkConsumer, codec: Codec, counts: SinkCounts) -> None:
        self.registry = Retry()
        self._settings, self._kafka, self._codec, self._counts = settings, kafka, codec, counts
        self._guards: dict[tuple[str, int], FloodGuard] = {}
        self._waiting_bytes = 0

    def take(self, record: Record) -> None:
        """Take in a record, unless it is behind or its partition is not held; it may wait for `take_waiting`.

        Fatal: RegistryRejected.
        """
        state = self._kafka.states.get((record.topic, record.partition))
        if state is None or record.offset < state.next_offset:
            return
        if state.intent is None and self._codec.reads_together(record.topic, record.value):
            if not state.compacted:
                _count_gap(state, record.offset)
            state.wait(record)
            self._waiting_bytes += record.memory
            if self._waiting_bytes > MOST_BYTES:
                self.take_waiting()
            return
        self._take_waiting(state)
        entries = self._read(record, state)
        if not entries:
            return
        if not state.compacted:
            _count_gap(state, record.offset)
        for entry in entries:
            self._add(state, entry)

    def take_waiting(self) -> None:
        """Read the records that wait to be read together, of all partitions."""
        for state in self._kafka.states.values():
            self._take_waiting(state)
        self._waiting_bytes = 0

    def _take_waiting(self, state: PartitionState) -> None:
        if state.waiting:
            records = read_together(state.waiting, state.table, self._codec)
            state.take_waiting(records, time.monotonic())
            for entries in records:
                for entry in entries:
                    self._guard(state, entry)

    def take_unreadable(self, state: PartitionState, first: int, behind: int) -> None:
        """Take in a batch that cannot be unpacked, as one dead letter at its first offset, without value.

        The ledger has one row for all of its offsets `first` up to `behind`: it ends a range.
        """
        self._take_waiting(state)
        if first >= state.next_offset:
            record = Record(
                state.table.topic.value, state.partition, first, None, None, time.time_ns() // 1_000_000, []
            )
            text = f"offsets {first}..{behind - 1} are a batch that Kafka's client cannot unpack"
            error = (UNREADABLE, text)
            if not state.compacted:
                _count_gap(state, first)
            self._add(state, RangeEntry(record, 0, None, Disposition.DEAD_LETTER, error=error, batch_last=behind - 1))
        state.next_offset = max(state.next_offset, behind)

    def _add(self, state: PartitionState, entry: RangeEntry) -> None:
        record = entry.record
        replayed = state.intent is not None and record.offset <= state.intent.range.last
        state.take(entry, time.monotonic())
        if not replayed:
            self._guard(state, entry)

    def _guard(self, state: PartitionState, entry: RangeEntry) -> None:
        """Count the record against the limits of dead letters; slow its partition down if it is flooded."""
        place = entry.record.topic, entry.record.partition
        guard = self._guards.get(place)
        if guard is None:
            guard = self._guards[place] = FloodGuard(FLOOD_RUN, FLOOD_RATIO)
        process = "" if entry.batch is None else str(entry.batch.envelope["process_id"])
        is_rejected = entry.disposition is Disposition.DEAD_LETTER
        isolated, flooded = guard.add(process or entry.record.key_text, is_rejected)
        if not isolated and not flooded:
            return
        record, now = entry.record, time.monotonic()
        starts = now - (state.flood_until if flooded else state.flood_at) >= FLOOD_S
        state.flood_at = now
        state.flood = f"{record.topic} partition {record.partition}, offset {record.offset}: {flooded or isolated}"
        if starts:
            metrics.SINK_FLOODS.labels(record.topic).inc()
            scope = "of several producers: it is read more slowly" if flooded else "of one producer; others go on"
            log.error("flood of dead letters", topic=record.topic, partition=record.partition,
                      offset=record.offset, reason=flooded or isolated, scope=scope)  # fmt: skip
        if flooded:
            state.flood_until = max(state.flood_until + RUN_S, now)
            if state.flood_until > now:
                state.flooded = True
                self._kafka.pause_partition(state)

    def end_floods(self) -> bool:
        """Forget floods that are over; return True if a flooded partition is to be read again."""
        ended, now = False, time.monotonic()
        for state in self._kafka.states.values():
            if state.flood and now - state.flood_at >= FLOOD_S:
                state.flood = ""
            if state.flooded and now >= state.flood_until:
                state.flooded, ended = False, True
        return ended

    def take_parked(self) -> bool:
        """Request the schemas of parked records again; return True if there are any."""
        parked = [state for state in self._kafka.states.values() if state.parked is not None]
        for state in parked:
            record, state.parked = state.parked, None
            if record is not None:
                self.take(record)
        if not parked:  # their partitions went to others
            self.registry.worked()
        return bool(parked)

    def _read(self, record: Record, state: PartitionState) -> list[RangeEntry]:
        """Return the decoded record or its parts, or nothing if its schema is new and the registry is down.

        The partition then waits; the record is no dead letter.
        """
        known = self._needs_no_registry(record)
        if known or self.registry.at <= time.monotonic():
            try:
                entries = read_all(record, state.table, self._codec, state.counts_as_decoded, state.counts_as_buried)
            except RegistryRejected:
                raise
            except RegistryUnavailable as error:
                wait_s = self.registry.failed(time.monotonic(), random.random())
                self._counts.retry(error, self.registry.attempt, wait_s)
            else:
                if not known and all(of.parked is None for of in self._kafka.states.values()):
                    self.registry.worked()  # else the records that wait for it are tried at the next attempt
                return entries
        self._kafka.pause_for_schema(state, record)
        return []

    def _needs_no_registry(self, record: Record) -> bool:
        """Return True if the schemas of a record are in memory; its parts are looked at while the registry is down."""
        known = self._codec.decodes_at_once(record.value)
        if not known or not self.registry.attempt:
            return known
        try:
            opened = self._codec.open(record.topic, received(record), bounded=False)
        except BadRecord:
            return True
        return self._codec.reads_at_once(opened)


def _count_gap(state: PartitionState, behind: int) -> None:
    """Count the offsets from the next one up to `behind` as missing, if there are any."""
    if behind > state.next_offset:
        topic = state.table.topic.value
        log.warning(
            "offsets are missing in Kafka", topic=topic, partition=state.partition,
            first=state.next_offset, last=behind - 1,
        )  # fmt: skip
        metrics.SINK_GAPS.labels(topic).inc(behind - state.next_offset)
