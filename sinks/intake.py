"""Records from Kafka into their partitions: read, dead, or waiting for their schema. Offsets that are missing are
counted, and a flood of dead records stops the sink."""

from __future__ import annotations

import random
import time

import structlog

from drumline.infra.config.settings import SinkSettings
from drumline.infra.runtime.retry import Retry
from drumline.infra.telemetry import metrics
from drumline.schemas.codec import Codec
from drumline.schemas.errors import RegistryRefused, RegistryUnavailable
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.ranges.dead_letter_limit import FloodGauge
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.record import Entry, Record, Verdict, read
from drumline.sinks.telemetry import Counts

log = structlog.get_logger()


class Flooded(RuntimeError):
    """Too many dead letters: something is wrong with a producer or with us, not with a record."""


class Intake:
    """`registry`: tries to reach the schema registry that failed, and when the next one is due (monotonic, s)."""

    def __init__(self, settings: SinkSettings, kafka: SinkConsumer, codec: Codec, counts: Counts) -> None:
        self.registry = Retry()
        self._settings, self._kafka, self._codec, self._counts = settings, kafka, codec, counts
        self._gauges: dict[str, FloodGauge] = {}

    def take(self, record: Record) -> None:
        """Take in a record, unless it is behind or its partition is not held. Raises Flooded, RegistryRefused."""
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
        replayed = state.intent is not None and record.offset <= state.intent.range.last
        if not replayed:
            gauge = self._gauges.setdefault(
                record.topic, FloodGauge(self._settings.dead_letter_run, self._settings.dead_letter_ratio)
            )
            why = gauge.add(entry.verdict is Verdict.DEAD)
            if why:
                at = f"partition {record.partition}, offset {record.offset}"
                raise Flooded(f"{record.topic}: {why}; the last at {at}: {entry.error[1]}")
        state.take(entry, time.monotonic())

    def take_parked(self) -> bool:
        """Ask the registry again for the schemas of records that had to wait; whether there are any."""
        parked = [state for state in self._kafka.states.values() if state.parked is not None]
        for state in parked:
            record, state.parked = state.parked, None
            if record is not None:
                self.take(record)
        if not parked:  # their partitions went to others
            self.registry.worked()
        return bool(parked)

    def _read(self, record: Record, state: PartitionState) -> Entry | None:
        """None: its schema is new and the registry is away. The partition waits; the record is not dead."""
        known = self._codec.decodes_at_once(record.value)
        if known or self.registry.at <= time.monotonic():
            try:
                entry = read(record, state.table, self._codec)
            except RegistryRefused:
                raise
            except RegistryUnavailable as error:
                wait_s = self.registry.failed(time.monotonic(), random.random())
                self._counts.retry(error, self.registry.attempt, wait_s)
            else:
                if not known:
                    self.registry.worked()
                return entry
        self._kafka.park(state, record)
        return None
