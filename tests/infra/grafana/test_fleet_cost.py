"""Cost of the statements of alert rules where a day of 2,000 active jobs of 8 ranks is stored."""

import time

import pytest
from support import migrated_database

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.grafana.limits import LIMITS
from drumline.infra.grafana.provisioning.rules import rules
from drumline.lab.bench.grafana_macros import PanelRequest, expand_alert

pytestmark = [pytest.mark.long, pytest.mark.stack, pytest.mark.timeout(1200)]
JOBS, PART, RANKS, DAY_S = 2000, 500, 8, 86_400
#: Longest that a statement may take on a machine that is busy with other tests; on two idle cores none takes a second.
LONGEST_S = 3.0
#: A minute's rows in the last hour (older by the day: every hour), as offsets from the end; s.
RECENT = "arrayConcat(range(30, 3600, 60), range(3630, 86400, 3600))"
RUN_TOPICS = ("gpu.process.v1", "gpu.step.v1", "gpu.lateness.v1", "gpu.collective.v1", "gpu.kernel.v1",
              "gpu.kernel-frequency.v1")  # fmt: skip


def fill(client, now, first, count):
    """A day of a part of the fleet, written into the tables that rules read."""
    end, keys = f"toDateTime({now}, 'UTC')", "concat('job-', toString(j)) AS job, 'r1' AS run"
    jobs = f"FROM (SELECT number AS j FROM numbers({first}, {count})) AS fleet"
    numbers = f"numbers({first * RANKS}, {count * RANKS})"
    ranks = f"FROM (SELECT intDiv(number, {RANKS}) AS j, number % {RANKS} AS r FROM {numbers}) AS fleet"
    host = "concat('node-', toString(j)) AS host"
    day = f"ARRAY JOIN range(30, {DAY_S}, 60) AS ago"
    recent = f"ARRAY JOIN {RECENT} AS ago"
    at = f"toDateTime64({end} - toIntervalSecond(ago), 9, 'UTC')"
    uuid = "concat('GPU-', toString(j), '-', toString(r)) AS gpu_uuid"
    into = {
        "processes_versions (job, run, rank, host, process_id, gpu_index, gpu_uuid, policy, labels, start, published)":
            f"SELECT {keys}, r, {host}, concat(toString(j), '-', toString(r)), r, {uuid}, 'on: always', "
            f"map('team', concat('team-', toString(j % 20)), 'user', concat('user-', toString(j % 300))), "
            f"{end} - {DAY_S}, {end} - 5 {ranks}",
        "stragglers_versions (job, run, first_step, last_step, rank, host, window_start, window_end, severity, state, "
        "cause, lost_share, gpu_seconds_lost, steps_used, published)":
            f"SELECT {keys}, {DAY_S} - ago, {DAY_S} - ago + 59, if(r = 0, -1, r), {host}, {at} - 60, {at}, "
            f"if(r = 3 AND j % 50 = 0, 3, 0), if(r = 3 AND j % 50 = 0, 'critical', 'ok'), "
            f"if(r = 3 AND j % 50 = 0, 'slow_copy', 'ok'), 0.2, 1, 60, {at} {ranks} {recent}",
        "hangs_versions (job, run, episode, revision, rank, host, state, reason, start, time, published)":
            f"SELECT {keys}, 1, 1, -1, '', 'over', '', {end} - 7200, {end} - 7000, {end} - 7000 {jobs}",
        "devices_per_minute (job, run, minute, host, gpu_index, gpu_uuid, rank, samples, util_gpu, throttle_reasons)":
            f"SELECT {keys}, toStartOfMinute({at}) AS minute, {host}, r, {uuid}, r, 6, "
            f"avgState(toNullable(toInt64(90))), 0 {ranks} {recent} GROUP BY j, r, ago",
        "memcpys_per_minute (job, run, minute, rank, kind, src_kind, dst_kind, host, copies, bytes, busy_ns)":
            f"SELECT {keys}, toStartOfMinute({at}), r, 1, 2, 3, {host}, 100, 1000000, 1000000 {ranks} {recent}",
        "ranks_per_second (job, run, rank, second, host, launches, gpu_ns)":
            f"SELECT {keys}, r, toDateTime({at}) - second, {host}, 1000, 900000000 {ranks} {recent} "
            "ARRAY JOIN range(0, 60, 20) AS second",
        "collectives (job, run, rank, host, start, duration_ns, communicator, operation, bytes, step, ordinal)":
            f"SELECT {keys}, r, {host}, {at} - second, 1000000 + r, toString(j), 'AllReduce', 8388608, {DAY_S} - ago, "
            f"second {ranks} {recent} ARRAY JOIN range(0, 60, 30) AS second",
        "steps (job, run, rank, host, step, start, duration_ns)":
            f"SELECT {keys}, r, {host}, {DAY_S} - ago, {at}, 60000000000 {ranks} {recent}",
    }  # fmt: skip
    for topic in RUN_TOPICS:
        clickhouse.command(
            client,
            "INSERT INTO records_per_minute (job, run, minute, last_published, time_max, records, rows, topic) "
            f"SELECT {keys}, toStartOfMinute({at}), {at} + 25, {at} + 25, 6, 1000, '{topic}' {jobs} {day}",
        )
    for columns, statement in into.items():
        clickhouse.command(client, f"INSERT INTO {columns} {statement}")


def set_limits(client):
    """A limit of each name for a tenth of the jobs, so that all are looked up."""
    limits = ", ".join(
        f"('{limit.name}', 'job-1*', 'team=team-1', {max(limit.least, 10)}, now64(3))" for limit in LIMITS
    )
    clickhouse.command(client, f"INSERT INTO alert_limits_versions (name, job, label, value, changed) VALUES {limits}")


def cost(client, statement):
    """Time of the fastest of three runs, and rows read."""
    times, read = [], 0
    for _ in range(3):
        begin = time.monotonic()
        answer = client.query(statement)
        times.append(time.monotonic() - begin)
        read = int(answer.summary.get("read_rows", 0))
    return min(times), read, len(answer.result_rows)


def test_no_statement_of_a_rule_takes_seconds(clean_stack, capsys):
    settings = clean_stack
    migrated_database.create(settings)
    database = settings.clickhouse.database
    now = int(time.time())
    client = clickhouse.connect(settings, database=database)
    for first in range(0, JOBS, PART):
        fill(client, now, first, PART)
    set_limits(client)
    reader = clickhouse.connect(settings, reader=True, database=database)
    costs = []
    for rule in rules():
        for values in rule.values:
            at = PanelRequest((now - rule.range_s) * 1000, (now - rule.until_s) * 1000)
            costs.append((*cost(reader, expand_alert(values.sql, at)), f"{rule.uid} {values.ref}"))
    costs.sort(reverse=True)
    with capsys.disabled():
        print()
        for seconds, read, rows, name in costs:
            print(f"{name:<36} {seconds * 1000:>7.0f} ms {read:>12,} rows read, {rows:,} returned")
    assert costs[0][0] < LONGEST_S, costs[0]
