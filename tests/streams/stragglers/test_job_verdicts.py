"""The job as a whole: changed jobs, single ranks, what is late together, episodes and heartbeats, GPU samples."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from support.labs.attribution import evaluated, named_ranks
from support.labs.verdict_rows import rows_of
from support.pipeline_simulator import simulate_pipeline
from support.process_samples import host_samples
from support.straggler_simulator import MS, Fault, Layout, batches, ddp, fsdp, mesh, simulate

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import INSUFFICIENT, OK, SUSPECT, StragglerConfig
from drumline.streams.stragglers.analysis.gpu_cause import SAMPLE_ROW, GpuSamples, device_detail
from drumline.streams.stragglers.analysis.groups import groups_late, labels

JOB = -1


def all_ranks(kind, cost_ns, **when):
    return tuple(Fault(rank, kind, cost_ns, **when) for rank in range(4))


@pytest.mark.parametrize(
    ("kind", "detail"), [("idle", "idle"), ("copy", "copy"), ("compute", "compute"), ("work", "more_work")]
)
def test_all_ranks_slower_together_is_the_jobs_and_only_suspect(kind, detail):
    job = batches(simulate(ddp(4), 96, all_ranks(kind, 20 * MS, first=72)))
    result = evaluated(job)
    assert [result[first][JOB][:2] for first in (60, 72, 84)] == [(OK, "ok"), *[(SUSPECT, "changed_job")] * 2]
    assert result[72][JOB][2] == pytest.approx(0.25, abs=0.02)
    assert rows_of(job, "detail", "details")[72][JOB] == detail
    assert named_ranks(result) == [{}] * 8


@pytest.mark.parametrize(("kind", "cause"), [("idle", "host_stall"), ("copy", "slow_copy")])
@pytest.mark.parametrize(("all_kind", "slower"), [("work", 5 * MS), ("compute", 12 * MS)])
def test_a_rank_that_is_late_while_all_are_slower_has_its_own_cause(all_kind, slower, kind, cause):
    faults = (*all_ranks(all_kind, slower, first=60), Fault(1, kind, 5 * MS, first=72))
    assert named_ranks(evaluated(batches(simulate(ddp(4), 84, faults))))[6] == {1: cause}


def test_one_long_step_is_no_changed_job():
    result = evaluated(batches(simulate(ddp(4), 96, all_ranks("idle", 200 * MS, first=75, last=75))))
    assert {rows[JOB][1] for rows in result.values()} == {"ok"}


def test_a_job_that_stays_changed_becomes_usual():
    result = evaluated(batches(simulate(ddp(4), 12 * 30, all_ranks("work", 20 * MS, first=72))))
    assert [rows[JOB][0] for rows in result.values()][-5:] == [OK] * 5


def test_a_healthy_job_after_a_fault_is_healthy_and_a_fault_is_no_changed_job():
    result = evaluated(batches(simulate(ddp(4), 120, (Fault(1, "idle", 40 * MS, first=60, last=95),))))
    assert named_ranks(result) == [{}] * 5 + [{1: "host_stall"}] * 3 + [{}] * 2
    assert all(rows[JOB][0] == OK for rows in result.values())


def test_the_past_outlasts_a_fault_of_any_length():
    config = StragglerConfig(window_steps=4, history_windows=8, retention_steps=8)
    faults = (Fault(1, "idle", 40 * MS, first=24, last=179), *all_ranks("idle", 30 * MS, first=180))
    jobs = [rows[JOB] for rows in rows_of(batches(simulate(ddp(4), 200, faults)), "severity", config=config).values()]
    assert jobs == [OK] * 45 + [SUSPECT] * 5


def test_a_fault_of_any_length_stays_named_in_a_job_with_jitter():
    config = StragglerConfig(window_steps=8, history_windows=20, retention_steps=16)
    dice, first, steps = np.random.default_rng(0), 8 * 24, 8 * 124
    faults = [Fault(1, "idle", 60 * MS, first=first)]
    for n in range(steps):  # of all ranks together, and of one
        faults += all_ranks("idle", int(dice.integers(80 * MS)), first=n, last=n)
        faults.append(Fault(int(dice.integers(4)), "idle", int(dice.exponential(12 * MS)), first=n, last=n))
    job = batches(simulate(ddp(4, 1), steps, tuple(faults)))
    named = [
        {rank for rank, severity in rows.items() if rank != JOB and severity > OK}
        for rows in rows_of(job, "severity", config=config).values()
    ]
    assert (named[:24], named[26:]) == ([set()] * 24, [{1}] * 98)


def test_a_job_of_one_rank_has_no_peers_but_a_past():
    single = Layout(1, ((1.0, "AllReduce", ()),))
    job = batches(simulate(single, 96, (Fault(0, "idle", 30 * MS, first=72),)))
    result = evaluated(job)
    assert all(rows[0][0] == INSUFFICIENT for rows in result.values())
    assert rows_of(job, "detail", "details")[0][0] == "no_peers"
    assert [rows[JOB][1] for rows in result.values()] == ["ok"] * 6 + ["changed_job"] * 2


@pytest.mark.parametrize(
    ("topics", "met", "expected"),
    [
        ({Topic.COLLECTIVE}, lambda step: step % 2 == 1, "host_stall"),
        ({Topic.COLLECTIVE}, lambda step: step % 4 == 3, "few_steps_compared"),
        ({Topic.COLLECTIVE, Topic.STEP}, lambda step: step % 12 < 5, "few_steps_recorded"),
    ],
    ids=["met in every second step", "gradients of four steps", "recorded now and then"],
)
def test_steps_in_which_no_ranks_meet_are_not_taken_for_health(topics, met, expected):
    stream = []
    for time_ns, batch in batches(simulate(ddp(4), 24, (Fault(2, "idle", 30 * MS),))):
        if batch.topic in topics:
            keep = met(batch.columns["step"])
            columns = {name: values[keep] for name, values in batch.columns.items()}
            batch = Batch(batch.topic, {**batch.envelope, "rows": int(keep.sum())}, columns)
        stream.append((time_ns, batch))
    result = evaluated(stream)
    assert len(result) == 2
    if expected == "host_stall":
        assert named_ranks(result) == [{2: "host_stall"}] * 2
        return
    assert {row[1] for rows in result.values() for row in rows.values()} == {"insufficient_data"}
    details = rows_of(stream, "detail", "details")
    assert {detail for rows in details.values() for detail in rows.values()} == {expected}
    assert json.loads(rows_of(stream, "evidence_json", "evidence")[0][2]) == {"steps": sum(met(s) for s in range(12))}


def test_a_late_root_of_a_broadcast_is_found():
    world = (tuple(range(4)),)
    shape = Layout(4, ((0.1, "Broadcast", world), (0.9, "AllReduce", world)))
    for fault in (Fault(0, "idle", 20 * MS), Fault(2, "idle", 20 * MS)):
        assert named_ranks(evaluated(batches(simulate(shape, 24, (fault,))))) == [{fault.rank: "host_stall"}] * 2


def test_what_is_late_together_is_named_in_each_row():
    job = batches(simulate(mesh(4, 2), 24, tuple(Fault(rank, "idle", 30 * MS) for rank in range(4))))
    groups = rows_of(job, "group", "groups")[0]
    assert groups == {JOB: "", **{rank: "host host0" if rank < 4 else "" for rank in range(8)}}
    evidence = rows_of(job, "evidence_json", "evidence")[0]
    assert json.loads(evidence[1])["late_together"] == [0, 1, 2, 3]


def test_a_guessed_communicator_lowers_the_confidence():
    known = batches(simulate(ddp(4), 24, (Fault(1, "idle", 20 * MS),)))
    guessed = [
        (
            t,
            Batch(b.topic, {**b.envelope, "communicator": "~7 AllReduce"}, b.columns)
            if "communicator" in b.envelope
            else b,
        )
        for t, b in known
    ]
    assert named_ranks(evaluated(guessed)) == [{1: "host_stall"}] * 2
    assert rows_of(known, "confidence", "confidences")[0][1] == "high"
    assert rows_of(guessed, "confidence", "confidences")[0][1] == "low"
    assert json.loads(rows_of(guessed, "evidence_json", "evidence")[0][1])["communicators"] == "guessed"


def test_unmarked_steps_are_reported_as_inferred():
    job = batches(simulate(ddp(4), 24, (Fault(1, "idle", 20 * MS),)))
    inferred = [
        (t, Batch(b.topic, {**b.envelope, "steps_from": "inferred"}, b.columns) if b.topic == "gpu.step.v1" else b)
        for t, b in job
    ]
    assert named_ranks(evaluated(inferred)) == [{1: "host_stall"}] * 2
    assert json.loads(rows_of(inferred, "evidence_json", "evidence")[12][1])["steps_from"] == "inferred"
    assert "steps_from" not in json.loads(rows_of(job, "evidence_json", "evidence")[12][1])


def test_the_evidence_names_the_collective():
    job = batches(simulate(fsdp(4), 12, (Fault(1, "idle", 20 * MS),)))
    evidence = json.loads(rows_of(job, "evidence_json", "evidence")[0][1])
    assert evidence["communicator"] == "c0-1-2-3"
    assert "peers" not in evidence, "all ranks are"
    assert evidence["collective"] == {"operation": "AllGather", "step": evidence["collective"]["step"], "ordinal": 0}
    assert evidence["longest_ns"] - evidence["own_ns"] == pytest.approx(20 * MS, rel=0.1)


def test_the_evidence_names_ranks_of_a_communicator_that_is_smaller_than_the_job():
    job = batches(simulate(mesh(2, 4), 12, (Fault(1, "idle", 20 * MS),)))
    evidence = json.loads(rows_of(job, "evidence_json", "evidence")[0][1])
    assert {1, *evidence["peers"]} == set(map(int, evidence["communicator"][1:].split("-")))
    assert len(evidence["peers"]) < 7


def test_the_evidence_of_a_pipeline_without_peers_has_no_collective():
    job = batches(simulate_pipeline((1.0, 1.3), 1, 72, (Fault(1, "idle", 40 * MS, first=60),)))
    evidence = json.loads(rows_of(job, "evidence_json", "evidence")[60][1])
    assert evidence["pipeline"] == "0 1"
    assert evidence.keys().isdisjoint({"communicator", "collective", "longest_ns", "own_ns"})
    assert evidence["excess_ns"]["idle_ns"] == pytest.approx(12 * 40 * MS, rel=0.05)


def test_a_link_that_is_slow_for_one_operation_only_is_found_by_its_own_history():
    """The communicator's nine collectives together take 1.27 times as long, less than what counts as slow."""
    job = batches(simulate(fsdp(4), 72, slow_link=(48, 1.8, "ReduceScatter"), transfer_ns=2 * MS))
    assert named_ranks(evaluated(job)) == [{}] * 4 + [{JOB: "slow_link"}] * 2
    evidence = json.loads(rows_of(job, "evidence_json", "evidence")[60][JOB])
    ratio = pytest.approx(1.8, abs=0.05)
    assert evidence == {"communicator": "c0-1-2-3", "operation": "ReduceScatter", "bytes": 1 << 20, "ratio": ratio}


