"""The query that fills `devices_per_minute`, from the table of counters. A migration writes it as {device_rollup}."""

from __future__ import annotations

from drumline.schemas.gpu_counters import COUNTERS, Rolled

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
