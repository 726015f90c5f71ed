"""Check all parts of a merged record against the bounds of their topic at once."""

from __future__ import annotations

import math
from functools import cache
from operator import le
from typing import NamedTuple

import numpy as np

from drumline.schemas.bounds.limits import AHEAD_NS, PAST_NS, Bound, bounds
from drumline.schemas.bounds.plan import plan
from drumline.schemas.columns import Column
from drumline.schemas.errors import BadEnvelope
from drumline.schemas.model import model
from drumline.schemas.parts.merged import layout
from drumline.schemas.parts.table import MergedTable
from drumline.schemas.record_table import Ints

_NS_PER_MS = 1_000_000


class _Limits(NamedTuple):
    """Holds the bounds of a table's lines, those of columns as integers.

    Attributes:
        lows, highs: of the fields; an index of texts was checked. times: lines of fields that are times.
        column_lows, column_highs: of the columns, within their dtypes.
        row_times: lines of columns that are times; recent: those with a lower end too.
        floats: lines of 64-bit floats; float_lows, float_highs: their bounds.
        length: characters of a text, the least of all fields. item_length, items: of those of arrays.
        dictionaries: line of a column -> line of the field with its texts.
        is_known: these checks are all that the topic has.
    """

    lows: list[float]
    highs: list[float]
    times: list[int]
    column_lows: list[float]
    column_highs: list[float]
    row_times: list[int]
    recent: list[int]
    floats: list[int]
    float_lows: list[float]
    float_highs: list[float]
    length: int
    item_length: int
    items: int
    dictionaries: dict[int, int]
    is_known: bool


@cache
def _limits(topic: str) -> _Limits:
    schema, of, checks = model(topic), bounds(topic), plan(topic)
    table = layout(schema)
    numbers = [of[name] if kind in ("int", "long") else None for name, kind in table.kinds.items()]
    ends = [_ends(column, of[column.name]) for column in schema.columns]
    columns = [of[column.name] for column in schema.columns]
    floats = [line for line, column in enumerate(schema.columns) if column.dtype.kind == "f"]
    texts = [of[name] for name, kind in schema.envelope.items() if kind == "string"]
    lists = [of[name] for name, kind in table.kinds.items() if kind == "array<string>"]
    return _Limits(
        [-math.inf if bound is None else bound.low for bound in numbers],
        [math.inf if bound is None else bound.high for bound in numbers],
        [line for line, bound in enumerate(numbers) if bound is not None and bound.is_time],
        [low for low, _ in ends],
        [high for _, high in ends],
        [line for line, bound in enumerate(columns) if bound.is_time],
        [line for line, bound in enumerate(columns) if bound.is_recent],
        floats,
        [columns[line].low for line in floats],
        [columns[line].high for line in floats],
        min(bound.length for bound in texts),
        min((bound.length for bound in lists), default=0),
        min((bound.items for bound in lists), default=0),
        {table.line[c.name]: table.line[c.dictionary] for c in schema.columns if c.dictionary},
        {*table.kinds.values()} <= {"int", "long", "string", "array<string>"}
        and not checks.totals
        and not checks.recent,
    )


def _ends(column: Column, bound: Bound) -> tuple[float, float]:
    """Return the lowest and highest value of a column's line; those of a float have other bounds."""
    if column.dtype.kind == "f":
        return -math.inf, math.inf
    return max(np.iinfo(column.dtype).min, bound.low), min(np.iinfo(column.dtype).max, bound.high)


def is_inside(parts: MergedTable, *appended_ms: int | None) -> bool:
    """Return whether all parts are surely within their bounds; if not, `check` says so of each part.

    `appended_ms`: when Kafka took their records in; without it, times are not compared with it.
    """
    limits = _limits(parts.topic)
    if not limits.is_known or parts.writer is not parts.reader:
        return False
    latest, earliest = math.inf, -math.inf
    if known := [ms for ms in appended_ms if ms and ms > 0]:
        latest, earliest = min(known) * _NS_PER_MS + AHEAD_NS, max(known) * _NS_PER_MS - PAST_NS
    lowest, highest = parts.lowest, parts.highest
    if not (all(map(le, limits.lows, lowest)) and all(map(le, highest, limits.highs))):
        return False
    sizes = _list_sizes(parts, limits)
    if sizes is None or any(highest[line] > latest for line in limits.times):
        return False
    return not parts.rows or (
        _are_columns_inside(parts, limits, latest, earliest) and _are_indices_inside(parts, limits, sizes)
    )


def _are_columns_inside(parts: MergedTable, limits: _Limits, latest: float, earliest: float) -> bool:
    # map() compares without Python code for each line, as `check` does.
    lowest, highest = parts.values.min(1).tolist(), parts.values.max(1).tolist()
    if not (all(map(le, limits.column_lows, lowest)) and all(map(le, highest, limits.column_highs))):
        return False
    if any(highest[line] > latest for line in limits.row_times) or any(lowest[at] < earliest for at in limits.recent):
        return False
    if limits.floats:
        floats = parts.values[limits.floats].view(np.float64)  # NaN is outside
        lowest, highest = floats.min(1).tolist(), floats.max(1).tolist()
        if not (all(map(le, limits.float_lows, lowest)) and all(map(le, highest, limits.float_highs))):
            return False
    return True


def _are_indices_inside(parts: MergedTable, limits: _Limits, sizes: Ints) -> bool:
    for line, field in limits.dictionaries.items():
        of_parts = sizes[parts.fields[field]]
        ends = np.repeat(of_parts, parts.counts) if of_parts.min() < of_parts.max() else of_parts[0]
        if not (parts.values[line] < ends).all():
            return False
    return True


def _list_sizes(parts: MergedTable, limits: _Limits) -> Ints | None:
    """Return the number of items of each text that is a list, None if one, or another text, is out of bounds."""
    of_lists = set(parts.fields[parts.layout.lists].ravel().tolist()) if parts.layout.lists else ()
    if max(len(parts.job), len(parts.run)) > limits.length:
        return None
    if parts.longest > limits.length:  # that one may be an array
        strings = [line for line in parts.layout.texts if line not in parts.layout.lists]
        texts = (parts.texts[index] for index in set(parts.fields[strings].ravel().tolist()))
        if max(map(len, texts), default=0) > limits.length:
            return None
    sizes = np.zeros(len(parts.texts), np.int64)
    for index in of_lists:
        try:
            items, longest = parts.size_of_list(index)
        except BadEnvelope:
            return None
        if items > limits.items or longest > limits.item_length:
            return None
        sizes[index] = items
    return sizes
