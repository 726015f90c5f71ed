"""The sampler's thread: what it emits, and what it leaves alone."""

import os
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.labs.python_jobs import LAST_PID, python_job, reusing_pid, started_ns

from drumline.infra.telemetry import metrics
from drumline.producers.host.targets import SAME_START_NS, RecordedProcess, start_ticks
from drumline.producers.stacks.plan import CULPRIT, OF_SUSPECT, PEER, Sampling, SamplingPlan
from drumline.producers.stacks.sampling_run import SUSPECT_PARTS, py_spy
from drumline.producers.stacks.stack_batches import StackBatches
from drumline.producers.stacks.stack_sampler import StackSampler, StackSources, is_off
from drumline.producers.stacks.verdicts import HANG, SUSPECT, Verdict
from drumline.schemas.batch import decode, encode
from drumline.schemas.bounds.check import check
from drumline.schemas.model import model
from drumline.schemas.topics import Topic
from drumline.streams.stragglers.inspection.sampled_stacks import SampledStacks


def local(pid, user=None, rank=1):
    envelope = {"job": "j", "run": "r", "rank": rank, "host": "h", "pid": pid, "process_id": "p1"}
    start_ns = started_ns(pid) if psutil.pid_exists(pid) else 1
    return RecordedProcess({**envelope, "start_ns": start_ns}, pid, os.geteuid() if user is None else user)


def sampler(emit, processes=(), off=False, verdicts=()):
    waiting = list(verdicts)

    class Follower:
        def poll(self, seconds):
            if waiting:
                return waiting.pop(0)
            built._halt.set()
            return None

        def close(self):
            waiting.clear()

    sources = StackSources(Follower(), lambda: processes, emit, lambda: off, length_s=1, suspect_length_s=2)
    built = StackSampler(SamplingPlan(), StackBatches("agent"), sources)
    return built


def outcome(name):
    return metrics.REGISTRIES["agent"].get_sample_value("drumline_agent_stack_samplings_total", {"outcome": name}) or 0


def test_a_sampling_becomes_a_record_within_its_bounds(tmp_path):
    batches = []
    verdict = Verdict(HANG, "j", "r", time.time(), (1,), 0, window_start_ns=time.time_ns())
    with python_job(tmp_path, "sleep") as job:
        time.sleep(0.2)
        sampler(batches.append).sample([Sampling(verdict, CULPRIT, 1, local(job.pid))], py_spy())
    [batch] = batches
    record = model(Topic.STACK)
    stored = decode(record, encode(record, batch))
    check(stored, time.time_ns() // 1_000_000)
    envelope = stored.envelope
    assert (envelope["rank"], envelope["role"], envelope["verdict"], envelope["pid"]) == (1, CULPRIT, HANG, job.pid)
    assert (envelope["process_id"], envelope["sampled_process"], envelope["sequence"]) == ("agent", "p1", 0)
    assert envelope["samples_total"] > 20
    assert np.all(stored.columns["samples"] == envelope["samples_total"])
    assert stored.strings("caller", "callers").tolist() == [f"load ({job.path}:4)"]


def test_a_suspect_and_its_peer_become_records_of_equal_parts_that_are_one_inspection(tmp_path):
    batches = []
    verdict = Verdict(SUSPECT, "j", "r", time.time(), (1,), 0, 40, 59, time.time_ns(), odds=4.0, step_ns=50_000_000)
    with python_job(tmp_path, "late") as late, python_job(tmp_path, "even") as peer:
        time.sleep(0.2)
        both = [(OF_SUSPECT, late, 1), (PEER, peer, 0)]
        samplings = [Sampling(verdict, role, 1, local(job.pid, rank=rank)) for role, job, rank in both]
        sampler(batches.append).sample(samplings, py_spy())
    record, stacks = model(Topic.STACK), SampledStacks({}, "j")
    stored = [decode(record, encode(record, batch)) for batch in batches]
    for of in stored:
        check(of, time.time_ns() // 1_000_000)
    assert [of.envelope["role"] for of in stored] == ["suspect"] * SUSPECT_PARTS + ["peer"] * SUSPECT_PARTS
    assert [of.envelope["sequence"] for of in stored] == list(range(2 * SUSPECT_PARTS))
    starts = [of.envelope["time_ns"] for of in stored[:SUSPECT_PARTS]]
    assert np.allclose(np.diff(starts), 2e9 / SUSPECT_PARTS, rtol=0.1)
    assert 60 < sum(of.envelope["samples_total"] for of in stored[:SUSPECT_PARTS]) <= 110
    assert sum(of.envelope["gil_polls"] for of in stored[:SUSPECT_PARTS]) > 20
    *before, last = [stacks.apply(of, offset) for offset, of in enumerate(stored)]
    assert before == [None] * (2 * SUSPECT_PARTS - 1)
    assert (last.rank, last.peer, last.at, last.peer_share) == (1, 0, "load (train.py:4)", 0.0)
    assert last.share > 0.2


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="the kernel gives out no number of choice")
@pytest.mark.parametrize("by_ring", [True, False], ids=["ring", "record"])
def test_a_process_that_got_the_number_of_the_one_in_the_verdict_is_left_alone(tmp_path, by_ring):
    batches, failed = [], outcome("failed")
    with python_job(tmp_path, "sleep") as job:
        record = local(job.pid)
        number = RecordedProcess(record.record, job.pid, os.geteuid(), start_ticks(Path(f"/proc/{job.pid}")))
    time.sleep(SAME_START_NS / 1e9 + 0.5)  # starts of records are known no better
    with reusing_pid(tmp_path, "sleep", record.pid) as other:
        assert other.pid == record.pid
        verdict = Verdict(HANG, "j", "r", time.time(), (1,), 0, window_start_ns=time.time_ns())
        sampler(batches.append).sample([Sampling(verdict, CULPRIT, 1, number if by_ring else record)], py_spy())
    assert (batches, outcome("failed") - failed) == ([], 1)


@pytest.mark.parametrize("reason", ["policy", "another user's", "exited"])
def test_a_process_that_must_not_be_sampled_is_left_alone_and_counted(reason):
    batches, verdict = [], Verdict(HANG, "j", "r", time.time(), (1,), -1)
    process = {"policy": local(os.getpid()), "another user's": local(os.getpid(), 54_321), "exited": local(2**22 + 1)}
    name = {"policy": "off", "another user's": "failed", "exited": "failed"}[reason]
    before = outcome(name)
    sampler(batches.append, [process[reason]], reason == "policy", [verdict]).run()
    assert not batches
    assert outcome(name) == before + 1


@pytest.mark.parametrize(("text", "off"), [("off", True), ("auto", False), ("", False), ("nonsense", False)])
def test_the_hosts_policy_off_forbids_sampling(tmp_path, text, off):
    (tmp_path / "policy").write_text(text)
    assert is_off(tmp_path / "policy") is off
    assert not is_off(tmp_path / "missing")
