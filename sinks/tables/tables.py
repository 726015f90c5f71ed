"""Which topic goes to which table, and how its fields become columns. The migrations create what this declares;
a test compares the two, so neither can drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

from drumline.schemas.model import RecordModel, has_schema, model
from drumline.schemas.topics import Topic

TIME = "DateTime64(9, 'UTC')"
WORDS = "LowCardinality(String)"
NUMBERS = {
    "<i8": "Int64", "<u8": "UInt64", "<i4": "Int32", "<u4": "UInt32", "<u2": "UInt16", "|u1": "UInt8",
    "<f8": "Float64",
}  # fmt: skip
#: Severities as records have them (a test holds them equal to the stream processor's). ClickHouse compares the
#: labels by these numbers: `severity >= 'warning'` holds for both levels that page, insufficient data is below all.
SEVERITIES = {"insufficient_data": -1, "ok": 0, "suspect": 1, "warning": 2, "critical": 3}
AVRO_NUMBERS = {"int": ("Int32", "<i4"), "long": ("Int64", "<i8")}

#: What every row begins with: whom it is about. A record of one process has it in its envelope, a record of a whole job
#: in its columns; what a record does not have, its rows lack. Other shared fields go to the ledger only.
ROW_IDENTITY = ("job", "run", "rank", "host", "gpu_uuid", "process_id")
#: Envelope fields that are notes between producers and stream processors.
NOT_STORED = frozenset({"complete_step", "rank_list", "late_rows"})


class Source(StrEnum):
    """Where a column's values come from."""

    ENVELOPE = "envelope"
    WORD = "envelope text"
    MAP = "envelope map"
    PACKED = "packed"
    DICTIONARY = "dictionary"
    META = "meta"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """`field`: the Avro field; `dtype`: of the values sent. `null`: -1 in the record means NULL. `enum`: of an Enum8,
    its numbers."""

    name: str
    type: str
    source: Source
    field: str = ""
    dtype: str = ""
    null: bool = False
    dictionary: str = ""
    enum: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """`upsert`: rows replace earlier ones with the same key, the view `name` shows the newest; else rows are facts
    and stored exactly once. `times`: Avro fields that become times; `durations`: fields that cannot be negative.
    `clock`: the Avro field that rows are placed by (partition, retention), or "" where the table has none. `enums`:
    columns of type Enum8."""

    topic: Topic
    name: str
    upsert: bool
    columns: tuple[TableColumn, ...]
    times: tuple[str, ...]
    durations: tuple[str, ...]
    clock: str
    enums: tuple[TableColumn, ...]

    @property
    def target(self) -> str:
        """The table that is written to."""
        return f"{self.name}_versions" if self.upsert else self.name


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    upsert: bool = False
    clock: str = ""
    also: tuple[str, ...] = ()  # identity fields that only this table's rows carry
    nullable: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()  # dictionaries too varied for LowCardinality
    enums: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # column -> label -> number


_STEP_NULLS = frozenset({"copy_pageable_ns", "launch_late_ns", "sync_ns", "input_ns"})
_RULES: dict[Topic, _Rule] = {
    Topic.PROCESS: _Rule("processes", upsert=True, also=("local_rank", "world_size")),
    Topic.KERNEL: _Rule("kernels", clock="start_ns"),
    Topic.MEMCPY: _Rule("memcpys", clock="start_ns"),
    Topic.COLLECTIVE: _Rule("collectives", clock="start_ns"),
    Topic.STEP: _Rule("steps", clock="start_ns", nullable=_STEP_NULLS),
    Topic.RANGE: _Rule("ranges", clock="start_ns"),
    Topic.DEVICE: _Rule(
        "device_samples",
        clock="time_ns",
        nullable=frozenset(c.name for c in model(Topic.DEVICE).columns if c.name != "time_ns"),
    ),
    Topic.KERNEL_FREQUENCY: _Rule("kernel_frequency", upsert=True, clock="window_start_ns"),
    Topic.MEMCPY_BANDWIDTH: _Rule("memcpy_bandwidth", upsert=True, clock="window_start_ns"),
    Topic.LATENESS: _Rule("lateness", upsert=True),
    Topic.STRAGGLER: _Rule(
        "stragglers", upsert=True, plain=frozenset({"evidence_json"}), enums={"severity": SEVERITIES}
    ),
}

