"""Take records from Kafka into their partitions: decoded, rejected, or waiting for their schema.

Missing offsets are counted, and too many dead letters stop the sink.
"""

from __future__ import annotations

import random
import time

import structlog

from drumline.infra.config.settings import SinkSettings
from drumline.infra.runtime.retry import Retry
from drumline.infra.telemetry import metrics
from drumline.schemas.codec import Codec
from drumline.schemas.errors import RegistryRejected, RegistryUnavailable
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.ranges.dead_letter_limit import DeadLetterLimit
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.record import Disposition, RangeEntry, Record, read
from drumline.sinks.telemetry import SinkCounts

log = structlog.get_logger()


class TooManyDeadLetters(RuntimeError):
    """Fatal: too many records are rejected, so a producer or this sink is at fault, not a record."""


class Intake:
    """Decodes records and passes them to their partitions; owned by `Sink`, used by its thread only.

    May block for a request to the schema registry. `registry`: attempts to reach a registry that failed, and when the
    next is due (monotonic, s).
    """

    def __init__(self, settings: SinkSettings, kafka: SinkConsumer, codec: Codec, counts: SinkCounts) -> None:
        self.registry = Retry()
        self._settings, self._kafka, self._codec, self._counts = settings, kafka, codec, counts
        self._gauges: dict[str, DeadLetterLimit] = {}

    def take(self, record: Record) -> None:
        """Take in a record, unless it is behind or its partition is not held.

        Fatal: TooManyDeadLetters, RegistryRejected.
        """
        state = self._kafka.states.get((record.topic, record.partition))
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
        self._add(state, entry)

    def take_unreadable(self, state: PartitionState, first: int, behind: int) -> None:
        """Take in a batch that cannot be unpacked, as one dead letter at its first offset, without value.

        The ledger has no row for its other offsets `first + 1` up to `behind`, which the audit reports. Fatal:
        TooManyDeadLetters.
        """
        if first >= state.next_offset:
            record = Record(
                state.table.topic.value, state.partition, first, None, None, time.time_ns() // 1_000_000, []
            )
            text = f"offsets {first}..{behind - 1} are a batch that Kafka's client cannot unpack"
            error = ("UnreadableBatch", text)
            self._add(state, RangeEntry(record, 0, None, Disposition.DEAD_LETTER, error=error))
        state.next_offset = max(state.next_offset, behind)

    def _add(self, state: PartitionState, entry: RangeEntry) -> None:
        record = entry.record
        replayed = state.intent is not None and record.offset <= state.intent.range.last
        if not replayed:
            gauge = self._gauges.setdefault(
                record.topic, DeadLetterLimit(self._settings.dead_letter_run, self._settings.dead_letter_ratio)
            )
            reason = gauge.add(entry.disposition is Disposition.DEAD_LETTER)
            if reason:
                at = f"partition {record.partition}, offset {record.offset}"
                raise TooManyDeadLetters(f"{record.topic}: {reason}; the last at {at}: {entry.error[1]}")
        state.take(entry, time.monotonic())

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

    def _read(self, record: Record, state: PartitionState) -> RangeEntry | None:
        """Return the decoded record, or None if its schema is new and the registry is down.

        The partition then waits; the record is no dead letter.
        """
        known = self._codec.decodes_at_once(record.value)
        if known or self.registry.at <= time.monotonic():
            try:
                entry = read(record, state.table, self._codec, bounded=not state.counts_as_decoded(record.offset))
            except RegistryRejected:
                raise
            except RegistryUnavailable as error:
                wait_s = self.registry.failed(time.monotonic(), random.random())
                self._counts.retry(error, self.registry.attempt, wait_s)
            else:
                if not known:
                    self.registry.worked()
                return entry
        self._kafka.pause_for_schema(state, record)
        return None
