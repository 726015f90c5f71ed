"""Answers for agents: JSON of bounded size, in which stored text is data and no control character is left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from drumline.infra.runtime.terminal import LAYOUT, escape_controls

#: Rows of an answer unless the caller asks for others, and at most.
ROWS, MOST_ROWS = 50, 500
#: Characters of a cell; of the names of columns, and of all of a table, as JSON.
CELL_CHARS, NAMES_CHARS, ANSWER_CHARS = 2_000, 30_000, 60_000
#: Bytes of any answer: what an agent reads at a time. The longest list of drumline itself, of all questions, fits.
MOST_BYTES = 100_000


def plain(value: Any) -> Any:
    """Return a JSON value whose strings, keys too, are escaped and cut."""
    if isinstance(value, str):
        text = escape_controls(value, LAYOUT)
        return text if len(text) <= CELL_CHARS else f"{text[:CELL_CHARS]}… ({len(text) - CELL_CHARS} characters more)"
    if isinstance(value, Mapping):
        return {str(plain(str(key))): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def short_type(kind: str) -> str:
    """Return ClickHouse's type without its storage: the inner type of SimpleAggregateFunction and LowCardinality."""
    kind = re.sub(r"^SimpleAggregateFunction\(\w+, (.*)\)$", r"\1", kind)
    return re.sub(r"LowCardinality\(([^()]*(?:\([^()]*\))?)\)", r"\1", kind)


def table(answer: bytes, most: int) -> dict[str, Any]:
    """Return ClickHouse's JSONCompact as {columns, rows, cut}.

    `cut`: "" for a complete answer, else what is left out and what to do. `most`: rows.
    """
    parsed = json.loads(answer) if answer.strip() else {"meta": [], "data": []}
    named = [{"name": plain(column["name"]), "type": plain(short_type(column["type"]))} for column in parsed["meta"]]
    columns = _that_fit(named, NAMES_CHARS)
    size = len(json.dumps(columns))
    rows = _that_fit((plain(row[: len(columns)]) for row in parsed["data"][:most]), ANSWER_CHARS - size)
    cut = []
    if len(columns) < len(named):
        cut.append(f"only the first {len(columns)} of {len(named)} columns: SELECT those that you need")
    if len(rows) < len(parsed["data"]):
        reason = f"max_rows = {most}" if len(rows) == most else f"an answer has {ANSWER_CHARS} characters at most"
        cut.append(
            f"only the first {len(rows)} rows: {reason}. There are more: aggregate, filter or use LIMIT and OFFSET"
        )
    return {"columns": columns, "rows": rows, "cut": "; ".join(cut)}


def _that_fit(parts: Iterable[Any], most: int) -> list[Any]:
    """Return the first of these values whose JSON has at most `most` characters together."""
    fitting: list[Any] = []
    for part in parts:
        most -= len(json.dumps(part)) + 2
        if most < 0:
            break
        fitting.append(part)
    return fitting


def bounded(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of at most MOST_BYTES as JSON: of the longest lists the first parts, and `cut` names them."""
    if _bytes(answer) <= MOST_BYTES:
        return answer
    left, kept, cut = MOST_BYTES - 2_000, {}, [text for text in [answer.get("cut", "")] if text]
    for name, value in sorted(answer.items(), key=lambda item: _bytes(item[1])):
        size = _bytes(value) + len(name) + 4
        if size > left:
            value = _that_fit(value, left // 2) if isinstance(value, list) else None
            cut.append(f"{name} is cut: an answer has {MOST_BYTES} bytes at most; ask for less")
            size = _bytes(value)
        kept[name] = value
        left -= size
    return {name: kept[name] for name in answer} | {"cut": "; ".join(cut)[:1_500]}


def _bytes(value: Any) -> int:
    return len(json.dumps(value))
