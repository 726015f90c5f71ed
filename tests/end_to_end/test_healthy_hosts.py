"""Eight healthy hosts: no rank and no link is named, and nothing raises an alarm."""

import os
import time

import pytest
from support.labs.host_job import WINDOW_STEPS, host_job
from support.labs.host_lab import JOB

COUNT, CHUNK, COMPUTE_MS, RATE = 8, 1 << 17, 60, 2e7
#: Length of the run: `MINUTES=60 pytest -m long` for an hour.
MINUTES = float(os.environ.get("MINUTES", "3"))


@pytest.mark.long  # a worker, a sink, and eight agents
@pytest.mark.stack
@pytest.mark.timeout(600 + 90 * MINUTES)
def test_eight_healthy_hosts_raise_nothing(clean_stack, environment_of, tmp_path):
    with host_job(clean_stack, environment_of, tmp_path, COUNT, RATE) as job:
        job.lab.start_job(CHUNK, 3, COMPUTE_MS)
        begin = time.monotonic()
        job.phase("healthy", 60 * MINUTES)
        minutes, windows, hangs = (time.monotonic() - begin) / 60, job.windows("healthy"), job.hangs()
        [alerts] = job.pipeline.query(
            f"SELECT countIf(severity >= 'warning' OR state IN ('warning', 'critical')) AS n FROM stragglers "
            f"WHERE job = '{JOB}'"
        )
    named = [of for of in windows if of.flows or of.late or of.cause == "slow_link"]
    print(f"{minutes:.0f} minutes, {len(windows)} windows of {WINDOW_STEPS} steps, {len(named)} names, {alerts} alerts")
    assert len(windows) >= 10 * MINUTES
    assert (named, alerts["n"], hangs) == ([], 0, [])
