"""Read and write the ledger: one row per Kafka record, or for each of its parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import structlog

from drumline.infra.clickhouse.client import Client, failure, insert_once, rows
from drumline.sinks.inserts.stored_check import StoredRows, find_stored
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, key_texts
from drumline.sinks.ranges.duplicates import History, Place, StoredBatches
from drumline.sinks.ranges.offset_ranges import Intervals, OffsetRange
from drumline.sinks.ranges.stored_tail import StoredTail, kafka_topic_id, losses
from drumline.sinks.tables import native_format as native
from drumline.sinks.tables.native_format import Texts
from drumline.sinks.tables.tables import TEXT, TIME

log = structlog.get_logger()
_MILLI = "DateTime64(3, 'UTC')"
_NONE: Mapping[str, Any] = {}


Entries = Sequence[RangeEntry]
Envelopes = Sequence[Mapping[str, Any]]


def _envelope(field: str, default: object) -> Callable[[Entries, Envelopes], list[Any]]:
    return lambda _, envelopes: [envelope.get(field, default) for envelope in envelopes]


def _late_rows(entries: Entries, envelopes: Envelopes) -> list[Any]:
    """Return the late rows so far; readers take the largest number, and a halted worker's does not count."""
    late = _envelope("late_rows", 0)(entries, envelopes)
    return [0 if e.disposition is Disposition.FENCED else number for e, number in zip(entries, late, strict=True)]


#: column, type, numpy dtype ("" = text), values of entries and their envelopes. The migrations create the same columns.
COLUMNS: tuple[tuple[str, str, str, Callable[[Entries, Envelopes], list[Any]]], ...] = (
    ("topic", TEXT, "", lambda entries, _: [e.record.topic for e in entries]),
    ("partition", "UInt32", "<u4", lambda entries, _: [e.record.partition for e in entries]),
    ("offset", "UInt64", "<u8", lambda entries, _: [e.record.offset for e in entries]),
    ("part", "UInt8", "<u1", lambda entries, _: [e.record.part for e in entries]),
    ("published", _MILLI, "<i8", lambda entries, _: [e.record.published_ms for e in entries]),
    ("disposition", TEXT, "", lambda entries, _: [e.disposition.value for e in entries]),
    ("error", TEXT, "", lambda entries, _: [e.error[0] for e in entries]),
    ("job", TEXT, "", _envelope("job", "")),
    ("run", TEXT, "", _envelope("run", "")),
    ("rank", "Int32", "<i4", _envelope("rank", -1)),
    ("host", TEXT, "", _envelope("host", "")),
    ("process_id", TEXT, "", _envelope("process_id", "")),
    ("key", "String", "", lambda entries, _: key_texts(e.record for e in entries)),
    ("sequence", "Int64", "<i8", _envelope("sequence", 0)),
    ("dropped_before", "Int64", "<i8", _envelope("dropped_before", 0)),
    (
        "rows",
        "UInt32",
        "<u4",
        lambda entries, of: [e.rows or o.get("rows", 0) for e, o in zip(entries, of, strict=True)],
    ),
    ("late_rows", "Int64", "<i8", _late_rows),
    ("time_min", TIME, "<i8", lambda entries, _: [e.time_min for e in entries]),
    ("time_max", TIME, "<i8", lambda entries, _: [e.time_max for e in entries]),
    ("sent_ns", "Int64", "<i8", _envelope("sent_ns", 0)),
    ("bytes", "UInt32", "<u4", lambda entries, _: [e.size for e in entries]),
    ("content", "UInt64", "<u8", lambda entries, _: [e.content for e in entries]),
    ("source", TEXT, "", lambda entries, _: [e.source for e in entries]),
    ("epoch", "Int64", "<i8", lambda entries, _: [e.epoch or 0 for e in entries]),
)


#: Bytes of one query's parameter; ClickHouse takes 128 KiB and answers a longer one with an error, at each attempt.
PARAMETER_BYTES = 64 << 10
#: A record is no duplicate of itself: leaves out the partition's own offsets from a range on.
_BEFORE = "NOT (topic_id = {id:String} AND partition = {p:UInt32} AND offset >= {first:UInt64})"
_RANGE = (
    "topic = {topic:String} AND topic_id = {id:String} AND partition = {p:UInt32} "
    "AND offset BETWEEN {first:UInt64} AND {last:UInt64}"
)


def _place(topic: str, offsets: OffsetRange) -> dict[str, str | int]:
    return {
        "topic": topic,
        "id": offsets.topic_id,
        "p": offsets.partition,
        "first": offsets.first,
        "last": offsets.last,
    }


