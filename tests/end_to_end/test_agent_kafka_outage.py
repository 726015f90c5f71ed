"""Kafka is away while a job records and the agent runs: the job ends as ever, the spool keeps its bound, and afterwards
the rows stored and dropped are those that CUPTI delivered. DRUMLINE_OUTAGE_S makes the outage longer."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.labs.sink import Pipeline

from drumline.infra.localstack import stack as local_stack
from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.long]
TESTS = Path(__file__).parents[1]
OUTAGE_S = float(os.environ.get("DRUMLINE_OUTAGE_S", "40"))
#: Seconds of a job in the recorded buffers, which are played once after the other.
PLAYED_S = 0.52


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < until, "not in time"
        time.sleep(0.05)
    return result


def size(root):
    total = 0
    for path in root.rglob("*"):
        with contextlib.suppress(OSError):  # published meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


@pytest.mark.timeout(240 + 2 * OUTAGE_S)
@pytest.mark.parametrize("bound_mb", [4, 256])
def test_an_outage_reaches_the_job_as_nothing_and_is_counted_exactly(
    stack, clean_stack, environment_of, tmp_path, bound_mb
):
    pipeline = Pipeline(clean_stack, environment_of(clean_stack))
    pipeline.producer = None  # it would complain all the time
    root = tmp_path / "spool"
    environment = {
        **pipeline.environment, "DRUMLINE_SPOOL__ROOT": str(root), "DRUMLINE_SPOOL__MAX_MB": str(bound_mb),
        "DRUMLINE_METRICS_PORT": "0", "DRUMLINE_AGENT__GPU_S": "0",
        "DRUMLINE_JOB": "outage", "DRUMLINE_RUN": "r1", "PYTHONPATH": str(TESTS),
    }  # fmt: skip
    agent = subprocess.Popen(
        [sys.executable, "-m", "drumline.cli.app", "agent"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    pipeline.sinks.append(agent)
    repetitions = int((OUTAGE_S + 20) / PLAYED_S)
    job = subprocess.Popen(
        [sys.executable, str(TESTS / "support/collector_job.py"), "paced", str(repetitions)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        cursor = root / ".agent" / "cursor.json"
        wait_for(cursor.exists)
        time.sleep(3)
        local_stack.down(stack)
        most, until = 0, time.monotonic() + OUTAGE_S
        while time.monotonic() < until:
            most = max(most, size(root))
            assert job.poll() is None
            assert agent.poll() is None
            time.sleep(0.2)
        local_stack.up(stack)
        output, errors = job.communicate(timeout=60 + OUTAGE_S)
        # The folder of the job goes when all of it is in Kafka.
        wait_for(lambda: all(name.startswith(".") for name in os.listdir(root)), 120)
    finally:
        job.kill()
        local_stack.up(stack)
    assert (job.returncode, errors) == (0, "")
    report = json.loads(output.splitlines()[0])
    assert report["dropped"] == 0
    assert most <= (bound_mb << 20) + 100_000, "segments of a bound, and the identity"
    agent.terminate()
    assert agent.wait(30) == 0
    pipeline.start("--instance", "1")
    pipeline.published |= dict.fromkeys(map(str, (Topic.KERNEL, Topic.MEMCPY, Topic.STEP, Topic.PROCESS)), 0)
    pipeline.wait_drained(120)
    audited = pipeline.audit()
    pipeline.stop()
    assert audited.clean, json.dumps(audited.as_json(), indent=1, default=str)
    stored = {account.topic: account.rows_stored for account in audited.topics}
    dropped = {Topic.KERNEL: 0, Topic.MEMCPY: 0}
    for entry in audited.dropped:
        dropped[entry["topic"]] = dropped.get(entry["topic"], 0) + entry["dropped"]
    delivered = report["delivered"]
    print(f"{OUTAGE_S:.0f} s: {delivered['10']} kernels, {stored[Topic.KERNEL]} stored", end=", ")
    print(f"{dropped[Topic.KERNEL]} counted as dropped; spool at most {most / 2**20:.1f} MiB of {bound_mb}")
    assert stored[Topic.KERNEL] + dropped[Topic.KERNEL] == delivered["10"]
    assert stored[Topic.MEMCPY] + dropped[Topic.MEMCPY] == delivered["1"] + delivered["2"]
    assert 0 <= dropped[Topic.KERNEL] < delivered["10"]
    assert bool(dropped[Topic.KERNEL]) == (most > 0.9 * (bound_mb << 20)), "what fits is not lost"
