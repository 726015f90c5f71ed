"""Scopes: in which part of the program is the host, and for how long?"""

from __future__ import annotations

from drumline.infra.grafana.model import Dashboard, Field, Panel, PanelQuery
from drumline.infra.grafana.variables import JOB, LABELLED, MARKS, RANKS, RUN

#: Ranges read, the first of the time range: their tree is built in memory.
TAKEN = 20_000
#: Deeper scopes are counted into their ancestors only.
DEEP = 8
_RANGES = "FROM ranges WHERE @job AND @run AND @ranks AND @start"
#: About when the first TAKEN ranges are over, so that those after it are neither read nor sorted.
_UNTIL = f"""
SELECT min(start) + toIntervalNanosecond(toInt64(
    dateDiff('nanosecond', min(start), max(start)) * least(1, {TAKEN} / greatest(count(), 1)))) {_RANGES}
"""
#: A row per path of scopes: numbers in names are one name ("step 12" and "step 13" are "step #").
_TAKEN = f"""
SELECT process_id, id, parent_id, depth, start, duration_ns, replaceRegexpAll(name, '[0-9]+', '#') AS short
{_RANGES} AND start <= ({_UNTIL}) AND depth < {DEEP} ORDER BY start LIMIT {TAKEN}
"""
_PATHS = f"""
WITH RECURSIVE tree AS (
    SELECT process_id, id, duration_ns, [short] AS path FROM ({_TAKEN}) WHERE depth = 0
    UNION ALL
    SELECT t.process_id AS process_id, t.id AS id, t.duration_ns AS duration_ns, arrayPushBack(tree.path,
        t.short) AS path
    FROM ({_TAKEN}) AS t INNER JOIN tree ON t.process_id = tree.process_id AND t.parent_id = tree.id
    WHERE t.depth > 0 AND length(tree.path) < {DEEP}
)
SELECT path, count() AS times, sum(duration_ns) AS total_ns, max(duration_ns) AS longest_ns FROM tree GROUP BY path
"""
FLAME = Panel(
    "flamegraph",
    "Host time by scope",
    f"NVTX ranges of the chosen ranks, nested as they were: width is host time. The first {TAKEN:,} of the time range; "
    "one whose parent began before it is left out.",
    PanelQuery(
        f"""
        SELECT level, label, value, self FROM (
            SELECT path, length(path) AS level, path[-1] AS label, toInt64(total_ns) AS value, toInt64(greatest(
                total_ns - arraySum(arrayMap(k -> k.2, arrayFilter(k -> k.1 = path, children))), 0)) AS self
            FROM (
                SELECT path, total_ns, groupArray((arraySlice(path, 1, length(path) - 1), total_ns)) OVER () AS children
                FROM ({_PATHS})
            )
            UNION ALL
            SELECT emptyArrayString() AS path, 0 AS level, 'all scopes' AS label, toInt64(sum(duration_ns)) AS value,
                0 AS self
            FROM ({_TAKEN}) WHERE depth = 0 HAVING value > 0
        ) ORDER BY path
        """,
        "level:n label:s value:n self:n",
        "table",
    ),
    unit="ns",
    width=24,
    height=12,
    empty="no scopes in this time range: mark them with NVTX or drumline.scope()",
)
TABLE = Panel(
    "table",
    "Scopes",
    f"By path from the outermost scope, of the first {TAKEN:,} ranges. A step: host time in a step of one rank.",
    PanelQuery(
        f"""
        SELECT arrayStringConcat(path, ' / ') AS scope, times, total_ns, total_ns / times AS mean_ns, longest_ns,
            total_ns / greatest((
                SELECT count() FROM steps
                WHERE @job AND @run AND @ranks AND @start AND start <= (SELECT max(start) FROM ({_TAKEN}))
            ), 1) AS per_step_ns
        FROM ({_PATHS}) ORDER BY total_ns DESC LIMIT 200
        """,
        "scope:s times:n total_ns:n mean_ns:n longest_ns:n per_step_ns:n",
        "table",
    ),
    width=24,
    height=10,
    fields={
        "scope": Field(width=420, fills=True),
        "total_ns": Field("ns"),
        "mean_ns": Field("ns"),
        "longest_ns": Field("ns"),
        "per_step_ns": Field("ns", "A step"),
    },
    empty="no scopes in this time range",
)
BY_TIME = Panel(
    "timeseries",
    "Mean duration by scope",
    "Of the ten names with most host time, however nested; numbers in names are one name.",
    PanelQuery(
        f"""
        SELECT time, scope, mean FROM (
            SELECT $__timeInterval_ms(start) AS time, replaceRegexpAll(name, '[0-9]+', '#') AS scope,
                avg(duration_ns) AS mean,
                sum(sum(duration_ns)) OVER (PARTITION BY scope) AS all_ns
            FROM (SELECT start, name, duration_ns {_RANGES})
            GROUP BY time, scope
        ) QUALIFY dense_rank() OVER (ORDER BY all_ns DESC) <= 10 ORDER BY time, scope
        """,
        "time:t scope:s mean:n",
    ),
    unit="ns",
    series="{scope}",
    min_interval="1s",
    empty="no scopes in this time range",
)
BY_RANK = Panel(
    "table",
    "Outermost scopes by rank",
    "A rank that is longer than the others in one scope shows where in the program it loses time.",
    PanelQuery(
        f"""
        SELECT rank, any(host) AS host, replaceRegexpAll(name, '[0-9]+', '#') AS scope, count() AS times,
            avg(duration_ns) AS mean_ns,
            mean_ns / median(mean_ns) OVER (PARTITION BY scope) AS to_median
        FROM (SELECT rank, host, name, duration_ns {_RANGES} AND depth <= 1)
        GROUP BY rank, scope ORDER BY to_median DESC LIMIT 500
        """,
        "rank:n host:s scope:s times:n mean_ns:n to_median:n",
        "table",
    ),
    fields={
        "rank": Field(decimals=0),
        "scope": Field(width=170, fills=True),
        "mean_ns": Field("ns"),
        "to_median": Field("none", "To other ranks", decimals=3),
    },
    empty="no scopes in this time range",
)

SCOPES = Dashboard(
    "drumline-scopes",
    "Scopes",
    "In which part of the program is the host, and for how long? From NVTX ranges and drumline.scope().",
    "rank",
    ((FLAME,), (TABLE,), (BY_TIME, BY_RANK)),
    (*LABELLED, JOB, RUN, RANKS),
    MARKS,
    start="now-5m",
    refresh="",
)