def ledger_block(offsets: OffsetRange, entries: Sequence[RangeEntry]) -> bytes:
    """Return the ledger rows of one range as one Native block."""
    count = len(entries)
    zeros = np.zeros(count, dtype=np.uint8)
    columns = [("topic_id", TEXT, native.low_cardinality([offsets.topic_id], zeros))]
    envelopes: Envelopes = [_NONE if entry.batch is None else entry.batch.envelope for entry in entries]
    for name, kind, dtype, of in COLUMNS:
        values = of(entries, envelopes)
        if dtype:
            data = np.array(values, dtype=dtype).tobytes()
        elif kind == TEXT:
            texts = Texts()
            indices = np.array(texts.indices(values))
            data = native.low_cardinality(texts.distinct, indices)
        else:
            data = native.strings(values)
        columns.append((name, kind, data))
    for name, bound in (("range_first", offsets.first), ("range_last", offsets.last)):
        columns.append((name, "UInt64", np.full(count, bound, dtype="<u8").tobytes()))
    return native.block(count, columns)


class Ledger:
    """Queries the ledger table. Every method blocks. Retry later: TransientError. Fatal: PermanentError."""

    def __init__(self, client: Client, database: str) -> None:
        self._client, self._table = client, f"{database}.ledger"

    def tails(self, places: Collection[tuple[str, str, int]]) -> dict[tuple[str, str, int], StoredTail]:
        """Return (topic, Kafka's topic id, partition) -> the last record in the ledger, of its newest log.

        Places without one are left out. Ranges of a partition are written in order and whole, so everything of that log
        before that record is stored.
        """
        answer = rows(
            self._client,
            "SELECT topic, topic_id, partition, offset, toUnixTimestamp64Milli(published) AS ms "
            f"FROM {self._table} WHERE (topic, topic_id, partition, offset) IN ("
            f"SELECT topic, topic_id, partition, max(offset) FROM {self._table} "
            "WHERE topic IN {topics:Array(String)} AND splitByChar('~', topic_id)[1] IN {ids:Array(String)} "
            "GROUP BY topic, topic_id, partition)",
            {"topics": sorted({topic for topic, _, _ in places}), "ids": sorted({number for _, number, _ in places})},
        )
        tails: dict[tuple[str, str, int], StoredTail] = {}
        for row in sorted(answer, key=lambda row: losses(row["topic_id"])):
            place = str(row["topic"]), kafka_topic_id(row["topic_id"]), int(row["partition"])
            tails[place] = StoredTail(str(row["topic_id"]), int(row["offset"]), int(row["ms"]))
        return {place: tails[place] for place in places if place in tails}

    def first_from(self, topic: str, topic_id: str, partition: int, offset: int) -> StoredTail | None:
        """Return the first record of this log in the ledger from `offset` on."""
        answer = rows(
            self._client,
            f"SELECT offset, toUnixTimestamp64Milli(published) AS ms FROM {self._table} WHERE topic = {{topic:String}} "
            "AND topic_id = {id:String} AND partition = {p:UInt32} AND offset >= {first:UInt64} "
            "ORDER BY offset LIMIT 1",
            {"topic": topic, "id": topic_id, "p": partition, "first": offset},
        )
        return StoredTail(topic_id, int(answer[0]["offset"]), int(answer[0]["ms"])) if answer else None

    def epochs(self, places: Collection[tuple[str, str, int]]) -> dict[tuple[str, str, int], dict[str, int]]:
        """Return (topic, topic id, partition) -> source -> highest epoch of the results stored so far."""
        epochs: dict[tuple[str, str, int], dict[str, int]] = {place: {} for place in places}
        if not places:
            return epochs
        for row in rows(
            self._client,
            f"SELECT topic, topic_id, partition, source, max(epoch) AS highest FROM {self._table} "
            "WHERE topic IN {topics:Array(String)} AND topic_id IN {ids:Array(String)} AND source != '' "
            "GROUP BY topic, topic_id, partition, source",
            {"topics": sorted({topic for topic, _, _ in places}), "ids": sorted({number for _, number, _ in places})},
        ):
            place = (str(row["topic"]), str(row["topic_id"]), int(row["partition"]))
            if place in epochs:
                epochs[place][str(row["source"])] = int(row["highest"])
        return epochs

    def find_range(self, topic: str, offsets: OffsetRange) -> StoredRows:
        """Return the ledger rows of a range: all records or none, since a range's ledger rows are one part."""
        return find_stored(self._client, self._table, _RANGE, _place(topic, offsets))

    def insert_again(self, topic: str, offsets: OffsetRange) -> None:
        """Insert the ledger rows of a stored range once more, under their token.

        The table drops them, and rollups filled from it (`records_per_minute`) get them if the server died in between.
        Does nothing if the rows are stored for so long that the token may be forgotten (stored_check.py).

        Raises:
            ClickHouseFailed: the rows cannot be read or inserted.
        """
        stored = self.find_range(topic, offsets)
        if not stored.rows:  # compaction left nothing of it
            return
        if stored.done(stored.rows):
            log.info("range was inserted long ago", table="ledger", topic=topic, token=offsets.token)
            return
        names = ", ".join(name for name, _, _, _ in COLUMNS)
        try:
            block = self._client.raw_query(
                f"SELECT topic_id, {names}, range_first, range_last FROM {self._table} WHERE {_RANGE} "
                "ORDER BY offset, part",
                parameters=_place(topic, offsets),
                fmt="Native",
            )
        except Exception as error:
            raise failure(error, "ledger") from None
        insert_once(self._client, self._table, block, offsets.token)

    def history(self, topic: str, wanted: set[tuple[str, str]], before: OffsetRange) -> History:
        """Return the sequences stored so far of each wanted (process, key), from any partition.

        Leaves out offsets from `before.first` on of the partition itself: a record is no duplicate of itself.
        """
        history: History = {identity: Intervals() for identity in wanted}
        for processes in _chunks(sorted({(process,) for process, _ in wanted})):
            self._add_history(history, topic, [process for (process,) in processes], before)
        return history

    def _add_history(self, history: History, topic: str, processes: Sequence[str], before: OffsetRange) -> None:
        answer = rows(
            self._client,
            "SELECT process_id, key, min(sequence) AS a, max(sequence) AS b FROM ("
            "SELECT process_id, key, sequence, "
            "sequence - row_number() OVER (PARTITION BY process_id, key ORDER BY sequence) AS island FROM ("
            f"SELECT DISTINCT process_id, key, sequence FROM {self._table} WHERE topic = {{topic:String}} "
            "AND process_id IN {processes:Array(String)} AND disposition IN {dispositions:Array(String)} "
            f"AND {_BEFORE})"
            ") GROUP BY process_id, key, island ORDER BY a",
            {
                "topic": topic,
                "processes": processes,
                "dispositions": [Disposition.STORED.value, Disposition.EMPTY.value],
                "id": before.topic_id,
                "p": before.partition,
                "first": before.first,
            },
        )
        for row in answer:
            identity = (str(row["process_id"]), str(row["key"]))
            if identity in history:
                history[identity].add_run(int(row["a"]), int(row["b"]))

    def contents(self, topic: str, places: Collection[Place], before: OffsetRange) -> dict[Place, StoredBatches]:
        """Return the batches stored in each place, as `history` does."""
        contents = {place: StoredBatches() for place in places}
        for chunk in _chunks(sorted(places)):
            answer = rows(
                self._client,
                "SELECT process_id, key, sequence, disposition = {stored:String} AS has_rows, content, job, run, "
                f"sent_ns, toUnixTimestamp64Milli(max(published)) AS ms FROM {self._table} "
                "WHERE topic = {topic:String} "
                "AND process_id IN {processes:Array(String)} AND sequence IN {sequences:Array(Int64)} "
                f"AND disposition IN ({{stored:String}}, {{empty:String}}) AND {_BEFORE} GROUP BY ALL",
                {
                    "topic": topic,
                    "processes": sorted({process for process, _, _ in chunk}),
                    "sequences": sorted({sequence for _, _, sequence in chunk}),
                    "stored": Disposition.STORED.value,
                    "empty": Disposition.EMPTY.value,
                    "id": before.topic_id,
                    "p": before.partition,
                    "first": before.first,
                },
            )
            for row in answer:
                place = (str(row["process_id"]), str(row["key"]), int(row["sequence"]))
                if place in contents:
                    content = int(row["content"]) if row["has_rows"] else None
                    contents[place].add(content, str(row["job"]), str(row["run"]), int(row["sent_ns"]))
                    contents[place].published_ms = max(contents[place].published_ms, int(row["ms"]))
        return contents


def _chunks(places: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the tuples, whose first item is a process id, in parts that fit into one parameter."""
    chunk: list[Any] = []
    size = 0
    for place in places:
        cost = 2 * len(place[0].encode()) + 24  # escaped and quoted; or a sequence
        if chunk and size + cost > PARAMETER_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(place)
        size += cost
    if chunk:
        yield chunk
