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

    `amount`: the column whose sum is the number of rows of `topic`, or of ledger rows (None). `clock`: when they
    happened; of records, when they were published. `by`: the third column, after job and run, by which rollup and
    ledger are compared; run where the rollup has none.
    """

    name: str
    amount: str
    topic: Topic | None
    clock: str
    by: str


ROLLUPS = (
    Rollup("kernels_per_minute", "launches", Topic.KERNEL, "minute", "rank"),
    Rollup("ranks_per_second", "launches", Topic.KERNEL, "second", "rank"),
    Rollup("steps_per_second", "steps", Topic.STEP, "second", "run"),
    Rollup("memcpys_per_minute", "copies", Topic.MEMCPY, "minute", "rank"),
    Rollup("devices_per_minute", "samples", Topic.DEVICE, "minute", "host"),
    Rollup("records_per_minute", "records", None, "minute", "topic"),
)


def comparison(rollup: Rollup, database: str, where: str, retention: RetentionSettings) -> str:
    """Return SQL that compares a rollup with the ledger, one row per job and run.

    Columns: `of_job`, `of_run`; `counted`: rows in the rollup; `wrong`: ranks (hosts, topics) that differ; of those,
    the `least` and `most` rows that the rollup should count, and what `it_counts`.

    Compares only what retention cannot have removed of either, with two hours' margin for merges: all, where no record
    is as old as that. Where some are, a rollup's row may count older and newer records together, so what happened since
    then is compared. A batch that lies on both sides of that time has an unknown number of rows there: hence `least`
    and `most`; otherwise they are equal.
    """
    days = [kept for name in ("ledger", rollup.name) if (kept := retention.of(name))]
    since = "toDateTime(0, 'UTC')"
    if days:
        since = f"toStartOfHour(now('UTC') - INTERVAL {min(days)} DAY) + INTERVAL 2 HOUR"
    if rollup.topic is None:
        which, rows, first, last = "(disposition != 'forgotten' OR error != '')", "1", "r.published", "r.published"
    else:
        which = f"topic = '{rollup.topic.value}' AND disposition = 'stored'"
        rows, first, last = "r.rows", "r.time_min", "r.time_max"
    by, amount = f"job, run, toString(r.{rollup.by}) AS part", f"r.{rollup.amount}"
    return (
        f"WITH (SELECT {since}) AS since, it < a OR it > b AS bad "
        "SELECT job AS of_job, run AS of_run, sum(it) AS counted, countIf(bad) AS wrong, "
        "sumIf(a, bad) AS least, sumIf(b, bad) AS most, sumIf(it, bad) AS it_counts FROM ("
        "SELECT job, run, part, min(oldest) >= since AS whole, if(whole, sum(wanted), sum(x)) AS a, "
        "if(whole, sum(wanted), sum(y)) AS b, if(whole, sum(has), sum(z)) AS it FROM ("
        f"SELECT {by}, min(r.published) AS oldest, sum({rows}) AS wanted, sumIf({rows}, {first} >= since) AS x, "
        f"sumIf({rows}, {last} >= since) AS y, toUInt64(0) AS has, toUInt64(0) AS z "
        f"FROM {database}.ledger AS r WHERE {which} AND {where} GROUP BY job, run, part UNION ALL "
        f"SELECT {by}, min(r.{RETENTION_CLOCK[rollup.name]}), 0, 0, 0, sum({amount}), "
        f"sumIf({amount}, r.{rollup.clock} >= since) "
        f"FROM {database}.{rollup.name} AS r WHERE {where} GROUP BY job, run, part"
        ") GROUP BY job, run, part) GROUP BY job, run"
    )
