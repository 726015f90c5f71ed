"""SQL that all statements share: filters by variables of a dashboard, and tokens that stand for them.

SQL is written with tokens (`@job`, `@minute`, ...: `TOKENS`), so that the same filter reads the same everywhere.
"""

from __future__ import annotations

import re

from drumline.schemas.topics import TOPICS


def encoded(sql: str) -> str:
    """Return SQL of a variable's value for a name: letters, digits, `-._~` and %XX, whatever the name holds.

    No other character reaches Grafana's own formats (which leave backslashes, commas and `$` as they are), so values
    of one variable can be told apart in a list, and macros and URLs cannot see them.
    """
    return f"encodeURLComponent({sql})"


def typed(variable: str) -> str:
    """Return SQL of a variable's value. `percentencode` is the one format whose result cannot end a literal."""
    return f"decodeURLComponent('${{{variable}:percentencode}}')"


def chosen(variable: str) -> str:
    """Return SQL of the name that a query variable has as its one value (`encoded`; in alerts' links: `urlquery`)."""
    return f"decodeURLFormComponent({typed(variable)})"


def is_chosen(column: str, variable: str, cast: str = "{}") -> str:
    """Return the condition that a column is one of a variable's values, true where All are chosen.

    Several values come as `{a,b}`. A subquery, because ClickHouse prunes by it and not by an array that a lambda makes.
    cast: SQL of a value from its text.
    """
    return f"$__conditionalAll({column} IN (SELECT {_values(variable, cast)}), ${variable})"


def _values(variable: str, cast: str = "{}") -> str:
    return cast.format(f"decodeURLFormComponent(arrayJoin(splitByChar(',', trim(BOTH '{{}}' FROM {typed(variable)}))))")


def of_process(condition: str, variable: str, rows: str = "processes_versions", cast: str = "{}") -> str:
    """Return the condition that a run has a process with one of a variable's values, true where All are chosen."""
    runs = f"SELECT job, run FROM {rows} WHERE {condition} IN (SELECT {_values(variable, cast)})"
    return f"$__conditionalAll((job, run) IN ({runs}), ${variable})"


#: Labels of `drumline run --label KEY=VALUE`: one row for each.
LABELS = """(
SELECT job, run, published, arrayJoin(arrayMap((k, v) -> concat(k, '=', v), mapKeys(labels), mapValues(labels)))
    AS pair FROM processes_versions
)"""
_LABELLED = " AND ".join(
    of_process("pair", name, LABELS, cast)
    for name, cast in (("team", "concat('team=', {})"), ("user", "concat('user=', {})"), ("label", "{}"))
)


#: Parts of a step, by name: columns of `steps`.
STEP_PARTS = {"compute": "compute_ns", "copies": "copy_ns", "communication": "comm_exposed_ns", "idle": "idle_ns"}

#: token -> SQL. `$__conditionalAll(cond, $x)` is 1=1 where x is All.
#: Rollups are keyed by the start of a minute, so a range that begins inside one still needs that minute.
TOKENS: dict[str, str] = {
    "job": f"job = {chosen('job')}",
    "jobs": f"{is_chosen('job', 'job')} AND {_LABELLED}",
    "run": f"{is_chosen('run', 'run')} AND {_LABELLED}",
    "labelled": _LABELLED,
    "placed": of_process("host", "host"),
    "rank": f"rank = toInt32OrDefault({chosen('rank')}, toInt32(-1))",
    "ranks": is_chosen("rank", "rank", "toInt32OrDefault({}, toInt32(-2))"),
    "hosts": is_chosen("host", "host"),
    "start": "$__timeFilter_ms(start)",
    "window": "(window_end >= $__fromTime_ms AND window_start <= $__toTime_ms)",
    "minute": "(minute >= toStartOfMinute($__fromTime) AND minute <= $__toTime)",
    "second": "$__timeFilter(second)",
    "sample": "$__timeFilter_ms(time)",
    "published": "$__timeFilter_ms(published)",
    "attempt": "$__timeFilter_ms(attempt_start)",
    "span_s": "greatest(dateDiff('second', $__fromTime, $__toTime), 1)",
    "evaluated": "state != 'insufficient_data'",
    "produced": "topic NOT IN (" + ", ".join(f"'{spec.topic}'" for spec in TOPICS if spec.derived) + ")",
    "known": "severity >= 'ok'",
    "bad": "severity >= 'suspect'",
    "level": (
        "toInt8(transform(CAST(state AS String), ['ok', 'suspect', 'warning', 'critical', 'cleared'], [0,1,2,3,0], -1))"
    ),
}


def sql(text: str) -> str:
    """Return the statement with its tokens replaced, without indentation. Raises KeyError on an unknown token."""
    filled = re.sub(r"@(\w+)", lambda token: TOKENS[token[1]], text)
    return "\n".join(line.strip() for line in filled.strip().splitlines())
