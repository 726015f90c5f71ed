"""Machines that fail again over 20 replayed jobs: the one with the bad UUID is first, and no victim is named.

Verdicts, processes and samples are those of a replayed recording; UUIDs and causes are changed as tests state.
"""

import pytest
from support.grafana_stack import JOB
from support.offender_jobs import BAD_GPU, BAD_HOST, JOBS, offender_jobs

from drumline.infra.clickhouse.client import rows
from drumline.infra.clickhouse.queries import queries
from drumline.infra.grafana.dashboards.devices import OFFENDERS
from drumline.lab.bench.grafana_macros import ALL_VALUES, PanelRequest

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def db(stack):
    return offender_jobs(stack)


def offenders(db, **given):
    query = queries()["offenders"]
    return rows(db.reader, query.sql, query.values(given))


def test_the_bad_gpu_of_20_jobs_is_first_and_a_victim_never_is_one(db):
    listed = [row for row in offenders(db) if row["host"] not in ("node-a", "node-b")]
    first = listed[0]
    assert (first["gpu_uuid"], first["host"], int(first["faulty_runs"]), int(first["runs"])) == (
        BAD_GPU,
        BAD_HOST,
        JOBS,
        JOBS,
    )
    assert first["causes"] == ["slow_compute, throttled"]
    assert {row["host"] for row in listed} == {BAD_HOST, "h0", "h1"}, "neither a victim nor the cause of a program"
    assert {int(row["faulty_runs"]) for row in listed[1:]} == {1}
    late = rows(db.reader, "SELECT uniqExact(host) AS n FROM processes WHERE job LIKE 'job-%'")[0]["n"]
    assert int(late) == JOBS + 1, "there were victims in each"


def test_the_panel_of_the_dashboard_has_the_bad_gpu_first(db):
    variables = {"host": ALL_VALUES, "job": ALL_VALUES}
    at = PanelRequest(int(db.first * 1000) - 1000, int(db.last * 1000) + 60_000, variables=variables)
    [first, *_] = db.run_panel(OFFENDERS.query.sql, at)[1]
    assert first[:5] == (BAD_HOST, BAD_GPU, JOBS, JOBS, "slow_compute, throttled")


def test_xids_losses_and_failed_checks_count_without_a_verdict(db):
    sample = {"host": "'node-x'", "gpu_uuid": "'GPU-x'"}
    for xid in (31, 79):
        db.copy("device_samples", "xids", "gpu_index = 1 LIMIT 1", xid=f"toInt64({xid})", **sample)
    db.copy("device_samples", "", "gpu_index = 1 LIMIT 1", lost="toInt64(1)", **sample)
    db.copy("device_samples", "app", "gpu_index = 1 LIMIT 1", xid="toInt64(31)", host="'node-y'", gpu_uuid="'GPU-y'")
    db.writer.command(
        "INSERT INTO checks (host, gpu_uuid, serial, name, state, time) VALUES "
        "('node-x', 'GPU-x', '165', 'NVLink', 'fail', now64(9)), ('node-x', 'GPU-x', '165', 'memory', 'ok', now64(9))"
    )
    [row] = offenders(db, host="node-x")
    assert (row["serial"], row["xids"], int(row["losses"]), row["failed_checks"]) == (
        "165",
        [79],
        1,
        ["NVLink"],
    )
    assert int(row["faulty_runs"]) == 1, "the run of the XID"
    assert offenders(db, host="node-y") == [], "XID 31 is the program's"


def test_the_recording_itself_names_only_late_ranks(db):
    """Its copies are from pageable memory, its stalls and extra work are the program's: no machine is at fault."""
    names = {row["gpu_uuid"] for row in offenders(db) if row["host"] in ("node-a", "node-b")}
    late = rows(db.reader, f"SELECT gpu_uuid FROM stragglers WHERE job = '{JOB}' AND rank >= 0 AND state = 'critical'")
    assert names <= {row["gpu_uuid"] for row in late}
