"""Declare the table of each topic, and how fields become columns.

The migrations create the same tables; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property

from drumline.schemas.columns import Column
from drumline.schemas.model import RecordModel, has_schema, model
from drumline.schemas.topics import TABLE_NAMES, Topic

TIME = "DateTime64(9, 'UTC')"
TEXT = "LowCardinality(String)"
NUMBERS = {
    "<i8": "Int64", "<u8": "UInt64", "<i4": "Int32", "<u4": "UInt32", "<u2": "UInt16", "|u1": "UInt8",
    "<f8": "Float64",
}  # fmt: skip
#: Severities as records have them (a test holds them equal to the stream processor's). ClickHouse compares the
#: labels by these numbers: `severity >= 'warning'` holds for both levels that page, insufficient data is below all.
SEVERITIES = {"insufficient_data": -1, "ok": 0, "suspect": 1, "warning": 2, "critical": 3}
AVRO_NUMBERS = {"int": ("Int32", "<i4"), "long": ("Int64", "<i8")}

#: Columns that identify the subject of a row. A record of one process has them in its envelope, a record of a whole job
#: in its columns; rows lack those that the record lacks. Other shared fields go to the ledger only.
ROW_IDENTITY = ("job", "run", "rank", "host", "gpu_uuid", "process_id")
#: Envelope fields that are notes between producers and stream processors.
NOT_STORED = frozenset(
    {"complete_step", "rank_list", "late_rows", "process_start_ns", "lead_rank", "lead_process", "lead_start_ns"}
)


class ColumnSource(StrEnum):
    """Names the part of a batch that holds a column's values."""

    ENVELOPE = "envelope"
    TEXT = "envelope text"
    MAP = "envelope map"
    PACKED = "packed"
    DICTIONARY = "dictionary"
    META = "meta"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Declares one column.

    `field`: the Avro field. `dtype`: of the values sent. `null`: -1 in the record means NULL. `enum`: the numbers of an
    Enum8.
    """

    name: str
    type: str
    source: ColumnSource
    field: str = ""
    dtype: str = ""
    null: bool = False
    dictionary: str = ""
    enum: tuple[int, ...] = ()


@dataclass(frozen=True)
class SinkTable:
    """Declares one table.

    `upsert`: rows replace earlier ones with the same key, and the view `name` shows the newest; otherwise rows are
    facts, stored exactly once. `times`: Avro fields that become times. `durations`: fields that cannot be negative.
    `clock`: the Avro field that places rows in partitions, or "" where the table has none. `enums`: columns of
    type Enum8. `live`: people and alerts wait for its rows, so rows are written after `flush_s`, not `bulk_flush_s`.
    """

    topic: Topic
    name: str
    upsert: bool
    columns: tuple[TableColumn, ...]
    times: tuple[str, ...]
    durations: tuple[str, ...]
    clock: str
    enums: tuple[TableColumn, ...]
    live: bool

    @cached_property
    def has_columns(self) -> bool:
        """Return whether rows are those of a batch; if not, a batch is a row itself (gpu.process.v1)."""
        return any(column.source in (ColumnSource.PACKED, ColumnSource.DICTIONARY) for column in self.columns)

    @property
    def target(self) -> str:
        """Return the name of the table that is written to."""
        return f"{self.name}_versions" if self.upsert else self.name


@dataclass(frozen=True, slots=True)
class _Rule:
    upsert: bool = False
    live: bool = False
    clock: str = ""
    also: tuple[str, ...] = ()  # identity fields that only this table's rows carry
    nullable: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()  # dictionaries too varied for LowCardinality
    enums: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # column -> label -> number


_STEP_NULLS = frozenset(
    {"copy_pageable_ns", "launch_late_ns", "sync_ns", "input_ns", "load_ns", "gc_ns", "checkpoint_ns"}
)
_NOT_KNOWN = frozenset(
    {"schedule_ns", "gpu_ns", "gpu_idle_ns", "draft_tokens", "waiting", "kv_used", "kv_total"}
    | {"queue_ns", "ttft_ns", "prompt_tokens", "cached_tokens", "prefill_gpu_ns", "host_ns"}
    | {"first_iteration", "last_iteration"}
)
_RULES: dict[Topic, _Rule] = {
    Topic.PROCESS: _Rule(upsert=True, live=True, also=("local_rank", "world_size")),
    Topic.KERNEL: _Rule(clock="start_ns"),
    Topic.MEMCPY: _Rule(clock="start_ns"),
    Topic.COLLECTIVE: _Rule(clock="start_ns"),
    Topic.STEP: _Rule(live=True, clock="start_ns", nullable=_STEP_NULLS),
    Topic.RANGE: _Rule(clock="start_ns"),
    Topic.DEVICE: _Rule(
        clock="time_ns",
        nullable=frozenset(c.name for c in model(Topic.DEVICE).columns if c.name != "time_ns"),
    ),
    Topic.HOST: _Rule(
        clock="time_ns",
        nullable=frozenset(c.name for c in model(Topic.HOST).columns if c.name not in ("time_ns", "interval_ns")),
    ),
    Topic.NETWORK: _Rule(
        clock="time_ns",
        nullable=frozenset(
            c.name
            for c in model(Topic.NETWORK).columns
            if not c.dictionary and c.name not in ("time_ns", "interval_ns")
        ),
    ),
    Topic.CHECK: _Rule(
        clock="time_ns",
        nullable=frozenset({"measured", "expected"}),
        plain=frozenset({"text"}),
    ),
    Topic.PROGRESS: _Rule(upsert=True, plain=frozenset({"ras_json"})),
    Topic.TRANSFER: _Rule(clock="start_ns"),
    Topic.STACK: _Rule(clock="time_ns", plain=frozenset({"stack"})),
    Topic.LAUNCH: _Rule(clock="start_ns", nullable=frozenset({"sample_age_ns"})),
    Topic.LAUNCH_COUNT: _Rule(clock="start_ns"),
    Topic.STALL: _Rule(clock="start_ns"),
    Topic.ITERATION: _Rule(clock="start_ns", nullable=_NOT_KNOWN | {"output_tokens"}),
    Topic.REQUEST: _Rule(clock="start_ns", nullable=_NOT_KNOWN, plain=frozenset({"request", "traceparent"})),
    Topic.KERNEL_FREQUENCY: _Rule(upsert=True, clock="window_start_ns"),
    Topic.MEMCPY_BANDWIDTH: _Rule(upsert=True, clock="window_start_ns"),
    Topic.LATENESS: _Rule(upsert=True),
    Topic.STRAGGLER: _Rule(upsert=True, live=True, plain=frozenset({"evidence_json"}), enums={"severity": SEVERITIES}),
    Topic.HANG: _Rule(upsert=True, live=True, plain=frozenset({"note"})),
}

_ABSOLUTE = ("start_ns", "end_ns", "time_ns")


def _is_time(field: str) -> bool:
    return field.endswith(_ABSOLUTE)


def _envelope_column(name: str, kind: object) -> TableColumn | None:
    """Return the column of an envelope field, or None if rows do not carry it."""
    if isinstance(kind, dict):
        return TableColumn(name, "Map(String, String)", ColumnSource.MAP, name) if kind.get("type") == "map" else None
    if kind == "string":
        return TableColumn(name, TEXT, ColumnSource.TEXT, name)
    number, dtype = AVRO_NUMBERS[str(kind)]
    if _is_time(name):
        return TableColumn(name.removesuffix("_ns"), TIME, ColumnSource.ENVELOPE, name, dtype)
    return TableColumn(name, number, ColumnSource.ENVELOPE, name, dtype)


def _enum_type(labels: Mapping[str, int]) -> str:
    return "Enum8(" + ", ".join(f"'{label}' = {number}" for label, number in labels.items()) + ")"


def _order(record: RecordModel, rule: _Rule) -> tuple[str, ...]:
    """Return the fields that become columns, in the table's order.

    The process of a record of a whole job is a stream worker, so its id is left out.
    """
    identity = [name for name in (*ROW_IDENTITY, *rule.also) if name in record.fields]
    if "rank" not in record.shared:
        identity.remove("process_id")
    return tuple(dict.fromkeys((*identity, *(name for name in record.topic_fields if name not in NOT_STORED))))


def _packed_column(column: Column, rule: _Rule) -> TableColumn:
    name, dtype = column.name, column.dtype.str
    if column.dictionary:
        kind = "String" if name in rule.plain else TEXT
        return TableColumn(name, kind, ColumnSource.DICTIONARY, name, dtype, dictionary=column.dictionary)
    if _is_time(name):
        return TableColumn(name.removesuffix("_ns"), TIME, ColumnSource.PACKED, name, dtype)
    if name in rule.enums:
        labels = rule.enums[name]
        return TableColumn(name, _enum_type(labels), ColumnSource.PACKED, name, dtype, enum=tuple(labels.values()))
    number, null = NUMBERS[dtype], name in rule.nullable
    return TableColumn(name, f"Nullable({number})" if null else number, ColumnSource.PACKED, name, dtype, null)


@cache
def table(topic: Topic) -> SinkTable:
    """Return the table of a topic. Every topic with a schema has one."""
    rule, record = _RULES[topic], model(topic)
    kinds = {field["name"]: field["type"] for field in record.parsed["fields"]}
    packed = {column.name: column for column in record.columns}
    columns: list[TableColumn] = []
    for name in _order(record, rule):
        column = _packed_column(packed[name], rule) if name in packed else _envelope_column(name, kinds[name])
        if column is not None:
            columns.append(column)
    columns += [
        TableColumn("published", "DateTime64(3, 'UTC')", ColumnSource.META, dtype="<i8"),
        TableColumn("_topic_partition", TEXT, ColumnSource.META),
        TableColumn("_offset", "UInt64", ColumnSource.META, dtype="<u8"),
        TableColumn("_row", "UInt32", ColumnSource.META, dtype="<u4"),
    ]
    times = tuple(name for name in record.topic_fields if _is_time(name))
    durations = tuple(c.name for c in record.columns if c.name.endswith("duration_ns"))
    enums = tuple(column for column in columns if column.enum)
    return SinkTable(
        topic, TABLE_NAMES[topic], rule.upsert, tuple(columns), times, durations, rule.clock, enums, rule.live
    )


TABLES: tuple[SinkTable, ...] = tuple(table(topic) for topic in Topic if has_schema(topic))
