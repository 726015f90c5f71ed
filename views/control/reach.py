"""Jobs that a request to agents reaches, as far as ClickHouse knows them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from fnmatch import fnmatchcase

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.settings import Settings

#: A live process reports every 10 s; a sink may be some seconds behind; s.
REPORTED_S = 60
#: Longest wait for the answer: somebody waits to set a policy, which does not need it; s.
TIMEOUT_S = 5
#: Jobs that a sentence names.
NAMED = 3
_RUNNING = f"""
SELECT job, uniqExact(rank) AS ranks FROM processes AS p
WHERE p.published > now64(3) - INTERVAL {REPORTED_S} SECOND AND job != '' GROUP BY job ORDER BY job
"""


def running_jobs(settings: Settings, pattern: str) -> dict[str, int] | None:
    """Return job -> ranks of the jobs that run now and match a pattern as in shells; None if ClickHouse does not tell.

    Blocks for up to TIMEOUT_S.
    """
    try:
        client = clickhouse.connect(settings, reader=True, timeout_s=TIMEOUT_S, database=settings.clickhouse.database)
        with closing(client):
            rows = clickhouse.rows(client, _RUNNING)
    except clickhouse.ClickHouseFailed:
        return None
    return {row["job"]: row["ranks"] for row in rows if fnmatchcase(row["job"], pattern)}


def reach(jobs: Mapping[str, int] | None, pattern: str) -> str:
    """Return whom a request to all jobs of a pattern reaches, as the object of a sentence."""
    if jobs is None:
        return f"every job named {pattern!r} (how many run is not known: ClickHouse does not answer)"
    if not jobs:
        return f"every job named {pattern!r} (none of them has reported to ClickHouse within {REPORTED_S} s)"
    names = ", ".join([*list(jobs)[:NAMED], *([f"{len(jobs) - NAMED} more"] if len(jobs) > NAMED else [])])
    return f"{len(jobs)} running jobs with {sum(jobs.values())} ranks ({names}), and those that begin meanwhile"