@pytest.mark.parametrize("late_windows", [0, 40])
def test_a_slow_link_is_found_in_a_job_whose_ranks_are_late_by_turns(late_windows):
    """Such windows are no norm of the job, but floors do not know turns. A fault outlasts what the state keeps."""
    config = StragglerConfig(window_steps=8, history_windows=20, retention_steps=16)
    dice, first, slow = np.random.default_rng(0), 8 * 24, 8 * (24 + late_windows)
    faults = [
        Fault(int(dice.integers(4)), "idle", int(dice.exponential(12 * MS)), first=n, last=n) for n in range(slow + 32)
    ]
    if late_windows:
        faults.append(Fault(3, "idle", 200 * MS, first=first, last=slow - 1))
    job = batches(simulate(ddp(4, 1), slow + 32, tuple(faults), slow_link=(slow, 2.0, ""), transfer_ns=8 * MS))
    causes = [rows[JOB] for rows in rows_of(job, "cause", "causes", config=config).values()]
    assert causes[:24].count("jitter") >= 20
    assert causes[-3:] == ["slow_link"] * 3


def test_groups():
    result = labels({0: "a", 1: "a", 2: "b", 3: "b"}, {"c": [1, 2], "w": [0, 1, 2, 3]})
    idle = ("host_stall", 0.3)
    assert groups_late({0: idle, 1: idle}, range(4), result) == {0: "host a", 1: "host a"}
    assert groups_late({1: idle, 2: idle}, range(4), result) == {1: "communicator c", 2: "communicator c"}
    assert groups_late({0: idle, 1: ("slow_copy", 0.3)}, range(4), result) == {}
    assert groups_late({0: idle, 1: ("host_stall", 0.1)}, range(4), result) == {}
    assert groups_late(dict.fromkeys(range(4), idle), range(4), result) == dict.fromkeys(
        [0, 1], "host a"
    ) | dict.fromkeys([2, 3], "host b")


