"""Resolve ranges that ClickHouse rejects: defer them, split them, or make a dead letter of a single record.

The range's intent is committed, so a split is a new intent for its first records; it replaces the old one. Nothing of
the range may be stored then: rows under the old token would be stored again under the new ones.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing

import structlog

from drumline.infra.clickhouse.client import ClickHouseFailed, Client
from drumline.infra.config.settings import Settings
from drumline.infra.telemetry import metrics
from drumline.sinks.inserts.insert import find_rows
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.dead_letters import REJECTED
from drumline.sinks.kafka.single_record import read_again
from drumline.sinks.ranges.dead_letter_limit import FLOOD_RUN
from drumline.sinks.ranges.disposition import Disposition
from drumline.sinks.ranges.failed_insert import Action, decide, gives_up_rollups
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.pending_range import PendingRange, RangeStage
from drumline.sinks.telemetry import SinkCounts, code_text

log = structlog.get_logger()


class RejectedRanges:
    """Resolves rejected ranges, so that they hold up no other partition.

    Owned by `CommitCycle`; used by the sink's thread only. `client`: returns the connection for queries.
    """

    def __init__(
        self, settings: Settings, kafka: SinkConsumer, client: Callable[[], Client], counts: SinkCounts
    ) -> None:
        self._database = settings.clickhouse.database
        self._kafka, self._client, self._counts = kafka, client, counts

    def resolve(self, state: PartitionState, pending: PendingRange, error: ClickHouseFailed) -> PendingRange | None:
        """Return the range to continue with, or None if it is deferred: kept in `state` until its next attempt.

        After `FLOOD_RUN` dead letters in a row a table is at fault, not a record: the range is deferred until
        ClickHouse takes it. Retry later: TransientError, TransientKafkaError; the range is then as before. Fatal:
        PermanentError.
        """
        now, rejection = time.monotonic(), pending.rejection
        if rejection is None or pending.stage >= RangeStage.ROWS_INSERTED:  # of the ledger: its rows stay as they are
            self._defer(state, pending, error)
            return None
        in_flight = pending.replay or pending.unanswered
        if decide(rejection, pending.records, in_flight=in_flight, now=now) is Action.RETRY:
            self._defer(state, pending, error)
            return None
        stored = 0 if pending.table.upsert else find_rows(self._client(), self._database, pending).rows
        name = {"topic": pending.table.topic.value, "token": pending.range.token, "code": rejection.code}
        if stored and stored < sum(entry.rows for entry in pending.stored):
            log.error("a part of a rejected range is stored, so it cannot be split", rows=stored, **name)
            self._defer(state, pending, error)
            return None
        if stored and not gives_up_rollups(rejection, now):
            log.warning("all rows are stored, but a rollup may lack them; repeating the insert", **name)
            self._defer(state, pending, error)
            return None
        if stored:
            log.error("all rows are stored, but ClickHouse failed behind them; a rollup may lack them", **name)
            metrics.SINK_INCOMPLETE.labels(pending.table.topic.value).inc()
            pending.stage = RangeStage.ROWS_INSERTED
            return pending
        if state.rejected >= FLOOD_RUN and pending.records == 1:
            self._defer(state, pending, error)
            state.reason += f", {state.rejected} records in a row, so no more of them become dead letters"
            return None
        metrics.SINK_SPLITS.labels(pending.table.topic.value).inc()
        if pending.records > 1:
            log.warning("range is rejected; splitting it", records=pending.records, **name)
            return state.split(pending)
        rejected = pending.stored
        with closing(self._kafka.reader()) as reader:  # the first of its parts brings the whole record
            has_record = read_again(reader, rejected[0].record)
        missing = "" if has_record else "; Kafka has removed the record, so its value is missing"
        state.rejected += 1
        for entry in rejected:
            entry.disposition = Disposition.DEAD_LETTER
            entry.error = (REJECTED, f"ClickHouse rejects its rows with {code_text(error)}{missing}")
        log.error("record is rejected; it becomes a dead letter", **name)
        pending.stage, pending.rejection = RangeStage.CUT, None
        return pending

    def _defer(self, state: PartitionState, pending: PendingRange, error: ClickHouseFailed) -> None:
        """Keep the range until its next attempt, and stop fetching its partition."""
        wait_s = state.retry.failed(time.monotonic(), random.random())
        self._counts.retry(error, state.retry.attempt, wait_s)
        state.deferred, state.reason = pending, code_text(error)
        self._kafka.pause_partition(state)
