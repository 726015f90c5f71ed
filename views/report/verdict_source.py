"""Chooses where the verdicts of one run are read: in the view `stragglers`, or in its table if it was evaluated once.

The view finds out for each row which evaluation is in force. To plan that costs ClickHouse as much as to read the rows
of thousands of ranks, and a page has a dozen such queries.
"""

from __future__ import annotations

import re

from drumline.views.report.data import Query, Row

_VIEW = re.compile(r"\bFROM stragglers\b( AS \w+)?")


def verdicts_of(query: Query, run: Row) -> Query:
    """Return `query` for statements on the verdicts of `run` alone; their rows are those of the view.

    run: with the columns of LABELS. The result is as safe for several threads as `query` is, and raises its errors.
    """
    if int(run.get("evaluations", 2)) > 1:
        return query
    return lambda sql, parameters: query(from_table(sql), parameters)


def from_table(sql: str) -> str:
    """Return a statement that reads the newest versions of verdicts, of every evaluation."""
    return _VIEW.sub(r"FROM stragglers_versions\1 FINAL", sql)
