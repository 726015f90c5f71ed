"""A job on three hosts, each a network namespace with an agent, whose ring is cut between two of them."""

import os
import time

import pytest
from support.labs.host_lab import JOB, host_lab
from support.namespaces import hosts
from support.pipeline import Pipeline
from support.wait_limit import WAIT_S

from drumline.streams.hangs.config import HangConfig

#: Rank that sends over the link that is cut, hosts, and bytes of a transfer.
SENDER, COUNT, CHUNK = 1, 3, 1 << 19


@pytest.mark.long  # a worker, a sink, and an agent a host
@pytest.mark.stack
def test_the_pair_of_a_cut_link_is_stated_in_the_hang_of_three_hosts(clean_stack, environment_of, tmp_path):
    if os.geteuid():
        pytest.skip("network namespaces need root")
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    pipeline.environment |= {"PATH": os.environ["PATH"]}
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    ports = [int(clean_stack.bootstrap.rpartition(":")[2])]
    names = [f"node-{number}" for number in range(COUNT)]

    def hung():
        columns = "toUnixTimestamp64Nano(time) AS at, reason, rank, note"
        return pipeline.query(f"SELECT {columns} FROM hangs WHERE job = '{JOB}' ORDER BY revision")

    with pipeline.running(), hosts(names) as of, host_lab(of, tmp_path, pipeline.environment, ports) as lab:
        lab.start_job(CHUNK, 3, 20)
        time.sleep(15)  # files of processes are listed every 5 s
        assert hung() == []
        of.cut(*lab.link(SENDER))
        cut_ns, until = time.time_ns(), time.monotonic() + WAIT_S
        while not hung():
            assert time.monotonic() < until, "no standstill is stated"
            time.sleep(1.0)  # a reader's queries are limited
        time.sleep(5)  # no revision takes it back
    rows = hung()
    took_s = (rows[0]["at"] - cut_ns) / 1e9
    print(f"stated {took_s:.1f} s after the cut, load {os.getloadavg()[0]:.1f}: {rows[0]['note']}")
    for row in rows:
        assert (row["rank"], row["reason"]) == (-1, "not_ended")
        assert "All ranks began AllReduce" in row["note"]
        assert "the link from node-1 (rank 1) to node-2 (rank 2) delivers nothing" in row["note"]
    assert took_s < HangConfig().standing_ns / 1e9 + 4
