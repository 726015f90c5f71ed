"""Faults and notices in ClickHouse. Calls block; they raise TransientError (retry later) or PermanentError."""

from __future__ import annotations

from dataclasses import asdict

from drumline.infra.clickhouse.client import Client, command, rows
from drumline.views.offenders.notices import DueLimits, Fault, Notice, due

_SINCE = "fromUnixTimestamp({now:UInt32}) - INTERVAL {days:UInt32} DAY"
_FAULTS = f"""
SELECT host, gpu_uuid, job, run, kind, name, toUnixTimestamp64Nano(first_time) AS first_ns,
    toUnixTimestamp64Nano(last_time) AS last_ns, gpu_seconds_lost
FROM faults WHERE (last_time >= {_SINCE} OR kind = 'lost') AND host != '' ORDER BY host, first_time
"""
_RUNS = f"""
SELECT toString(host) AS host, uniqExact(job, run) AS runs FROM processes_versions
WHERE job != '' AND published >= {_SINCE} AND host IN {{hosts:Array(String)}} GROUP BY host
"""
_SERIALS = """
SELECT toString(c.gpu_uuid) AS gpu_uuid, argMax(toString(c.serial), c.time) AS serial FROM checks AS c
WHERE c.serial != '' AND c.host IN {hosts:Array(String)} GROUP BY gpu_uuid
"""
_COVERED = "SELECT host, faults FROM offender_notices WHERE host IN {hosts:Array(String)}"
_UNSENT = "SELECT toString(id) AS id, host, faults, body FROM offender_notices WHERE sent = 0 ORDER BY made, id"
_WRITE = """
INSERT INTO offender_notices_versions (host, id, faults, body, made, sent, changed)
SELECT {host:String}, toUUID({id:String}), {faults:Array(String)}, {body:String}, now64(3, 'UTC'), {sent:UInt8},
    now64(3, 'UTC')
"""


def new_notices(client: Client, limits: DueLimits, now_s: float) -> list[Notice]:
    """Return the notices that are due and not stored yet. `now_s`: end of the days that count; s since the epoch."""
    times = {"days": limits.days, "now": int(now_s)}
    faults = [Fault(**row) for row in rows(client, _FAULTS, times)]
    values = {**times, "hosts": sorted({fault.host for fault in faults})}
    if not faults:
        return []
    runs = {row["host"]: int(row["runs"]) for row in rows(client, _RUNS, values)}
    serials = {row["gpu_uuid"]: row["serial"] for row in rows(client, _SERIALS, values)}
    covered: dict[str, set[str]] = {}
    for row in rows(client, _COVERED, values):
        covered.setdefault(row["host"], set()).update(row["faults"])
    return due(faults, runs, serials, covered, limits, int(now_s - limits.days * 86_400) * 10**9)


def unsent(client: Client) -> list[Notice]:
    """Return the notices that no receiver has taken, oldest first."""
    return [Notice(row["id"], row["host"], tuple(row["faults"]), row["body"]) for row in rows(client, _UNSENT)]


def write(client: Client, notice: Notice, *, sent: bool) -> None:
    """Store a notice before it is sent, or that it was taken."""
    command(client, _WRITE, {**asdict(notice), "faults": list(notice.faults), "sent": int(sent)})
