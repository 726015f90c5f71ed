"""Compact the ledger: rows of records that Kafka has removed become runs of consecutive sequences.

A run keeps what duplicates are found by, and what the audit compares: sequence, offset and number of rows of each
record. It has no contents: a batch that comes again counts as a duplicate, whatever it holds.

A slice of a log is inserted as runs, compared with the ledger record by record, and only then deleted there. Where that
was interrupted, the next compaction compares again, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from drumline.infra.clickhouse.client import INSERT_SETTINGS, Client, command, rows
from drumline.infra.clickhouse.migration_lock import MigrationLock
from drumline.schemas.topics import COMPACTED_TOPICS, Topic
from drumline.sinks.audit.kafka_side import PartitionFacts
from drumline.sinks.ranges.stored_tail import kafka_topic_id
from drumline.sinks.tables.tables import table

#: Offsets that are compacted together: their runs fit into memory, and offsets within them into 32 bits.
SLICE = 1_000_000
#: Ledger rows of any other disposition stay: they are few, and people look at them.
_ROWS = "topic = {topic:String} AND disposition IN ('stored', 'empty') AND process_id != ''"
_OFFSETS = "topic_id = {id:String} AND partition = {p:UInt32} AND offset BETWEEN {first:UInt64} AND {last:UInt64}"
_RUNS = (
    "topic = {topic:String} AND topic_id = {id:String} AND partition = {p:UInt32} AND slice_first = {first:UInt64} "
    "AND slice_last = {last:UInt64}"
)
_RECORD = "cityHash64(offset, sequence, rows, disposition, job, run, rank, host, process_id, key)"
_UNIT = "job, run, rank, host, process_id, key, disposition, toStartOfHour(published)"


class NotTheSame(RuntimeError):
    """Fatal: a slice's runs have other records than the ledger. Nothing of it is deleted; `drumline audit` tells."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Names offsets first..last of one log, compacted together."""

    topic: str
    topic_id: str
    partition: int
    first: int
    last: int

    @property
    def parameters(self) -> dict[str, str | int]:
        """Return the parameters of statements about it."""
        return {"topic": self.topic, "id": self.topic_id, "p": self.partition, "first": self.first, "last": self.last}


@dataclass(frozen=True, slots=True)
class Compacted:
    """Counts the ledger rows of a topic that became runs, and these."""

    topic: str
    records: int
    runs: int


def can_compact(topic: str) -> bool:
    """Return whether the topic is one of producers whose rows are never replaced, and whose records Kafka expires."""
    return topic not in COMPACTED_TOPICS and not table(Topic(topic)).upsert


