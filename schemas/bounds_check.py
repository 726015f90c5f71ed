"""Check batches against the bounds of their topic, by column: one pass over an array, no Python code for each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import le
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.bounds import (
    AHEAD_NS,
    HIDDEN,
    KINDS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    PAST_NS,
    Bound,
    bounds,
    max_bytes,
)
from drumline.schemas.columns import Array, Column
from drumline.schemas.dead_letters import Header
from drumline.schemas.errors import OutOfBounds
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

_NS_PER_MS = 1_000_000
#: Ends a text that was cut.
CUT_MARK = "…"


def header_bytes(headers: Iterable[Header]) -> int:
    """Return the bytes of the names and values of headers."""
    return sum(len(name) + len(value or b"") for name, value in headers)


def check_size(topic: str, key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> None:
    """Check the bytes of a Kafka record. Raises OutOfBounds."""
    if value is not None and len(value) > max_bytes(topic):
        raise _too_large(topic, "value", len(value), max_bytes(topic))
    if key is not None and len(key) > MAX_KEY_BYTES:
        raise _too_large(topic, "key", len(key), MAX_KEY_BYTES)
    if headers and (size := header_bytes(headers)) > MAX_HEADERS_BYTES:
        raise _too_large(topic, "headers", size, MAX_HEADERS_BYTES)


def _too_large(topic: str, part: str, size: int, most: int) -> OutOfBounds:
    return OutOfBounds(f"{part} of {size} bytes, at most {most}", topic=topic)


@dataclass(frozen=True, slots=True)
class _Checks:
    """Holds the checks of a topic, by the kind of its fields. Columns whose dtype cannot exceed its bound are left out.

    `joined`: columns of equal dtype, with the bound low = 0 and high = 2^n - 1: their bits are joined and checked once.
    """

    numbers: tuple[str, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    times: tuple[str, ...]
    texts: tuple[str, ...]
    lengths: tuple[int, ...]
    text_lists: tuple[tuple[str, Bound], ...]
    number_lists: tuple[tuple[str, Bound], ...]
    maps: tuple[tuple[str, Bound], ...]
    column_count: int
    columns: tuple[tuple[str, Bound, float, float, bool], ...]
    joined: tuple[tuple[str, ...], ...]
    totals: tuple[tuple[str, str, Bound], ...]


@cache
def _checks(topic: str) -> _Checks:
    record, of = model(topic), bounds(topic)
    kinds = {"int": "number", "long": "number", "double": "number", "string": "text", "array<string>": "text list"}
    kinds |= {"map<string>": "map"}

    def envelope(kind: str) -> tuple[tuple[str, Bound], ...]:
        return tuple((n, of[n]) for n, k in record.envelope.items() if kinds.get(k, "number list") == kind)

    columns = [c for c in record.columns if not c.dictionary and not _always_inside(c, of[c.name])]
    groups: dict[tuple[str, float], list[str]] = {}
    for column in columns:
        high = of[column.name].high
        if column.dtype.kind in "iu" and of[column.name].low == 0 and int(high) & (int(high) + 1) == 0:
            groups.setdefault((column.dtype.str, high), []).append(column.name)
    joined = tuple(tuple(names) for names in groups.values() if len(names) > 1)
    rest = [column for column in columns if not any(column.name in names for names in joined)]
    return _Checks(
        tuple(name for name, _ in envelope("number")),
        tuple(bound.low for _, bound in envelope("number")),
        tuple(bound.high for _, bound in envelope("number")),
        tuple(name for name, bound in envelope("number") if bound.is_time),
        tuple(name for name, _ in envelope("text")),
        tuple(bound.length for _, bound in envelope("text")),
        envelope("text list"),
        envelope("number list"),
        envelope("map"),
        len(record.columns),
        tuple(
            (c.name, (bound := of[c.name]), bound.low, bound.high, c.dtype.kind != "u" or bound.is_time) for c in rest
        ),
        joined,
        tuple(
            (c.name, c.dictionary, of[c.dictionary]) for c in record.columns if c.dictionary and of[c.dictionary].total
        ),
    )


def _is_inside(topic: str, name: str, value: float) -> bool:
    bound = bounds(topic)[name]
    return bound.low <= value <= bound.high


def _always_inside(column: Column, bound: Bound) -> bool:
    if column.dtype.kind == "f":
        return False
    limits = np.iinfo(column.dtype)
    return bound.low <= limits.min and limits.max <= bound.high


def check(batch: Batch, appended_ms: int | None = None, text_bytes: int | None = None) -> None:
    """Raise OutOfBounds, naming the first field outside its bounds. Fields that the batch lacks have their defaults.

    `appended_ms`: when Kafka took the record in, by the broker's clock; without it, times are not compared with it.
    `text_bytes`: all texts of the batch together have at most so many; a list with room for them is not read.
    """
    checks, envelope, topic = _checks(batch.topic), batch.envelope, batch.topic
    appended_ns = appended_ms * _NS_PER_MS if appended_ms and appended_ms > 0 else 0
    # map() compares without Python code for each field; only a fault is looked for by field. NaN is outside.
    numbers = [envelope.get(name, 0) for name in checks.numbers]
    if not (all(map(le, checks.lows, numbers)) and all(map(le, numbers, checks.highs))):
        name, value = next(pair for pair in zip(checks.numbers, numbers, strict=True) if not _is_inside(topic, *pair))
        raise _outside(topic, name, bounds(topic)[name], value, value)
    for name in checks.times if appended_ns else ():
        if value := envelope.get(name, 0):
            _check_time(topic, name, bounds(topic)[name], value, value, appended_ns)
    lengths = [len(envelope.get(name, "")) for name in checks.texts]
    if not all(map(le, lengths, checks.lengths)):
        name = next(n for n, length in zip(checks.texts, lengths, strict=True) if length > bounds(topic)[n].length)
        detail = f"a text of more than {bounds(topic)[name].length} characters"
        raise OutOfBounds(detail, topic=topic, field=name)
    for name, bound in checks.text_lists:
        texts = envelope.get(name, ())
        if len(texts) > bound.items:
            raise _too_many(topic, name, bound)
        if text_bytes is not None and text_bytes <= bound.length:
            continue
        if max(map(len, texts), default=0) > bound.length:
            raise OutOfBounds(f"a {bound.meaning} of more than {bound.length} characters", topic=topic, field=name)
    for name, bound in checks.number_lists:
        numbers = envelope.get(name, ())
        if len(numbers) > bound.items:
            raise _too_many(topic, name, bound)
        if numbers and not bound.low <= min(numbers) <= max(numbers) <= bound.high:
            raise _outside(topic, name, bound, min(numbers), max(numbers))
    for first, *rest in (KINDS, HIDDEN) if topic == Topic.LATENESS else ():
        for name in rest:
            if len(envelope.get(name, ())) != len(envelope.get(first, ())):
                raise OutOfBounds(f"not as many items as {first}", topic=topic, field=name)
    for name, bound in checks.maps:
        pairs = envelope.get(name, {})
        if len(pairs) > bound.items:
            raise _too_many(topic, name, bound)
        if any(len(text) > bound.length for pair in pairs.items() for text in pair):
            raise OutOfBounds(f"a {bound.meaning} of more than {bound.length} characters", topic=topic, field=name)
    if envelope.get("rows", 0):
        _check_columns(checks, batch, appended_ns)


def _check_columns(checks: _Checks, batch: Batch, appended_ns: int) -> None:
    topic, columns = batch.topic, batch.columns
    if len(columns) < checks.column_count:
        columns = {c.name: columns.get(c.name, np.zeros(batch.rows, c.dtype)) for c in model(topic).columns}
    of = bounds(topic) if checks.joined else {}
    for names in checks.joined:
        bits = columns[names[0]] | columns[names[1]]
        for name in names[2:]:
            bits |= columns[name]
        if not 0 <= int(np.bitwise_or.reduce(bits)) <= of[names[0]].high:
            name = next(n for n in names if not 0 <= int(np.bitwise_or.reduce(columns[n])) <= of[n].high)
            raise _outside(topic, name, of[name], columns[name].min(), columns[name].max())
    for name, bound, lowest, highest, is_signed in checks.columns:
        values = columns[name]
        high = np.maximum.reduce(values).item()
        low = np.minimum.reduce(values).item() if is_signed else 0
        if not (lowest <= low and high <= highest):  # NaN is outside
            raise _outside(topic, name, bound, low, high)
        if bound.is_time and appended_ns:
            _check_time(topic, name, bound, low, high, appended_ns)
    for name, dictionary, bound in checks.totals:
        lengths = np.fromiter(map(len, batch.envelope[dictionary]), np.int64, len(batch.envelope[dictionary]))
        if int(lengths[columns[name]].sum()) > bound.total:
            detail = f"more than {bound.total} characters of {bound.meaning} in all rows together"
            raise OutOfBounds(detail, topic=topic, field=name)


def _too_many(topic: str, name: str, bound: Bound) -> OutOfBounds:
    return OutOfBounds(f"more than {bound.items} items", topic=topic, field=name)


def _check_time(topic: str, name: str, bound: Bound, low: int, high: int, appended_ns: int) -> None:
    if high > appended_ns + AHEAD_NS:
        hours = AHEAD_NS // 3_600_000_000_000
        raise OutOfBounds(f"a time more than {hours} hours after Kafka took the record in", topic=topic, field=name)
    if bound.is_recent and low < appended_ns - PAST_NS:
        days = PAST_NS // 86_400_000_000_000
        raise OutOfBounds(f"a time more than {days} days before Kafka took the record in", topic=topic, field=name)


def _outside(topic: str, name: str, bound: Bound, low: Any, high: Any) -> OutOfBounds:
    if low < bound.low:
        detail = f"a {bound.meaning} below {bound.low:.0f}"
    elif high > bound.high:
        detail = f"a {bound.meaning} above {bound.high:.0f}"
    else:
        detail = f"a {bound.meaning} that is no number"
    return OutOfBounds(detail, topic=topic, field=name)


def rows_inside(topic: str, columns: Mapping[str, Array]) -> Array | None:
    """Return bool[n], the rows within their bounds; None if all are. For producers: they drop the others, and count."""
    checks, of = _checks(topic), bounds(topic)
    names = [*(name for name, *_ in checks.columns), *(name for joined in checks.joined for name in joined)]
    good = None
    for name in names:
        values = columns[name]
        if values.size and not (of[name].low <= values.min() and values.max() <= of[name].high):
            inside = (values >= of[name].low) & (values <= of[name].high)
            good = inside if good is None else good & inside
    return good


def cut(text: str, length: int) -> str:
    """Return the text, cut to `length` characters; the last of them then is CUT_MARK."""
    return text if len(text) <= length else text[: length - 1] + CUT_MARK
