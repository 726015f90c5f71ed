"""Machines that fail again over 20 replayed jobs: the one with the bad UUID is first, and no victim is named.

Verdicts, processes and samples are those of a replayed recording; UUIDs and causes are changed as tests state.
"""

import pytest
from support.grafana_stack import JOB, stored

from drumline.infra.clickhouse.client import rows
from drumline.infra.clickhouse.queries import queries

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
JOBS = 20
BAD = "GPU-bad"


@pytest.fixture(scope="module")
def db(stack):
    """The recorded job as 20 jobs on GPUs of their own, but for rank 3, which is always on the bad one.

    In each, rank 3 is late for its clock; in three of them another rank is late once, for its clock or by its code.
    """
    stored_job = stored(stack, "gpu_offenders")
    for number in range(JOBS):
        job, elsewhere = f"job-{number}", f"concat(gpu_uuid, '-{number}')"
        place = {"gpu_uuid": f"if(rank = 3, '{BAD}', {elsewhere})", "host": f"if(rank = 3, 'node-bad', 'h{number}')"}
        stored_job.copy("processes_versions", job, **place)
        slow = {"cause": "'slow_compute'", "detail": "'throttled'"}
        stored_job.copy("stragglers_versions", job, "rank = 3", **place, **slow)
        if number < 2:
            stored_job.copy("stragglers_versions", job, "rank = 2", **place, **slow)
        if number == 2:
            code = {"cause": "'host_stall'", "detail": "'garbage_collection'"}
            stored_job.copy("stragglers_versions", job, "rank = 1", **place, **code)
    return stored_job


def offenders(db, **given):
    query = queries()["offenders"]
    return rows(db.reader, query.sql, query.values(given))


def test_the_bad_gpu_of_20_jobs_is_first_and_a_victim_never_is_one(db):
    listed = [row for row in offenders(db) if row["host"] not in ("node-a", "node-b")]
    first = listed[0]
    assert (first["gpu_uuid"], first["host"], int(first["faulty_runs"]), int(first["runs"])) == (
        BAD,
        "node-bad",
        20,
        20,
    )
    assert first["causes"] == ["slow_compute, throttled"]
    assert {row["host"] for row in listed} == {"node-bad", "h0", "h1"}, "neither a victim nor the cause of a program"
    assert {int(row["faulty_runs"]) for row in listed[1:]} == {1}
    late = rows(db.reader, "SELECT uniqExact(host) AS n FROM processes WHERE job LIKE 'job-%'")[0]["n"]
    assert int(late) == JOBS + 1, "there were victims in each"


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
