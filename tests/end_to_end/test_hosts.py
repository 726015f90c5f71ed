"""A job on several hosts, each a network namespace with an agent: links that get slow, a late host, and a cut."""

import json
import os
import time

import pytest
from support.labs.host_lab import JOB, RATE, host_lab
from support.namespaces import hosts
from support.pipeline import Pipeline
from support.wait_limit import WAIT_S

from drumline.infra.runtime.processes import ManagedProcess
from drumline.streams.hangs.config import HangConfig

#: Time at the begin of a phase that belongs to none, s.
SETTLE_S = 2.0
SLOW, LATE = 1, 0
#: Hosts, and bytes of a transfer.
COUNT, CHUNK = 3, 1 << 19


def windows(pipeline, begin_ns, end_ns):
    """Return of each window within a span: its named flows, direction and named ranks."""
    rows = pipeline.query(
        f"""SELECT first_step, groupArrayIf(rank, rank >= 0 AND severity >= 'suspect') AS late,
            anyIf(cause, rank < 0) AS cause, anyIf(evidence_json, rank < 0) AS evidence
        FROM stragglers WHERE job = '{JOB}' AND toUnixTimestamp64Nano(window_start) >= {begin_ns}
            AND toUnixTimestamp64Nano(window_end) <= {end_ns} GROUP BY first_step ORDER BY first_step"""
    )
    verdicts = [
        (json.loads(row["evidence"]) if row["cause"] == "slow_link" else {}, sorted(row["late"])) for row in rows
    ]
    return [
        ([(flow["from"], flow["to"]) for flow in evidence.get("flows", [])], evidence.get("direction", ""), late)
        for evidence, late in verdicts
    ]


@pytest.mark.long  # a worker, a sink, and an agent a host
@pytest.mark.stack
def test_links_of_hosts_are_named_by_both_ends_beside_a_late_host_too(clean_stack, environment_of, tmp_path):
    if os.geteuid():
        pytest.skip("network namespaces need root")
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    pipeline.environment |= {"PATH": os.environ["PATH"], "DRUMLINE_STREAM__WINDOW_STEPS": "10"}
    log = tmp_path / "stream.log"
    pipeline.programs["stream"] = ManagedProcess("stream", ["stream"], log, pipeline.environment)
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    ports = [int(clean_stack.bootstrap.rpartition(":")[2])]
    names, phases = [f"node-{number}" for number in range(COUNT)], {}

    def phase(name, seconds):
        begin = time.time_ns()
        time.sleep(seconds)
        phases[name] = begin + round(SETTLE_S * 1e9), time.time_ns()

    with pipeline.running(), hosts(names) as of, host_lab(of, tmp_path, pipeline.environment, ports) as lab:
        lab.start_job(CHUNK, 3, 20)
        phase("healthy", 20)
        lab.limit(SLOW, RATE / 2)
        phase("slow", 36)
        lab.limit(SLOW, RATE)
        phase("healthy again", 12)
        lab.limit(SLOW, RATE / 2)
        lab.late(LATE, 120)
        phase("slow and late", 45)
        lab.late(LATE, 0)
        lab.limit(SLOW, RATE)
        phase("healthy at last", 12)
        of.cut(*lab.link(SLOW))
        cut_ns = time.time_ns()

        def hung():
            return pipeline.query(f"SELECT toUnixTimestamp64Nano(time) AS at, note FROM hangs WHERE job = '{JOB}'")

        until = time.monotonic() + WAIT_S
        while not hung():
            assert time.monotonic() < until, "no standstill is stated"
            time.sleep(1.0)  # a reader's queries are limited
    verdicts = {name: windows(pipeline, *span) for name, span in phases.items()}
    flow = [(SLOW, (SLOW + 1) % COUNT)]
    for name in ("healthy", "healthy again", "healthy at last"):
        assert {(tuple(flows), *late) for flows, _, late in verdicts[name]} <= {((),)}, (name, verdicts[name])
    for name, late in (("slow", []), ("slow and late", [LATE])):
        wrong = [named for named in verdicts[name] if named != (flow, "one_way", late)]
        assert len(verdicts[name]) >= 5, name
        assert len(wrong) <= 0.1 * len(verdicts[name]), (name, len(verdicts[name]), wrong)
    [stated, *_] = hung()
    limit_s = HangConfig().standing_ns / 1e9 + 4
    assert "All ranks began AllReduce" in stated["note"]
    assert (stated["at"] - cut_ns) / 1e9 < limit_s, stated