def test_what_it_costs_in_gpu_seconds_and_money():
    """Rank 2 makes three others wait 20 ms in each of 12 steps; then all four lose 20 ms a step."""
    config = StragglerConfig(window_steps=12, price_per_gpu_hour=3600.0)
    faults = (Fault(2, "idle", 20 * MS, last=11), *all_ranks("idle", 20 * MS, first=84))
    job = batches(simulate(ddp(4), 96, faults, noise=0.0))
    seconds, money = (rows_of(job, name, config=config) for name in ("gpu_seconds_lost", "money_lost"))
    assert seconds[0][2] == pytest.approx(12 * 0.020 * 3, rel=0.01)
    assert seconds[84][JOB] == pytest.approx(12 * 0.020 * 4, rel=0.01)
    assert money[0][2] == pytest.approx(seconds[0][2])  # a GPU-second for one unit of money
    assert [seconds[0][rank] for rank in (JOB, 0, 1, 3)] == [0.0] * 4
    assert rows_of(job, "money_lost")[0][2] == 0.0  # no price, no amount


def test_what_two_late_ranks_cost_is_what_the_others_waited():
    """Rank 1 is 40 ms late in each of 12 steps, rank 3 25 ms: ranks 0 and 2 wait 40 ms, rank 3 the other 15."""
    faults = (Fault(1, "idle", 40 * MS), Fault(3, "idle", 25 * MS))
    job = batches(simulate(ddp(4), 12, faults, noise=0.0))
    seconds = rows_of(job, "gpu_seconds_lost")[0]
    assert seconds[1] + seconds[3] == pytest.approx(12 * (2 * 0.040 + 0.015), rel=0.01)
    assert seconds[1] == pytest.approx(12 * (2 * 0.040 * 40 / 65 + 0.015), rel=0.01)
    assert seconds[0] == seconds[2] == 0.0


