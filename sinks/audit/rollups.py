"""Declare the rollups and build the query that checks that each counts every row once.

A rollup is compared with the ledger, whose rows the audit compares with the tables. So the tables are not read again,
and rollups and ledger outlive the raw rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from drumline.infra.clickhouse.retention import RETENTION_CLOCK
from drumline.infra.config.clickhouse_settings import RetentionSettings
from drumline.schemas.topics import Topic


@dataclass(frozen=True, slots=True)
class Rollup:
    """Declares one rollup for the audit.

    `amount`: the column whose sum is the number of rows of `topic`, or of ledger rows (None). `by`: the third column,
    after job and run, by which rollup and ledger are compared; run where the rollup has none. `filled`: tables from
    which a migration filled it; it lacks what they had no more.
    """

    name: str
    amount: str
    topic: Topic | None
    by: str
    filled: tuple[str, ...] = ()


ROLLUPS = (
    Rollup("kernels_per_minute", "launches", Topic.KERNEL, "rank"),
    Rollup("ranks_per_second", "launches", Topic.KERNEL, "rank"),
    Rollup("steps_per_second", "steps", Topic.STEP, "run", filled=("steps",)),
    Rollup("memcpys_per_minute", "copies", Topic.MEMCPY, "rank"),
    Rollup("devices_per_minute", "samples", Topic.DEVICE, "host"),
    Rollup("records_per_minute", "records", None, "topic"),
)


def comparison(rollup: Rollup, database: str, where: str, retention: RetentionSettings) -> str:
    """Return SQL that compares a rollup with the ledger, one row per job and run.

    Columns: `of_job`, `of_run`; `counted`: rows in the rollup; `wrong`: ranks (hosts, topics) that differ; of those,
    the `least` and `most` rows that the rollup should count, and what `it_counts`.

    Compares only what retention cannot have removed of either, with two hours' margin for merges. A batch that lies on
    both sides of that time has an unknown number of rows there: hence `least` and `most`; otherwise they are equal.
    """
    days = [kept for name in ("ledger", rollup.name, *rollup.filled) if (kept := int(getattr(retention, name)))]
    since = "toDateTime(0, 'UTC')"
    if days:
        since = f"toStartOfHour(now('UTC') - INTERVAL {min(days)} DAY) + INTERVAL 2 HOUR"
    if rollup.topic is None:
        which, least, most = "1", "countIf(published >= since)", "countIf(published >= since)"
    else:
        which = f"topic = '{rollup.topic.value}' AND disposition = 'stored'"
        least, most = "sumIf(r.rows, time_min >= since)", "sumIf(r.rows, time_max >= since)"
    by = f"job, run, toString(r.{rollup.by}) AS part"
    return (
        f"WITH (SELECT {since}) AS since, it < a OR it > b AS bad "
        "SELECT job AS of_job, run AS of_run, sum(it) AS counted, countIf(bad) AS wrong, "
        "sumIf(a, bad) AS least, sumIf(b, bad) AS most, sumIf(it, bad) AS it_counts "
        "FROM (SELECT job, run, part, sum(x) AS a, sum(y) AS b, sum(z) AS it FROM ("
        f"SELECT {by}, {least} AS x, {most} AS y, toUInt64(0) AS z FROM {database}.ledger AS r "
        f"WHERE {which} AND {where} GROUP BY job, run, part UNION ALL "
        f"SELECT {by}, 0, 0, sum(r.{rollup.amount}) FROM {database}.{rollup.name} AS r "
        f"WHERE r.{RETENTION_CLOCK[rollup.name]} >= since AND {where} GROUP BY job, run, part"
        ") GROUP BY job, run, part) GROUP BY job, run"
    )
