"""Limits of alert rules that hold for some jobs only, by name or label: rows of `alert_limits` (`drumline limits`).

A rule compares a number with one limit. So where a job has a limit of its own, its number is scaled by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from drumline.infra.grafana.thresholds import BANDWIDTH_RATIO, LAG_S, PAGEABLE_SHARE, SILENT_S, STALLED_S, WARNING


@dataclass(frozen=True, slots=True)
class Limit:
    """Names a limit. `default`: for jobs without a row; `meaning` ends with the unit.

    below: the alert fires below it, so 0 is no alert; else above it, and infinity is none.
    least: smaller ones would change nothing.
    """

    name: str
    default: float
    meaning: str
    below: bool = False
    least: float = 0.0


STRAGGLER = Limit(
    "straggler_share", WARNING, "share of the job's time that a straggler costs at least; 0.04 to 1", least=WARNING
)
STALLED = Limit("stalled_s", STALLED_S, "least time without a step, 300 or more; s", least=STALLED_S)
BANDWIDTH = Limit("bandwidth_ratio", BANDWIDTH_RATIO, "bandwidth of collectives against before; 0 to 1", below=True)
PAGEABLE = Limit("pageable_share", PAGEABLE_SHARE, "share of a rank's time in pageable copies; 0 to 1")
LAG = Limit("lag_s", LAG_S, "time by which results are behind; s")
SILENT = Limit("silent_s", SILENT_S, "time without a report of a rank; s")
LIMITS = (STRAGGLER, STALLED, BANDWIDTH, PAGEABLE, LAG, SILENT)

#: SQL that matches `l.job`, where * stands for any text, and nothing else does.
_PATTERN = r"replaceAll(replaceRegexpAll(l.job, '([\\\\%_])', '\\\\\\1'), '*', '%')"


def limits_of_jobs(limit: Limit) -> str:
    """Return SQL with the limit of each run that has one of its own: job, run, own_limit (so that a join has NULL).

    The closest row counts: one that names a job and a label, then one that names a job, then a label; then the newest.
    Nothing but `alert_limits` is read while that has no row.
    """
    return f"""
        SELECT r.job AS job, r.run AS run,
            toNullable(argMax(l.value, (l.job != '*', l.label != '', l.changed))) AS own_limit
        FROM (
            SELECT job, run, any(labels) AS labels FROM processes
            WHERE (SELECT count() FROM alert_limits WHERE name = '{limit.name}') > 0 GROUP BY job, run
        ) AS r CROSS JOIN (SELECT * FROM alert_limits WHERE name = '{limit.name}') AS l
        WHERE r.job LIKE {_PATTERN}
            AND (l.label = '' OR arrayExists((name, text) -> concat(name, '=', text) = l.label,
                mapKeys(r.labels), mapValues(r.labels)))
        GROUP BY job, run
    """


def scaled(statement: str, limit: Limit) -> str:
    """Return the statement with `value` scaled so that a job's own limit counts as the rule's."""
    return f"""
        SELECT * EXCEPT (value, own_limit),
            if(own_limit IS NULL, value, value * {limit.default!r} / own_limit) AS value
        FROM ({statement}) AS whole LEFT JOIN ({limits_of_jobs(limit)}) AS own USING (job, run)
    """
