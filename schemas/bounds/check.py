"""Check batches against the bounds of their topic, by column: one pass over an array, no Python code for each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import le
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.bounds.limits import (
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
from drumline.schemas.bounds.plan import ColumnGroup, plan
from drumline.schemas.columns import Array
from drumline.schemas.dead_letters import Header
from drumline.schemas.errors import OutOfBounds
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

_NS_PER_MS = 1_000_000
_smallest, _largest = np.minimum.reduce, np.maximum.reduce
#: Ends a text that was cut.
CUT_MARK = "…"


def header_bytes(headers: Iterable[Header]) -> int:
    """Return the bytes of the names and values of headers."""
    size = 0
    for name, value in headers:
        size += len(name) + len(value or b"")
    return size


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


def check(batch: Batch, appended_ms: int | None = None, text_bytes: int | None = None) -> None:
    """Raise OutOfBounds, naming a field outside its bounds. Fields that the batch lacks have their defaults.

    `appended_ms`: when Kafka took the record in, by the broker's clock; without it, times are not compared with it.
    `text_bytes`: all texts of the batch together have at most so many; a list with room for them is not read.
    """
    if check_envelope(batch.topic, batch.envelope, appended_ms, text_bytes)["rows"]:
        check_columns(batch, appended_ms)


def check_envelope(
    topic: str, envelope: Mapping[str, Any], appended_ms: int | None = None, text_bytes: int | None = None
) -> Mapping[str, Any]:
    """Return the envelope of a batch with all fields, see `check`. Raises OutOfBounds."""
    checks = plan(topic)
    if len(envelope) < checks.envelope_count:
        envelope = {**model(topic).defaults, **envelope}
    appended_ns = appended_ms * _NS_PER_MS if appended_ms and appended_ms > 0 else 0
    # map() compares without Python code for each field; only a fault is looked for by field. NaN is outside.
    numbers = checks.numbers(envelope)
    if not (all(map(le, checks.lows, numbers)) and all(map(le, numbers, checks.highs))):
        raise _number_outside(topic, envelope)
    if appended_ns and (checks.recent or max(checks.times(envelope)) > appended_ns + AHEAD_NS):
        _check_times(topic, envelope, appended_ns)
    if not all(map(le, map(len, checks.texts(envelope)), checks.lengths)):
        raise _text_too_long(topic, envelope)
    for name, bound in checks.text_lists:
        texts = envelope[name]
        if len(texts) > bound.items:
            raise _too_many(topic, name, bound)
        if text_bytes is not None and text_bytes <= bound.length:
            continue
        if max(map(len, texts), default=0) > bound.length:
            raise OutOfBounds(f"a {bound.meaning} of more than {bound.length} characters", topic=topic, field=name)
    for name, bound in checks.number_lists:
        numbers = envelope[name]
        if len(numbers) > bound.items:
            raise _too_many(topic, name, bound)
        if numbers and not bound.low <= min(numbers) <= max(numbers) <= bound.high:
            raise _outside(topic, name, bound, min(numbers), max(numbers))
    for first, *rest in (KINDS, HIDDEN) if topic == Topic.LATENESS else ():
        for name in rest:
            if len(envelope[name]) != len(envelope[first]):
                raise OutOfBounds(f"not as many items as {first}", topic=topic, field=name)
    for name, bound in checks.maps:
        pairs = envelope[name]
        if len(pairs) > bound.items:
            raise _too_many(topic, name, bound)
        if any(len(text) > bound.length for pair in pairs.items() for text in pair):
            raise OutOfBounds(f"a {bound.meaning} of more than {bound.length} characters", topic=topic, field=name)
    return envelope


def checks_together(topic: str) -> bool:
    """Return whether `check_columns` may check the columns of many batches of a topic as those of one."""
    return not plan(topic).totals


def check_columns(batch: Batch, appended_ms: int | None = None, latest_ms: int | None = None) -> None:
    """Check the columns of a batch with rows, see `check`. Raises OutOfBounds.

    `latest_ms`: when Kafka took in the last of several whose rows these are, `appended_ms` the first.
    """
    topic, columns, checks = batch.topic, batch.columns, plan(batch.topic)
    appended_ns = appended_ms * _NS_PER_MS if appended_ms and appended_ms > 0 else 0
    latest_ns = max(appended_ns, (latest_ms or 0) * _NS_PER_MS)
    if len(columns) < checks.column_count:
        columns = {c.name: columns.get(c.name, np.zeros(batch.rows, c.dtype)) for c in model(topic).columns}
    for group in checks.groups:
        names, bound, dtype, unsigned = group
        values = columns[names[0]] if len(names) == 1 else np.concatenate([columns[name] for name in names])
        if unsigned is not None and values.dtype == dtype:
            low, high = 0, _largest(values if unsigned is dtype else values.view(unsigned)).item()
        else:
            low, high = _smallest(values).item(), _largest(values).item()
        if not (bound.low <= low and high <= bound.high):  # NaN is outside
            raise _column_outside(topic, group, columns)
        if appended_ns and bound.is_time:
            _check_time(topic, names[0], bound, low, high, appended_ns, latest_ns)
    for name, dictionary, bound in checks.totals:
        lengths = np.fromiter(map(len, batch.envelope[dictionary]), np.int64, len(batch.envelope[dictionary]))
        if int(lengths[columns[name]].sum()) > bound.total:
            detail = f"more than {bound.total} characters of {bound.meaning} in all rows together"
            raise OutOfBounds(detail, topic=topic, field=name)


def _number_outside(topic: str, envelope: Mapping[str, Any]) -> OutOfBounds:
    of, numbers = bounds(topic), (n for n, kind in model(topic).envelope.items() if kind in ("int", "long", "double"))
    name = next(name for name in numbers if not of[name].low <= envelope[name] <= of[name].high)
    return _outside(topic, name, of[name], envelope[name], envelope[name])


def _check_times(topic: str, envelope: Mapping[str, Any], appended_ns: int) -> None:
    for name in model(topic).envelope:
        bound = bounds(topic)[name]
        if bound.is_time and (value := envelope[name]):
            _check_time(topic, name, bound, value, value, appended_ns, appended_ns)


def _text_too_long(topic: str, envelope: Mapping[str, Any]) -> OutOfBounds:
    of, texts = bounds(topic), (n for n, kind in model(topic).envelope.items() if kind == "string")
    name = next(name for name in texts if len(envelope[name]) > of[name].length)
    return OutOfBounds(f"a text of more than {of[name].length} characters", topic=topic, field=name)


def _column_outside(topic: str, group: ColumnGroup, columns: Mapping[str, Array]) -> OutOfBounds:
    bound, ends = group.bound, {name: (columns[name].min(), columns[name].max()) for name in group.names}
    name = next(name for name, (low, high) in ends.items() if not (bound.low <= low and high <= bound.high))
    return _outside(topic, name, bound, *ends[name])


def _too_many(topic: str, name: str, bound: Bound) -> OutOfBounds:
    return OutOfBounds(f"more than {bound.items} items", topic=topic, field=name)


def _check_time(topic: str, name: str, bound: Bound, low: int, high: int, appended_ns: int, latest_ns: int) -> None:
    if high > appended_ns + AHEAD_NS:
        hours = AHEAD_NS // 3_600_000_000_000
        raise OutOfBounds(f"a time more than {hours} hours after Kafka took the record in", topic=topic, field=name)
    if bound.is_recent and low < latest_ns - PAST_NS:
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
    of, good = bounds(topic), None
    for name in (name for group in plan(topic).groups for name in group.names):
        values = columns[name]
        if values.size and not (of[name].low <= values.min() and values.max() <= of[name].high):
            inside = (values >= of[name].low) & (values <= of[name].high)
            good = inside if good is None else good & inside
    return good


def cut(text: str, length: int) -> str:
    """Return the text, cut to `length` characters; the last of them then is CUT_MARK."""
    return text if len(text) <= length else text[: length - 1] + CUT_MARK