def test_a_host_late_together_costs_what_the_other_waited():
    job = batches(simulate(ddp(4), 12, tuple(Fault(rank, "idle", 30 * MS) for rank in (0, 1)), noise=0.0))
    assert sum(rows_of(job, "gpu_seconds_lost")[0].values()) == pytest.approx(12 * 2 * 0.030, rel=0.01)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_late_rank_of_a_pipeline_costs_all_its_ranks(replicas):
    """Waiting in a receive is no collective, and counts all the same."""
    fault = Fault(0, "idle", 40 * MS, first=60)
    job = batches(simulate_pipeline((1.0, 1.0), replicas, 72, (fault,), noise=0.0))
    seconds = rows_of(job, "gpu_seconds_lost")[60]
    peers = 2 * replicas - 1
    assert 0.8 * peers * 12 * 0.040 < seconds[0] < 1.01 * peers * 12 * 0.040


def test_episodes_and_heartbeats():
    job = batches(simulate(ddp(4), 12 * 9, (Fault(2, "copy", 20 * MS, first=24, last=47),)))
    first, last, changed = (rows_of(job, f"{name}") for name in ("episode_first_step", "episode_last_step", "changed"))
    states = rows_of(job, "state", "states")
    assert [states[w][2] for w in states] == ["ok", "ok", "suspect", "critical"] + ["critical"] * 2 + [
        "cleared",
        "ok",
        "ok",
    ]
    assert [first[w][2] for w in first] == [-1, -1, 24, 24, 24, 24, 24, -1, -1]
    assert [last[w][2] for w in last] == [-1, -1, 35, 47, 47, 47, 47, -1, -1]
    assert [changed[w][2] for w in changed] == [1, 0, 1, 1, 1, 0, 1, 1, 0]
    assert [changed[w][0] for w in changed] == [1] + [0] * 8


