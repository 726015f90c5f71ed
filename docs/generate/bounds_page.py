"""Write docs/reference/record-bounds.md from the bounds of the contract."""

from __future__ import annotations

from page import NOTE, REFERENCE, table, write

from drumline.schemas.bounds.limits import (
    AHEAD_NS,
    DAY_NS,
    INDEX,
    MAX_BYTES,
    MAX_DERIVED_BYTES,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    PAST_NS,
    Bound,
    bounds,
)
from drumline.schemas.model import has_schema
from drumline.schemas.topics import Topic

PAGE = REFERENCE / "record-bounds.md"
HEAD = f"""{NOTE.format(name="bounds_page")}# Bounds of records

What may a field hold? The schemas give each field a type, this page gives each a range. No real job comes near a limit.
A record with a field outside its bounds is a dead letter, with the reason `out_of_bounds` and the name of the field.
Every consumer applies the same bounds when it decodes a record.

- A value has at most {MAX_BYTES:,} bytes before compression, one of a derived topic {MAX_DERIVED_BYTES:,}.
- A key has at most {MAX_KEY_BYTES:,} bytes, and names and values of all headers {MAX_HEADERS_BYTES:,}.
- By Kafka's clock, a row lies at most {PAST_NS // DAY_NS} days before its record, and {AHEAD_NS // DAY_NS * 24} hours
  after it.
- Lengths count characters, not bytes.
- A record that the sink of an earlier version has accepted, but not finished, is stored as that version accepted it.

Producers keep these bounds. They drop rows with impossible values and count them in `dropped_before`. They cut a text
that is too long, and end it with `…`. A stream worker whose result is outside puts the job in quarantine.

"""


def page() -> str:
    """Return the page's text."""
    topics = [str(topic) for topic in Topic if has_schema(topic)]
    fields: dict[tuple[Bound, str], list[str]] = {}
    for topic in topics:
        for field, bound in bounds(topic).items():
            fields.setdefault((bound, field), []).append(topic)
    rows = []
    for (bound, field), named in sorted(fields.items(), key=lambda item: item[0][1]):
        if bound is not INDEX:
            short = "all" if named == topics else ", ".join(name.removeprefix("gpu.") for name in named)
            rows.append((f"`{field}`", short, _range(bound), bound.reason))
    return HEAD + table(("field", "topics", "range", "reason"), rows)


def _range(bound: Bound) -> str:
    parts = []
    if bound.items:
        parts.append(f"{bound.items:,} items")
    if bound.length:
        parts.append(f"{bound.length:,} characters")
    if bound.total:
        parts.append(f"{bound.total:,} in all rows together")
    if bound.is_time:
        parts.append("ns since the epoch")
    elif not bound.length:
        parts.append(f"{bound.low:,} to {bound.high:,}")
    return ", ".join(parts)


if __name__ == "__main__":
    write(PAGE, page())
