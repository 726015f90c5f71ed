"""Copy to a server what another one has stored and Kafka has no more: rows and ledger, exactly once.

A sink fills an emptied server with what Kafka still has. What is older is copied in ranges of offsets that the target's
ledger lacks, as the sink would store them: rows as one insert under the range's token, then the ledger under the same.
So a copy that was interrupted goes on where its ledger ends. Only offsets are copied that no sink will read any more.

Rollups count the copied rows. Rows that retention is about to remove, or has removed from the source, are not copied:
their rollups are, day by day and run by run.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drumline.infra.clickhouse.client import Client, command, failure, insert_once, rows
from drumline.infra.config.clickhouse_settings import RetentionSettings
from drumline.schemas.topics import Topic
from drumline.sinks.audit.kafka_side import PartitionFacts
from drumline.sinks.audit.rollups import ROLLUPS
from drumline.sinks.inserts.ledger import COLUMNS, Ledger
from drumline.sinks.inserts.stored_check import find_stored
from drumline.sinks.ranges.offset_ranges import Intervals, OffsetRange
from drumline.sinks.ranges.stored_tail import kafka_topic_id
from drumline.sinks.tables.tables import SinkTable, table

#: Rows and records of one copied range: one block of an insert, and little memory.
RANGE_ROWS, RANGE_RECORDS = 300_000, 100_000
#: Tables that no topic fills, with rows that replace each other, so that a repetition changes nothing.
OTHER_TABLES = ("kernel_names_versions", "alert_limits_versions", "offender_notices_versions")
#: Retention removes rows of an hour before this margin is over; s.
MARGIN_S = 2 * 3_600
#: Runs whose rollups of a day one insert copies: their names are a parameter, of at most 128 KiB.
INSERT_RUNS = 50
_PLACE = "topic = {topic:String} AND topic_id = {id:String} AND partition = {p:UInt32}"
_OFFSETS = "_topic_partition = {place:String} AND _offset BETWEEN {first:UInt64} AND {last:UInt64}"


@dataclass(slots=True)
class Copied:
    """Counts what was copied."""

    ranges: int = 0
    records: int = 0
    rows: int = 0
    rollup_days: int = 0


class Backfill:
    """Copies from `source` to `target`; both are clients of the writer. For one thread; calls block.

    `kafka`: the partitions as Kafka has them. `now_s`: for retention. Raises TransientError (run it again) or
    PermanentError.
    """

    def __init__(
        self,
        source: Client,
        target: Client,
        database: str,
        kafka: Sequence[PartitionFacts],
        retention: RetentionSettings,
        now_s: float,
    ) -> None:
        self._source, self._target, self._database = source, target, database
        self._lows = {(p.topic, kafka_topic_id(p.topic_id), p.partition): p.low for p in kafka}
        self._retention, self._now_s = retention, now_s
        self.copied = Copied()

    def missing(self) -> Iterator[tuple[Topic, OffsetRange]]:
        """Yield the ranges to copy, in order: those that the target lacks and Kafka has no more."""
        logs = "SELECT DISTINCT topic, topic_id, partition FROM {name}.ledger ORDER BY topic, topic_id, partition"
        for row in rows(self._source, logs.format(name=self._database)):
            topic, topic_id, partition = str(row["topic"]), str(row["topic_id"]), int(row["partition"])
            low = self._lows.get((topic, kafka_topic_id(topic_id), partition))  # None: of a topic that is gone
            have = self._islands(topic, topic_id, partition)
            yield from ((Topic(topic), place) for place in self._lacking(topic, topic_id, partition, low, have))

    def _islands(self, topic: str, topic_id: str, partition: int) -> Intervals:
        """Return the offsets of a log that the target's ledger has."""
        sql = (
            "SELECT min(offset) AS a, max(offset) AS b FROM (SELECT offset, toInt64(offset) - row_number() OVER "
            f"(ORDER BY offset) AS island FROM (SELECT DISTINCT offset FROM {self._database}.ledger WHERE {_PLACE})) "
            "GROUP BY island ORDER BY a"
        )
        have = Intervals()
        for row in rows(self._target, sql, {"topic": topic, "id": topic_id, "p": partition}):
            have.add_run(int(row["a"]), int(row["b"]))
        return have

    def _lacking(
        self, topic: str, topic_id: str, partition: int, low: int | None, have: Intervals
    ) -> Iterator[OffsetRange]:
        """Yield runs of records that the target lacks, as long as one insert takes."""
        run: list[int] = []
        count = 0
        for offset, size in self._records(topic, topic_id, partition, low):
            is_stored = offset in have
            if run and (is_stored or count + size > RANGE_ROWS or len(run) >= RANGE_RECORDS):
                yield OffsetRange(topic_id, partition, run[0], run[-1])
                run, count = [], 0
            if not is_stored:
                run.append(offset)
                count += size
        if run:
            yield OffsetRange(topic_id, partition, run[0], run[-1])

    def _records(self, topic: str, topic_id: str, partition: int, low: int | None) -> Iterator[tuple[int, int]]:
        """Yield offset and rows of the source's records of a log, below `low`; asks for RANGE_RECORDS at a time."""
        below = "" if low is None else "AND offset < {low:UInt64}"
        sql = (
            f"SELECT offset, sum(rows) AS size FROM {self._database}.ledger WHERE {_PLACE} {below} "
            f"AND offset >= {{next:UInt64}} GROUP BY offset ORDER BY offset LIMIT {RANGE_RECORDS}"
        )
        values = {"topic": topic, "id": topic_id, "p": partition, "low": low or 0, "next": 0}
        while page := rows(self._source, sql, values):
            yield from ((int(row["offset"]), int(row["size"])) for row in page)
            values["next"] = int(page[-1]["offset"]) + 1

    def copy(self, topic: Topic, offsets: OffsetRange) -> None:
        """Copy the rows of a range, then its ledger rows; what is there already is not doubled."""
        stored = table(topic)
        self.copied.rows += self._copy_rows(stored, offsets)
        names = ", ".join(name for name, _, _, _ in COLUMNS)
        block = self._read(
            f"SELECT topic_id, {names}, {{first:UInt64}} AS range_first, {{last:UInt64}} AS range_last "
            f"FROM {self._database}.ledger WHERE {_PLACE} AND offset BETWEEN {{first:UInt64}} AND {{last:UInt64}} "
            "ORDER BY offset, part",
            {"topic": topic.value, "id": offsets.topic_id, "p": offsets.partition,
             "first": offsets.first, "last": offsets.last},
        )  # fmt: skip
        insert_once(self._target, f"{self._database}.ledger", block, offsets.token)
        self.copied.records += Ledger(self._target, self._database).find_range(topic.value, offsets).rows
        self.copied.ranges += 1

    def _copy_rows(self, stored: SinkTable, offsets: OffsetRange) -> int:
        """Insert the rows of a range that the source has and retention keeps; return their number."""
        name = f"{self._database}.{stored.target}"
        values = {"place": offsets.topic_partition, "first": offsets.first, "last": offsets.last}
        kept = f" AND published >= toDateTime({self.kept_since(stored.name)}, 'UTC')"
        [counted] = rows(self._source, f"SELECT count() AS n FROM {name} WHERE {_OFFSETS}{kept}", values)
        count = int(counted["n"])
        if not count or (not stored.upsert and find_stored(self._target, name, _OFFSETS, values).done(count)):
            return 0
        columns = [column.name for column in stored.columns]
        block = self._read(
            f"SELECT {', '.join(columns)} FROM {name} WHERE {_OFFSETS}{kept} ORDER BY _offset, _row", values
        )
        insert_once(self._target, name, block, offsets.token, column_names=columns)
        return count

    def copy_rollups(self) -> None:
        """Copy the days of rollups whose rows are not copied, of each run of which the target counts another number.

        It counts the rows that came late and are copied, so its own rollup of that day is replaced.
        """
        for rollup in ROLLUPS:
            if rollup.topic is None:
                continue  # filled from the ledger
            name, day = f"{self._database}.{rollup.name}", f"toDate({rollup.clock})"
            before = f"{rollup.clock} < toDateTime({self.kept_since(table(rollup.topic).name)}, 'UTC')"
            sql = (
                f"SELECT toString({day}) AS day, job, run, sum(r.{rollup.amount}) AS n FROM {name} AS r "
                f"WHERE {before} GROUP BY ALL ORDER BY ALL"
            )
            stored = {tuple(row.values()) for row in rows(self._target, sql)}
            runs: dict[str, list[tuple[str, str]]] = {}
            for row in rows(self._source, sql):
                if tuple(row.values()) not in stored:
                    runs.setdefault(str(row["day"]), []).append((str(row["job"]), str(row["run"])))
            for date, of_day in runs.items():
                for first in range(0, len(of_day), INSERT_RUNS):
                    where = f"{before} AND {day} = {{day:Date}} AND (job, run) IN {{runs:Array(Tuple(String, String))}}"
                    chosen = {"day": date, "runs": of_day[first : first + INSERT_RUNS]}
                    block = self._read(f"SELECT * FROM {name} WHERE {where}", chosen)
                    command(
                        self._target, f"ALTER TABLE {name} DELETE WHERE {where}", chosen, settings={"mutations_sync": 2}
                    )
                    # A token of its own: under the one of an insert that was deleted since, nothing would be inserted.
                    insert_once(self._target, name, block, f"backfill:{rollup.name}:{date}:{uuid.uuid4()}")
                self.copied.rollup_days += 1

    def copy_other_tables(self) -> None:
        """Copy names of kernels, limits and notices."""
        for name in OTHER_TABLES:
            block = self._read(f"SELECT * FROM {self._database}.{name} ORDER BY ALL", {})
            if block:
                token = f"backfill:{hashlib.sha256(block).hexdigest()}"
                insert_once(self._target, f"{self._database}.{name}", block, token)

    def kept_since(self, name: str) -> int:
        """Return the time before which rows of a table are not copied, s since the epoch: the start of an hour."""
        days = self._retention.of(name)
        return int(self._now_s - days * 86_400) // 3_600 * 3_600 + MARGIN_S if days else 0

    def _read(self, sql: str, values: Mapping[str, Any]) -> bytes:
        try:
            return self._source.raw_query(sql, parameters=dict(values), fmt="Native")
        except Exception as error:
            raise failure(error, "the source") from None


def run(backfill: Backfill) -> Copied:
    """Copy everything; a repetition copies what is left."""
    backfill.copy_other_tables()
    for topic, offsets in backfill.missing():
        backfill.copy(topic, offsets)
    backfill.copy_rollups()
    return backfill.copied
