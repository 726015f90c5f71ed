"""Tensor parallelism in serving: ranks of the fake NCCL decode; a rank that is a fifth late is named, healthy none."""

import os
import subprocess
import time
from contextlib import contextmanager

import pytest
from support.fake_nccl import COMPILER, FAKE, PROGRAMS
from support.metrics_scraper import free_port
from support.pipeline import Pipeline
from support.wait_limit import WAIT_S

from drumline.infra.runtime.processes import ManagedProcess
from drumline.producers.ipc.policy import LIGHT, Policy
from drumline.producers.launcher import PLUGIN, LaunchOptions, environment, load_plugin
from drumline.producers.spool.location import make_rings

RANKS, LATE = 4, 3
#: Iterations of 4 operations and some 44 ms, which the late rank enters 9 ms later; bytes that a rank sends.
OPERATIONS, COMPUTE_MS, LATE_MS, CHUNK = 4, 11, 9, 1 << 14
#: Bar of a name, and of healthy time: `MINUTES=60 pytest -m long` for an hour.
TARGET_S, MINUTES = 10.0, float(os.environ.get("MINUTES", "1"))


@contextmanager
def decoding(folder, spool):
    """Run the ranks of one engine on one host."""
    program = folder / "fake_transport"
    subprocess.run([*COMPILER, "-o", program, PROGRAMS / "fake_transport.c", *FAKE], check=True, capture_output=True)
    ports, ranks = [free_port() for _ in range(RANKS)], []
    options = LaunchOptions(job="decode", run="r", policy="light", spool=str(spool))
    for rank in range(RANKS):
        values = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
            "LISTEN": f"127.0.0.1:{ports[rank]}", "NEXT": f"127.0.0.1:{ports[(rank + 1) % RANKS]}",
            "BYTES": str(CHUNK * RANKS), "CHUNK": str(CHUNK), "OPERATIONS": str(OPERATIONS),
            "COMPUTE_MS": str(COMPUTE_MS), "FOLDER": str(folder),
        }  # fmt: skip
        values = load_plugin(environment(values, [str(program)], options), Policy(LIGHT))
        make_rings(values)
        with (folder / f"rank-{rank}.log").open("wb") as log:
            ranks.append(subprocess.Popen([str(program), values[PLUGIN], "5"], env=values, stdout=log, stderr=log))
    try:
        yield
        assert [rank.poll() for rank in ranks] == [None] * RANKS
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.long  # a worker, a sink and an agent
@pytest.mark.stack
@pytest.mark.timeout(600 + 90 * MINUTES)
def test_a_rank_that_is_a_fifth_late_in_decoding_is_named_within_ten_seconds_and_healthy_ones_never(
    clean_stack, environment_of, tmp_path
):
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    spool, flag = tmp_path / "spool", tmp_path / f"late-{LATE}"
    pipeline.environment |= {"DRUMLINE_SPOOL__ROOT": str(spool), "PATH": os.environ["PATH"]}
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    pipeline.programs["agent"] = ManagedProcess("agent", ["agent"], tmp_path / "agent.log", pipeline.environment)

    def named(since_ns):
        return pipeline.query(
            "SELECT rank, cause, count() AS n FROM stragglers WHERE job = 'decode' AND rank >= 0 AND severity >= "
            f"'suspect' AND toUnixTimestamp64Nano(window_start) >= {since_ns} GROUP BY 1, 2 ORDER BY n DESC"
        )

    with pipeline.running(), decoding(tmp_path, spool):
        time.sleep(60 * MINUTES)
        healthy, [seen] = named(0), pipeline.query("SELECT count() AS n FROM stragglers WHERE rank = -1")
        began_ns, began = time.time_ns(), time.monotonic()
        flag.write_text(str(LATE_MS))
        while not (rows := named(began_ns)) and time.monotonic() < began + WAIT_S:
            time.sleep(0.5)  # a reader's queries are limited
        took = time.monotonic() - began
        time.sleep(10)
        rows = named(began_ns)
    print(f"{MINUTES:.0f} minutes healthy: {healthy} of {seen}; late: {rows} after {took:.1f} s")
    assert healthy == []
    assert seen["n"] > 10 * MINUTES
    assert {(row["rank"], row["cause"]) for row in rows} == {(LATE, "host_stall")}
    assert took <= TARGET_S
