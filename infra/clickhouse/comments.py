"""Comments of columns that other places state already: no migration repeats them, `drumline migrate` sets them.

A view of the newest versions, and what feeds a rollup, have the comments of their table. Values of `cause` and `detail`
are those of the guidance, and counters of a GPU mean what their table says.
"""

from __future__ import annotations

from collections.abc import Mapping

from drumline.infra.clickhouse.client import Client, rows
from drumline.infra.clickhouse.device_rollup import rollup_comments
from drumline.infra.guidance.causes import CAUSES, OK
from drumline.schemas.gpu_counters import COUNTERS

#: Table -> column -> comment.
Comments = Mapping[str, Mapping[str, str]]


def cause_comments() -> dict[str, str]:
    """Return the comments of `cause` and `detail` of verdicts: all their values."""
    details: dict[str, list[str]] = {entry.cause: [] for entry in CAUSES}
    for entry in CAUSES:
        details[entry.cause] += [entry.detail] * bool(entry.detail)
    finer = (f"{cause}: {', '.join(names)}" for cause, names in details.items() if names)
    return {"cause": f"cause: {', '.join((OK, *details))}", "detail": f"finer cause; {'; '.join(finer)}"}


def wanted_comments(now: Comments) -> dict[str, dict[str, str]]:
    """Return the comments that differ from what they should be. `now`: those of a database, in order of its columns."""
    stated = {
        "stragglers_versions": cause_comments(),
        "device_samples": {counter.name: counter.comment for counter in COUNTERS},
        "devices_per_minute": rollup_comments(),
    }
    full = {table: {**columns, **stated.get(table, {})} for table, columns in now.items()}
    wanted: dict[str, dict[str, str]] = {}
    for table, columns in now.items():
        source = table.partition("_from_")[0] if "_from_" in table else f"{table.removesuffix('_now')}_versions"
        right = full.get(source, full[table])
        if differing := {name: right[name] for name, text in columns.items() if right.get(name, text) != text}:
            wanted[table] = differing
    return wanted


def comment_changes(client: Client, database: str) -> list[tuple[str, str]]:
    """Return (description, statement) for every table, view or feed with comments that differ."""
    described = rows(
        client,
        "SELECT table, name, comment FROM system.columns WHERE database = {d:String} ORDER BY table, position",
        {"d": database},
    )
    now: dict[str, dict[str, str]] = {}
    for row in described:
        now.setdefault(str(row["table"]), {})[str(row["name"])] = str(row["comment"])
    changes = []
    for table, comments in wanted_comments(now).items():
        parts = [f"COMMENT COLUMN `{name}` {_quoted(text)}" for name, text in comments.items()]
        statement = f"ALTER TABLE {database}.{table} {', '.join(parts)}"
        changes.append((f"{table}: comments of {len(comments)} columns", statement))
    return changes


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