class LedgerCompaction:
    """Compacts ledger rows of records that Kafka received before `before_ms` and does not have any more.

    Every method blocks. Retry later: TransientError, MigrationConflict (another process compacts or migrates). Fatal:
    PermanentError, NotTheSame.
    """

    def __init__(self, client: Client, database: str, before_ms: int) -> None:
        self._client, self._before_ms = client, before_ms
        self._database, self._ledger, self._runs = database, f"{database}.ledger", f"{database}.ledger_runs"

    def run(self, facts: Iterable[PartitionFacts]) -> Iterator[Compacted]:
        """Compact topic by topic. `facts`: of Kafka's partitions."""
        places: dict[str, list[PartitionFacts]] = {}
        for place in facts:
            if can_compact(place.topic):
                places.setdefault(place.topic, []).append(place)
        for topic, of_topic in places.items():
            with MigrationLock(self._client, self._database):
                parts = self.slices(topic, of_topic)
                counts = [self._insert(part) for part in parts]
                self._delete(topic, parts)
            if parts:
                yield Compacted(topic, sum(records for records, _ in counts), sum(runs for _, runs in counts))

    def slices(self, topic: str, facts: Iterable[PartitionFacts]) -> list[Slice]:
        """Return what can be compacted of a topic. Of each log the last record stays: it tells where the log ends."""
        deleted = {
            (kafka_topic_id(place.topic_id), place.partition): min(place.low, max(place.commit_offset, 0))
            for place in facts
        }
        parts = []
        for row in rows(
            self._client,
            "SELECT topic_id, partition, min(offset) AS a, max(offset) AS b FROM ("
            "SELECT *, max(offset) OVER (PARTITION BY topic_id, partition) AS newest "
            f"FROM {self._ledger} WHERE topic = {{topic:String}}) "
            f"WHERE {_ROWS} AND published < fromUnixTimestamp64Milli({{before:Int64}}) AND offset < newest "
            "GROUP BY topic_id, partition ORDER BY topic_id, partition",
            {"topic": topic, "before": self._before_ms},
        ):
            name, number = str(row["topic_id"]), int(row["partition"])
            first, last = int(row["a"]), min(int(row["b"]), deleted.get((kafka_topic_id(name), number), 0) - 1)
            begun = self._begun(topic, name, number, first)
            parts += begun
            first = begun[-1].last + 1 if begun else first
            parts += [Slice(topic, name, number, at, min(at + SLICE - 1, last)) for at in range(first, last + 1, SLICE)]
        return parts

    def _begun(self, topic: str, topic_id: str, partition: int, first: int) -> list[Slice]:
        """Return the slices from offset `first` on that have runs: their rows were not deleted."""
        answer = rows(
            self._client,
            f"SELECT DISTINCT slice_first, slice_last FROM {self._runs} WHERE topic = {{topic:String}} "
            "AND topic_id = {id:String} AND partition = {p:UInt32} AND slice_last >= {first:UInt64} "
            "ORDER BY slice_first",
            {"topic": topic, "id": topic_id, "p": partition, "first": first},
        )
        return [Slice(topic, topic_id, partition, int(row["slice_first"]), int(row["slice_last"])) for row in answer]

    def _insert(self, part: Slice) -> tuple[int, int]:
        """Insert the runs of a slice unless they are there; return the numbers of its ledger rows and runs."""
        compared = self._compare(part)
        if compared["only_ledger"] and compared["runs"]:  # the insert was interrupted
            if compared["only_runs"]:
                raise NotTheSame(f"{part}: {compared}")
            self._alter(f"{self._runs} DELETE WHERE {_RUNS}", part.parameters)
        if compared["only_ledger"]:
            command(self._client, self._statement(), part.parameters, settings={
                **INSERT_SETTINGS, "insert_deduplicate": 0, "max_threads": 1, "min_insert_block_size_bytes": 0,
            })  # fmt: skip
            compared = self._compare(part)
        if compared["only_ledger"] or compared["doubled"]:
            raise NotTheSame(f"{part}: {compared}")
        [runs] = rows(self._client, f"SELECT count() AS n FROM {self._runs} WHERE {_RUNS}", part.parameters)
        return compared["ledger"], int(runs["n"])

    def _statement(self) -> str:
        return (
            f"INSERT INTO {self._runs} (topic, topic_id, partition, disposition, job, run, rank, host, process_id, "
            "key, first_sequence, records, first_offset, offsets, rows, dropped_before, bytes, published, time_min, "
            "time_max, slice_first, slice_last) WITH arraySort(groupArray((l.sequence, l.offset, l.rows))) AS sorted "
            "SELECT topic, topic_id, partition, disposition, job, run, rank, host, toString(process_id), key, "
            "sorted[1].1, count(), min(l.offset) AS low, arrayMap(r -> toUInt32(r.2 - low), sorted), "
            "arrayMap(r -> r.3, sorted), sum(l.dropped_before), sum(l.bytes), min(l.published), min(l.time_min), "
            "max(l.time_max), {first:UInt64}, {last:UInt64} "
            f"FROM (SELECT *, toStartOfHour(published) AS hour, sequence - row_number() OVER (PARTITION BY {_UNIT} "
            f"ORDER BY sequence, offset) AS island FROM {self._ledger} WHERE {_ROWS} AND {_OFFSETS}) AS l "
            "GROUP BY topic, topic_id, partition, disposition, job, run, rank, host, process_id, key, hour, island"
        )

    def _compare(self, part: Slice) -> dict[str, int]:
        """Return numbers of records of a slice: in ledger and runs, in one of them only, in runs more than once."""
        [row] = rows(
            self._client,
            "SELECT sum(l) AS ledger, sum(r) AS runs, countIf(r = 0) AS only_ledger, countIf(l = 0) AS only_runs, "
            "countIf(r > 1) AS doubled FROM (SELECT h, sum(a) AS l, sum(b) AS r FROM ("
            f"SELECT {_RECORD} AS h, 1 AS a, 0 AS b FROM {self._ledger} WHERE {_ROWS} AND {_OFFSETS} UNION ALL "
            f"SELECT {_RECORD}, 0, 1 FROM (SELECT disposition, job, run, rank, host, process_id, key, "
            "toUInt64(first_offset + record.1) AS offset, toUInt32(record.2) AS rows, "
            f"toInt64(first_sequence + record.3 - 1) AS sequence FROM {self._runs} AS u "
            f"ARRAY JOIN arrayZip(u.offsets, u.rows, arrayEnumerate(u.offsets)) AS record WHERE {_RUNS})"
            ") GROUP BY h)",
            part.parameters,
        )
        return {name: int(value) for name, value in row.items()}

    def _delete(self, topic: str, parts: list[Slice]) -> None:
        """Delete the rows of slices, all at once: a deletion rewrites each part of the table that has one."""
        if not parts:
            return
        values: dict[str, Any] = {"topic": topic}
        places = []
        for n, part in enumerate(parts):
            values |= {f"i{n}": part.topic_id, f"p{n}": part.partition, f"a{n}": part.first, f"b{n}": part.last}
            offsets = f"offset BETWEEN {{a{n}:UInt64}} AND {{b{n}:UInt64}}"
            places.append(f"(topic_id = {{i{n}:String}} AND partition = {{p{n}:UInt32}} AND {offsets})")
        self._alter(f"{self._ledger} DELETE WHERE {_ROWS} AND ({' OR '.join(places)})", values)

    def _alter(self, change: str, parameters: dict[str, Any]) -> None:
        command(self._client, f"ALTER TABLE {change}", parameters, settings={"mutations_sync": 2})
