"""A rank of a job whose hosts jitter is late: it becomes suspect, the agent samples it, and its line names it."""

import os
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer
from support.labs.agent import process
from support.labs.python_jobs import python_job, started_ns
from support.pipeline import Pipeline
from support.straggler_simulator import MS, Fault, batches, ddp, simulate
from support.wait_limit import WAIT_S

from drumline.infra.kafka.config import producer_config
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.runtime.processes import ManagedProcess
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic

#: Programs of the ranks, as Python runs them; the fake GPU source has rank 1 late by as much from FIRST on.
PROGRAMS, FIRST, STEPS = ("even", "late"), 240, 900
#: Time of the simulator's first step.
EPOCH_NS = 10**18


def fake_source(settings, ended):
    """Publish a simulated job's steps and collectives as they would come; return when it has begun, ns."""
    stream = batches(simulate(ddp(2, 1), STEPS, (Fault(1, "idle", 12 * MS, first=FIRST),), noise=0.3))
    producer, codec, began = Producer(producer_config(settings, "fake source")), Codec(), time.time_ns()
    sequences = Counter()

    def publish():
        for time_ns, batch in stream:
            due = began + time_ns - EPOCH_NS
            if ended.wait(max(0.0, (due - time.time_ns()) / 1e9)):
                return
            batch.columns["start_ns"] = batch.columns["start_ns"] - EPOCH_NS + began
            if batch.topic == Topic.STEP:
                batch.columns["gpu_start_ns"] = batch.columns["start_ns"]
            place = f"p{batch.envelope['rank']}", batch.topic, batch.envelope.get("communicator", "")
            batch.envelope |= {"process_id": place[0], "sequence": sequences[place], "sent_ns": time.time_ns(),
                               "base_time_ns": began, "host": socket.gethostname()}  # fmt: skip
            sequences[place] += 1
            key = f"job:{place[2]}" if place[2] else "job"
            producer.produce(batch.topic, value=codec.encode(batch), key=key)
            producer.poll(0)
        producer.flush(10)

    threading.Thread(target=publish, daemon=True).start()
    return began


@pytest.mark.long  # a worker, a sink and an agent; a job of a minute
@pytest.mark.stack
def test_a_suspect_is_named_by_what_its_python_did(clean_stack, environment_of, tmp_path):
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    spool = tmp_path / "spool"
    spool.mkdir()
    pipeline.environment |= {"DRUMLINE_SPOOL__ROOT": str(spool), "PATH": os.environ["PATH"],
                             "DRUMLINE_STREAM__WINDOW_STEPS": "20"}  # fmt: skip
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    for name in ("agent", "stream"):
        log = tmp_path / f"{name}.log"
        pipeline.programs[name] = ManagedProcess(name, [name], log, pipeline.environment)
    ended = threading.Event()
    with ExitStack() as stack:
        for rank, kind in enumerate(PROGRAMS):
            job = stack.enter_context(python_job(tmp_path, kind))
            record = process(f"p{rank}", job="job", run="run", rank=rank, local_rank=rank, world_size=2, pid=job.pid,
                             host=socket.gethostname(), start_ns=started_ns(job.pid))  # fmt: skip
            stack.callback(SpoolWriter(spool, record, SpoolLimits()).close)
        stack.enter_context(pipeline.running())
        stack.callback(ended.set)
        began = fake_source(clean_stack, ended)
        named = (
            "SELECT rank, cause, first_step, toUnixTimestamp64Nano(published) AS published_ns, evidence_json "
            "FROM stragglers FINAL WHERE rank >= 0 AND severity >= 'suspect' ORDER BY published, first_step"
        )

        def stored():
            time.sleep(1)
            return any("inspection" in row["evidence_json"] for row in pipeline.query(named))

        assert wait_until(stored, WAIT_S), (tmp_path / "agent.log").read_text()
        verdicts = pipeline.query(named)
        roles = pipeline.query(
            "SELECT rank, role, verdict, uniqExact(time) AS parts FROM stacks GROUP BY 1, 2, 3 ORDER BY 1"
        )
        explained = pipeline.drumline("explain", "job", "--rank", "1")
    [first] = [row for row in roles if row["role"] == "suspect"]
    assert (first["rank"], first["verdict"], first["parts"] % 20) == (1, "suspect", 0)
    assert {row["rank"] for row in verdicts} == {1}
    assert {row["cause"] for row in verdicts} == {"host_stall"}
    shown = [row for row in verdicts if "inspection" in row["evidence_json"]]
    assert '"at": "load (train.py:4)"' in shown[0]["evidence_json"]
    assert "its Python was in load (train.py:4) for" in explained
    print("named", (shown[0]["published_ns"] - began) / 1e9, "s after the first step, in window", shown[0])
