"""Columns that a misspelt one of a statement may stand for. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from drumline.infra.runtime.nearest import did_you_mean

#: Names that are offered, and letters of a name that may be a part of another one: `ns` is a part of most columns.
OFFERED, PART = 3, 4
#: How ClickHouse names a column that no table of the statement has.
_UNKNOWN = re.compile(r"identifier [`'](?:[\w.]*\.)?(\w+)[`']", re.IGNORECASE)


def nearest_columns(message: str, statement: str, tables: Mapping[str, Sequence[str]]) -> str:
    """Return the question "did you mean ...?" about a column that the message names; "" where none is alike.

    `tables`: table -> its columns; those of the tables that the statement names are offered.
    """
    unknown = _UNKNOWN.search(message)
    if unknown is None:
        return ""
    name, written = unknown[1], set(re.findall(r"\w+", statement))
    columns = sorted({column for table, names in tables.items() if table in written for column in names})
    parts = [column for column in columns if len(name) >= PART and name in column]
    close = difflib.get_close_matches(name, columns, n=OFFERED, cutoff=0.7)
    offered = list(dict.fromkeys([*close, *sorted(parts, key=len)]))[:OFFERED]
    return did_you_mean(offered)