_ABSOLUTE = ("start_ns", "end_ns", "time_ns")


def _is_time(field: str) -> bool:
    return field.endswith(_ABSOLUTE)


def _envelope_column(name: str, kind: object) -> TableColumn | None:
    """The column of an envelope field, or None if rows do not carry it."""
    if isinstance(kind, dict):
        return TableColumn(name, "Map(String, String)", Source.MAP, name) if kind.get("type") == "map" else None
    if kind == "string":
        return TableColumn(name, WORDS, Source.WORD, name)
    number, dtype = AVRO_NUMBERS[str(kind)]
    if _is_time(name):
        return TableColumn(name.removesuffix("_ns"), TIME, Source.ENVELOPE, name, dtype)
    return TableColumn(name, number, Source.ENVELOPE, name, dtype)


def _enum_type(labels: Mapping[str, int]) -> str:
    return "Enum8(" + ", ".join(f"'{label}' = {number}" for label, number in labels.items()) + ")"


def _order(record: RecordModel, rule: _Rule) -> tuple[str, ...]:
    """The fields that become columns, in the table's order. The process of a record of a whole job is a stream worker:
    no process that a reader knows."""
    identity = [name for name in (*ROW_IDENTITY, *rule.also) if name in record.fields]
    if "rank" not in record.shared:
        identity.remove("process_id")
    return tuple(dict.fromkeys((*identity, *(name for name in record.topic_fields if name not in NOT_STORED))))


@cache
def table(topic: Topic) -> Table:
    """The table of a topic. Every topic of ours has one."""
    rule, record = _RULES[topic], model(topic)
    kinds = {field["name"]: field["type"] for field in record.parsed["fields"]}
    packed = {column.name: column for column in record.columns}
    columns: list[TableColumn] = []
    for name in _order(record, rule):
        if name not in packed:
            made = _envelope_column(name, kinds[name])
            if made is not None:
                columns.append(made)
            continue
        column = packed[name]
        dtype = column.dtype.str
        if column.dictionary:
            kind = "String" if name in rule.plain else WORDS
            columns.append(TableColumn(name, kind, Source.DICTIONARY, name, dtype, dictionary=column.dictionary))
        elif _is_time(name):
            columns.append(TableColumn(name.removesuffix("_ns"), TIME, Source.PACKED, name, dtype))
        elif name in rule.enums:
            labels = rule.enums[name]
            columns.append(
                TableColumn(name, _enum_type(labels), Source.PACKED, name, dtype, enum=tuple(labels.values()))
            )
        else:
            number, null = NUMBERS[dtype], name in rule.nullable
            columns.append(
                TableColumn(name, f"Nullable({number})" if null else number, Source.PACKED, name, dtype, null)
            )
    if rule.upsert:
        columns.append(TableColumn("published", "DateTime64(3, 'UTC')", Source.META, dtype="<i8"))
    columns += [
        TableColumn("_topic_partition", WORDS, Source.META),
        TableColumn("_offset", "UInt64", Source.META, dtype="<u8"),
        TableColumn("_row", "UInt32", Source.META, dtype="<u4"),
    ]
    times = tuple(name for name in record.topic_fields if _is_time(name))
    durations = tuple(c.name for c in record.columns if c.name.endswith("duration_ns"))
    enums = tuple(column for column in columns if column.enum)
    return Table(topic, rule.name, rule.upsert, tuple(columns), times, durations, rule.clock, enums)


TABLES: tuple[Table, ...] = tuple(table(topic) for topic in Topic if has_schema(topic))