def samples(clock, *, reasons=0, processes=1, n=5, util=-1, of_job=-1):
    out = np.zeros(n, SAMPLE_ROW)
    out["util_gpu"], out["job_util_sm"] = util, of_job
    out["time_ns"], out["sm_clock"], out["throttle_reasons"], out["processes"] = range(n), clock, reasons, processes
    return GpuSamples(out)


@pytest.mark.parametrize(
    ("rows", "slowdown", "detail"),
    [
        (samples(1500, reasons=0x40), 1.3, "throttled"),
        (samples(1500, reasons=0x1), 1.3, ""),  # lower, and NVML gives no reason that slows it
        (samples(1500, reasons=-1), 1.3, ""),
        (samples(1500, reasons=0x4), 2.5, "slow_part"),  # a lower clock, but not by enough
        (samples(1970, processes=2), 1.3, "shared_gpu"),
        (samples(1500, reasons=0x4, processes=2), 1.3, "shared_gpu"),
        (samples(1970), 1.3, "slow_part"),
        (samples(1970, processes=-1), 1.3, ""),  # unknown which other processes use it
        (samples(-1, processes=1), 1.3, ""),
        (samples(1500, n=0), 1.3, ""),
    ],
)
def test_details_of_slow_compute_from_gpu_samples(rows, slowdown, detail):
    peers = [samples(1980) for _ in range(3)]
    assert device_detail(rows, peers, slowdown, StragglerConfig())[0] == detail


def test_a_gpu_that_is_shared_as_its_peers_are_is_no_slow_part():
    """With what it shares is not known to be the same."""
    peers = [samples(1980, processes=2) for _ in range(3)]
    assert device_detail(samples(1970, processes=2), peers, 1.3, StragglerConfig())[0] == ""
    assert device_detail(samples(1970, processes=1), peers, 1.3, StragglerConfig())[0] == "slow_part"


@pytest.mark.parametrize(("util", "of_job", "detail"), [(100, 40, "shared_gpu"), (76, 63, ""), (100, -1, "")])
def test_a_gpu_is_shared_where_others_use_it_more_than_its_peers_do(util, of_job, detail):
    """A process that only holds memory of the peers' GPUs hides nothing."""
    peers = [samples(1980, processes=2, util=80, of_job=76) for _ in range(3)]
    late = samples(1970, processes=2, util=util, of_job=of_job)
    assert device_detail(late, peers, 1.3, StragglerConfig())[0] == detail


def test_of_two_samples_that_differ_the_lower_counts():
    """NVML reads both shares at other moments; recorded of a GPU that was not shared."""
    late = samples(1980, processes=2, n=2, util=[38, 90], of_job=[36, 52])
    peers = [samples(1980)]
    assert device_detail(late, peers, 1.3, StragglerConfig())[0] == ""


@pytest.mark.parametrize("late_ns", [0, 900 * MS])
def test_samples_refine_the_cause_whenever_they_come(late_ns):
    job = batches(simulate(ddp(4), 36, (Fault(1, "compute", 20 * MS),)))
    stream = list(job)
    for second in range(4):
        for rank in range(4):
            at = 10**18 + second * 1000 * MS + np.arange(10) * 100 * MS
            n = len(at)
            columns = {"time_ns": at, "sm_clock": np.full(n, 1400 if rank == 1 else 1980), "processes": np.ones(n, int)}
            columns |= {name: np.zeros(n, np.int64) for name in SAMPLE_ROW.names if name not in ("time_ns", *columns)}
            columns["throttle_reasons"] += 0x20 * (rank == 1)
            head = {"job": "job", "run": "run", "rank": rank, "rows": n}
            stream.append((int(at[-1]) + late_ns, Batch("gpu.device.v1", head, columns)))
    details = rows_of(sorted(stream, key=lambda item: item[0]), "detail", "details")
    assert [rows[1] for rows in details.values()] == ["throttled"] * 3


