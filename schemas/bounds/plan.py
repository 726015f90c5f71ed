"""Prepare the checks of a topic's bounds once, so that checking a batch runs little Python code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from drumline.schemas.bounds.limits import Bound, bounds
from drumline.schemas.columns import Column
from drumline.schemas.model import model

_KINDS = {"int": "number", "long": "number", "double": "number", "string": "text", "array<string>": "text list"}
_KINDS |= {"map<string>": "map"}


class ColumnGroup(NamedTuple):
    """Holds columns of one dtype and one bound: they are joined, and checked in one pass.

    `unsigned`: the dtype to read them as where the bound begins at 0: a negative number is larger than its end then, so
    one comparison is enough. None: both ends are compared.
    """

    names: tuple[str, ...]
    bound: Bound
    dtype: np.dtype[Any]
    unsigned: np.dtype[Any] | None


@dataclass(frozen=True, slots=True)
class BoundsPlan:
    """Holds the checks of a topic, by the kind of its fields. Columns that cannot exceed their bound are in no group.

    `numbers`, `times`, `texts`: read these fields of an envelope at once. `totals`: column, dictionary, its bound.
    """

    envelope_count: int
    numbers: Callable[[Mapping[str, Any]], tuple[float, ...]]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    times: Callable[[Mapping[str, Any]], tuple[int, ...]]
    recent: tuple[str, ...]
    texts: Callable[[Mapping[str, Any]], tuple[str, ...]]
    lengths: tuple[int, ...]
    text_lists: tuple[tuple[str, Bound], ...]
    number_lists: tuple[tuple[str, Bound], ...]
    maps: tuple[tuple[str, Bound], ...]
    column_count: int
    groups: tuple[ColumnGroup, ...]
    totals: tuple[tuple[str, str, Bound], ...]


@cache
def plan(topic: str) -> BoundsPlan:
    """Return the checks of a topic with a schema."""
    record, of = model(topic), bounds(topic)

    def fields(kind: str) -> list[tuple[str, Bound]]:
        return [(name, of[name]) for name, avro in record.envelope.items() if _KINDS.get(avro, "number list") == kind]

    numbers, texts = fields("number"), fields("text")
    return BoundsPlan(
        len(record.envelope),
        itemgetter(*(name for name, _ in numbers)),
        tuple(bound.low for _, bound in numbers),
        tuple(bound.high for _, bound in numbers),
        itemgetter(*(name for name, bound in numbers if bound.is_time)),
        tuple(name for name, bound in numbers if bound.is_recent),
        itemgetter(*(name for name, _ in texts)),
        tuple(bound.length for _, bound in texts),
        tuple(fields("text list")),
        tuple(fields("number list")),
        tuple(fields("map")),
        len(record.columns),
        tuple(_groups(record.columns, of)),
        tuple(
            (c.name, c.dictionary, of[c.dictionary]) for c in record.columns if c.dictionary and of[c.dictionary].total
        ),
    )


def _groups(columns: Iterable[Column], of: Mapping[str, Bound]) -> Iterator[ColumnGroup]:
    names: dict[tuple[np.dtype[Any], Bound], list[str]] = {}
    for column in columns:
        if not column.dictionary and not _always_inside(column, of[column.name]):
            names.setdefault((column.dtype, of[column.name]), []).append(column.name)
    for (dtype, bound), members in names.items():
        begins_at_0 = dtype.kind in "iu" and bound.low == 0 and not bound.is_recent
        unsigned = dtype if dtype.kind == "u" else np.dtype(f"<u{dtype.itemsize}")
        yield ColumnGroup(tuple(members), bound, dtype, unsigned if begins_at_0 else None)


def _always_inside(column: Column, bound: Bound) -> bool:
    if column.dtype.kind == "f":
        return False
    limits = np.iinfo(column.dtype)
    return bound.low <= limits.min and limits.max <= bound.high
