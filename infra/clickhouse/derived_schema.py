"""Parts of ClickHouse's schema that follow from tables in the code, or from other columns: no migration repeats them.

The query that fills `devices_per_minute` follows from the table of counters: a migration has its text, as the table of
later counters must not change what an older migration does, and a test compares the two. `drumline migrate` sets
comments: a view of the newest versions, and what feeds a rollup, have the comments of their table. Values of `cause`
and `detail` are those of the guidance, and counters of a GPU mean what their table says.
"""

from __future__ import annotations

from collections.abc import Mapping

from drumline.infra.clickhouse.client import Client, rows
from drumline.infra.guidance.causes import CAUSES, OK
from drumline.schemas.counters import COUNTERS, Rolled

#: Table -> column -> comment.
Comments = Mapping[str, Mapping[str, str]]
#: What the rollup has besides counters: whose samples these are, and what is no maximum, minimum or mean.
_FIRST = """\
    job,
    run,
    toDateTime(toStartOfMinute(time), 'UTC') AS minute,
    host,
    gpu_index,
    gpu_uuid,
    anyLast(s.rank) AS rank,
    count() AS samples,
    groupBitOr(toUInt64(ifNull(s.throttle_reasons, 0))) AS throttle_reasons,
    groupUniqArray(assumeNotNull(s.xid)) FILTER (WHERE s.xid > 0) AS xids,
    max(s.lost) AS lost,
    max(published) AS last_published"""
#: Function of a column of the rollup -> its SQL, and how a reader goes on: a mean is kept as its parts.
_WRITTEN = {"avg": "avgState", "max": "max", "min": "min"}
_READ = {"avg": "avgMerge", "max": "max", "min": "min"}


def device_rollup() -> str:
    """Return the SELECT, with {database}: columns by name, in any order."""
    parts = [
        f"    {_WRITTEN[rolled.function]}(s.{counter.name}) AS {rolled.column or counter.name}"
        for counter in COUNTERS
        for rolled in counter.rolled
    ]
    columns = ",\n".join([_FIRST, *parts])
    keys = "job, run, minute, host, gpu_index, gpu_uuid"
    return f"SELECT\n{columns}\nFROM {{database}}.device_samples AS s\nGROUP BY {keys}"


def value_of(name: str, rolled: Rolled) -> str:
    """Return SQL of the value of a counter over many rows of the rollup."""
    return f"{_READ[rolled.function]}({rolled.column or name})"


def rollup_comments() -> dict[str, str]:
    """Return the comments of the rollup's columns."""
    return {
        rolled.column or counter.name: f"{counter.meaning}; {_READ[rolled.function]}"
        for counter in COUNTERS
        for rolled in counter.rolled
    }


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
        if differing := {name: right[name] for name, text in columns.items() if (right.get(name) or text) != text}:
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