@pytest.mark.parametrize("late_ns", [0, 900 * MS])
@pytest.mark.parametrize(
    ("more", "detail"),
    [
        ({"main_wait_ns": 190 * MS}, "cpu_contention"),
        ({"throttled_ns": 190 * MS}, "cpu_throttled"),
        ({"main_blocked_ns": 310 * MS, "major_faults": 99}, "page_faults"),
        ({"main_blocked_ns": 310 * MS}, "disk"),
        ({"main_gil_ns": 310 * MS}, "python_lock"),
        ({"main_wait_ns": 20 * MS}, ""),
    ],
)
def test_samples_of_processes_give_a_stalled_host_its_detail(more, detail, late_ns):
    stream = list(batches(simulate(ddp(4), 36, (Fault(1, "idle", 20 * MS),))))
    for second, rank in product(range(4), range(4)):
        at, batch = host_samples(rank, second, **(more if rank == 1 else {}))
        stream.append((at + late_ns, batch))
    job = sorted(stream, key=lambda item: item[0])
    assert [rows[1] for rows in rows_of(job, "detail", "details").values()] == [detail] * 3
    assert [rows[0] for rows in rows_of(job, "detail", "details").values()] == [""] * 3
    if detail:
        evidence = [json.loads(rows[1]) for rows in rows_of(job, "evidence_json", "evidence").values()]
        assert all(max(values["host"].values()) > 100 * MS for values in evidence)


def test_waiting_for_the_gpu_is_the_detail_unless_samples_of_the_process_explain_it():
    stream = list(batches(simulate(ddp(4), 36, (Fault(1, "idle", 20 * MS),))))
    for _, batch in stream:
        if batch.topic == Topic.STEP:
            batch.columns["sync_ns"] = np.full(batch.rows, 8 * MS * (batch.envelope["rank"] == 1))
    sampled = [host_samples(rank, at, main_gil_ns=310 * MS * (rank == 1)) for at, rank in product(range(4), range(4))]
    for samples, detail in (([], "synchronisation"), (sampled, "python_lock")):
        job = sorted(stream + samples, key=lambda item: item[0])
        assert [rows[1] for rows in rows_of(job, "detail", "details").values()] == [detail] * 3


def test_samples_of_processes_give_healthy_windows_no_detail():
    stream = list(batches(simulate(ddp(4), 36)))
    stream += [host_samples(rank, second, main_wait_ns=100 * MS * rank) for second, rank in product(range(4), range(4))]
    job = sorted(stream, key=lambda item: item[0])
    assert {detail for rows in rows_of(job, "detail", "details").values() for detail in rows.values()} == {""}


def test_a_slow_link_does_not_clear_because_a_rank_is_late_for_a_while():
    """Windows of 12 steps: the link is slow from the third on, a rank is late in the sixth to the ninth."""
    late = Fault(2, "idle", 40 * MS, first=72, last=119)
    job = batches(simulate(ddp(4), 144, (late,), slow_link=(36, 8.0, "")))
    assert [sorted(ranks) for ranks in named_ranks(evaluated(job))] == [[]] * 3 + [[JOB]] * 3 + [[2]] * 4 + [[JOB]] * 2
    states = [ranks[JOB] for ranks in rows_of(job, "state", "states").values()]
    assert states[4:] == [states[5]] * 8
    assert states[5] in ("warning", "critical")


@pytest.mark.parametrize(("run", "named"), [("run", {}), ("run-1", {1: "host_stall"})])
def test_a_job_that_is_started_again_is_another_run(run, named):
    """Its steps begin again: of the same run they come too late, and its late rank has no name."""
    later = dict.fromkeys(range(4), 3_600 * 10**9)
    again = batches(simulate(ddp(4), 48, (Fault(1, "idle", 40 * MS),)), run=run, shift_ns=later)
    config = StragglerConfig(window_steps=12, retention_steps=12)
    result = named_ranks(evaluated([*batches(simulate(ddp(4), 96)), *again], config))
    assert result[:4] == [named] * 4
    assert not any(result[4:])
