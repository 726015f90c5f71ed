"""A verdict names a rank: the agent samples its process and a peer, and ClickHouse has the stacks with their line."""

import os
import socket
import time
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer
from support.labs.agent import process
from support.labs.python_jobs import python_job, started_ns
from support.labs.verdicts import verdict
from support.pipeline import Pipeline
from support.wait_limit import WAIT_S

from drumline.infra.kafka.config import producer_config
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.runtime.processes import ManagedProcess
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic

RANKS = ("busy", "gil")


@pytest.mark.long  # a sink and an agent
@pytest.mark.stack
def test_a_verdict_leads_to_the_line_that_holds_the_lock(clean_stack, environment_of, tmp_path):
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    spool = tmp_path / "spool"
    spool.mkdir()
    pipeline.environment |= {"DRUMLINE_SPOOL__ROOT": str(spool), "PATH": os.environ["PATH"]}
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    del pipeline.programs["stream"]
    pipeline.programs["agent"] = ManagedProcess("agent", ["agent"], tmp_path / "agent.log", pipeline.environment)
    with ExitStack() as stack:
        jobs = [stack.enter_context(python_job(tmp_path, kind)) for kind in RANKS]
        for rank, job in enumerate(jobs):
            named = process(f"p{rank}", job="j", run="r", rank=rank, local_rank=rank, world_size=2, pid=job.pid,
                            host=socket.gethostname(), start_ns=started_ns(job.pid))  # fmt: skip
            stack.callback(SpoolWriter(spool, named, SpoolLimits()).close)
        stack.enter_context(pipeline.running())
        producer, windows = Producer(producer_config(clean_stack, "test")), iter(range(1_000))
        seen = "SELECT count() AS n FROM stacks WHERE samples > 0"

        def stored():
            """A verdict a second, as the agent follows those that come after it has begun."""
            batch = verdict("j", 20 * next(windows))
            producer.produce(Topic.STRAGGLER, value=Codec().encode(batch), key="j")
            producer.flush(10)
            time.sleep(1)
            return pipeline.query(seen)[0]["n"] >= 3

        assert wait_until(stored, WAIT_S), (tmp_path / "agent.log").read_text()
        hot = pipeline.query("SELECT * FROM hot_stacks ORDER BY position")
        samplings = pipeline.query(
            "SELECT rank, role, named_rank, any(pid) AS pid, max(samples_total) AS n, uniqExact(_offset) AS records "
            "FROM stacks GROUP BY 1, 2, 3 ORDER BY 1"
        )
        assert wait_until(lambda: pipeline.audit("r")["clean"], WAIT_S)
    assert [(row["rank"], row["role"], row["named_rank"], row["pid"], row["records"]) for row in samplings] == [
        (0, "peer", 1, jobs[0].pid, 1), (1, "culprit", 1, jobs[1].pid, 1),
    ]  # fmt: skip
    assert min(row["n"] for row in samplings) > 50, "2 s at 50 Hz"
    assert {(row["rank"], row["verdict"], row["peers"]) for row in hot} == {(1, "straggler", 1)}
    # On a host without a free core the main thread is mostly runnable, of which nothing is known.
    share = hot[0]["gil_wait_share"]
    assert share > 0.05
    assert {row["finding"] for row in hot} == {"python_lock" if share >= 0.5 else ""}
    assert hot[0]["gil_holder"] == f"tokenizer: tokenize ({jobs[1].path}:7)"
    [main] = [row["at"] for row in hot if row["is_main"] and row["culprit_share"] > 0.5]
    assert main == f"train ({jobs[1].path}:11)"
