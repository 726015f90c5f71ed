"""Answers for agents: JSON of bounded size, in which stored text is data and no control character is left."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from drumline.infra.runtime.terminal import LAYOUT, escape_controls

#: Rows of an answer unless the caller asks for others, and at most.
ROWS, MOST_ROWS = 50, 500
#: Characters of a cell, and of all cells together.
CELL_CHARS, ANSWER_CHARS = 2_000, 60_000


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
    columns = [{"name": plain(column["name"]), "type": short_type(column["type"])} for column in parsed["meta"]]
    rows: list[Any] = []
    size = 0
    for row in parsed["data"][:most]:
        cells = plain(row)
        size += len(json.dumps(cells))
        if size > ANSWER_CHARS:
            break
        rows.append(cells)
    cut = ""
    if len(rows) < len(parsed["data"]):
        reason = f"max_rows = {most}" if len(rows) == most else f"an answer has {ANSWER_CHARS} characters at most"
        cut = f"only the first {len(rows)} rows: {reason}. There are more: aggregate, filter or use LIMIT and OFFSET"
    return {"columns": columns, "rows": rows, "cut": cut}
