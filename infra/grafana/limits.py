"""Limits of alert rules that hold for some jobs only, by name or label: rows of `alert_limits` (`drumline limits`).

A rule compares a number with one limit. So where a job has a limit of its own, its number is moved by the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from drumline.infra.grafana.thresholds import (
    BANDWIDTH_RATIO,
    DROPPED_ROWS,
    HUNG_S,
    IDLE_PERCENT,
    LAG_S,
    PAGEABLE_SHARE,
    SILENT_S,
    STALLED_S,
    THROTTLED_MINUTES,
    THROTTLED_OF,
    WARNING,
)


@dataclass(frozen=True, slots=True)
class Limit:
    """Names a limit. `default`: for jobs without a row; `meaning` ends with the unit.

    below: the alert fires below it, so 0 is no alert; else above it, and infinity is none.
    least: smaller ones would change nothing. most: what is measured is never larger, so the alert would be off.
    """

    name: str
    default: float
    meaning: str
    below: bool = False
    least: float = 0.0
    most: float = math.inf


STRAGGLER = Limit(
    "straggler_share", WARNING, "share of the job's time that a straggler costs at least; 0.04 to 1", least=WARNING,
    most=1.0,
)  # fmt: skip
STALLED = Limit("stalled_s", STALLED_S, "least time without a step, 300 or more; s", least=STALLED_S)
BANDWIDTH = Limit(
    "bandwidth_ratio", BANDWIDTH_RATIO, "bandwidth of collectives against before; 0 to 1", below=True, most=1.0
)
PAGEABLE = Limit("pageable_share", PAGEABLE_SHARE, "share of a rank's time in pageable copies; 0 to 1", most=1.0)
LAG = Limit("lag_s", LAG_S, "time by which results are behind; s")
SILENT = Limit("silent_s", SILENT_S, "time without a report of a rank; s")
HUNG = Limit("hung_s", HUNG_S, f"least time for which a hung job stands still, {HUNG_S:g} or more; s", least=HUNG_S)
THROTTLED = Limit(
    "throttled_minutes", THROTTLED_MINUTES,
    f"minutes of the last {THROTTLED_OF} in which heat or a power fault slows a GPU down; 0 to {THROTTLED_OF}",
    most=float(THROTTLED_OF),
)  # fmt: skip
IDLE = Limit(
    "idle_percent", IDLE_PERCENT, "least utilisation of a GPU that a job holds; 0 to 100", below=True, most=100.0
)
DROPPED = Limit("dropped_rows", DROPPED_ROWS, "rows of a topic that a job may lose in 10 minutes")
LIMITS = (STRAGGLER, HUNG, STALLED, BANDWIDTH, PAGEABLE, THROTTLED, IDLE, LAG, DROPPED, SILENT)
#: Stands for infinity in differences: Grafana's JSON has none.
_NEVER = 1e15

#: SQL that matches `l.job`, where * stands for any text, and nothing else does.
_PATTERN = r"replaceAll(replaceRegexpAll(l.job, '([\\\\%_])', '\\\\\\1'), '*', '%')"


def limits_of_jobs(limit: Limit, keys: str = "job, run") -> str:
    """Return SQL with the limit of each run (or `keys`) that has one of its own: keys, own_limit (a join has NULL).

    The closest row counts: one that names a job and a label, then one that names a job, then a label; then the newest.
    A job without its run has the labels of its newest process. Nothing but `alert_limits` is read while that has no
    row.
    """
    return f"""
        SELECT {", ".join(f"r.{key} AS {key}" for key in keys.split(", "))},
            toNullable(argMax(l.value, (l.job != '*', l.label != '', l.changed))) AS own_limit
        FROM (
            SELECT {keys}, argMax(p.labels, p.published) AS labels FROM processes AS p
            WHERE (SELECT count() FROM alert_limits WHERE name = '{limit.name}') > 0 GROUP BY {keys}
        ) AS r CROSS JOIN (SELECT * FROM alert_limits WHERE name = '{limit.name}') AS l
        WHERE r.job LIKE {_PATTERN}
            AND (l.label = '' OR arrayExists((name, text) -> concat(name, '=', text) = l.label,
                mapKeys(r.labels), mapValues(r.labels)))
        GROUP BY {keys}
    """


def moved(statement: str, limit: Limit, keys: str = "job, run") -> str:
    """Return the statement with `value` moved so that a job's own limit counts as the rule's."""
    return f"""
        SELECT * EXCEPT (value, own_limit),
            value + if(own_limit IS NULL, 0, {limit.default!r} - least(assumeNotNull(own_limit), {_NEVER})) AS value
        FROM ({statement}) AS whole LEFT JOIN ({limits_of_jobs(limit, keys)}) AS own USING ({keys})
    """
