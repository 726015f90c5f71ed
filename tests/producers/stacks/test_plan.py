"""An agent samples for a verdict the processes of its host, within limits that all agents share."""

import random

import pytest

from drumline.producers.host.targets import RecordedProcess
from drumline.producers.stacks.plan import (
    CULPRIT,
    DAY_S,
    FIRST_ODDS,
    MORE_ODDS,
    MOST_AGE_S,
    MOST_PER_DAY,
    MOST_SAMPLINGS_PER_DAY,
    OF_SUSPECT,
    PEER,
    PERIOD_S,
    SamplingPlan,
)
from drumline.producers.stacks.verdicts import HANG, STRAGGLER, SUSPECT, Verdict

DAY = 20_000 * DAY_S


def local(rank, job="j", run="r", pid=100, **more):
    return RecordedProcess({"job": job, "run": run, "rank": rank, "pid": pid, **more}, pid, 1000)


def verdict(at_s=DAY, job="j", named=(1,), peer=0, kind=STRAGGLER):
    return Verdict(kind, job, "r", at_s, named, peer)


def roles(samplings):
    return [(s.role, s.process.record["rank"], s.named_rank) for s in samplings]


def test_each_host_samples_its_part_of_a_verdict():
    for host, expected in (("a", [(PEER, 0, 1)]), ("b", [(CULPRIT, 1, 1)]), ("c", [])):
        plan = SamplingPlan()
        processes = [local(rank) for rank in {"a": (0,), "b": (1,), "c": (5,)}[host]]
        assert roles(plan.samplings(verdict(), processes, DAY)) == expected


def test_a_mismatch_samples_both_named_ranks_and_the_peer_of_the_first():
    processes = [local(rank) for rank in range(4)]
    samplings = SamplingPlan().samplings(verdict(named=(3, 2)), processes, DAY)
    assert roles(samplings) == [(CULPRIT, 3, 3), (CULPRIT, 2, 2), (PEER, 0, 3)]


@pytest.mark.parametrize("other", [{"job": "x"}, {"run": "x"}, {"rank": 7}, {"pid": 0}])
def test_a_process_of_another_job_run_or_rank_is_not_sampled(other):
    assert not SamplingPlan().samplings(verdict(), [local(**{"rank": 1, **other})], DAY)


def test_of_several_processes_of_a_rank_the_first_is_sampled():
    processes = [local(1, start_ns=9, pid=9), local(1, start_ns=5, pid=5)]
    [sampling] = SamplingPlan().samplings(verdict(), processes, DAY)
    assert sampling.process.record["pid"] == 5


def test_a_job_is_sampled_once_a_period_by_kafkas_time_and_others_go_on():
    plan, processes = SamplingPlan(), [local(1), local(1, job="k")]
    times = [0, 1, PERIOD_S - 1, PERIOD_S, PERIOD_S + 1, 2 * PERIOD_S]
    assert [bool(plan.samplings(verdict(DAY + t), processes, DAY + t)) for t in times] == [1, 0, 0, 1, 0, 1]
    assert plan.samplings(verdict(DAY + 3, job="k"), processes, DAY + 3)


def test_a_hang_is_sampled_whenever_a_straggler_of_its_job_was_and_once_a_period_too():
    plan, processes = SamplingPlan(), [local(1)]
    sampled = [
        bool(plan.samplings(verdict(DAY + t, kind=kind), processes, DAY + t))
        for kind, t in ((STRAGGLER, 0), (HANG, 10), (HANG, 50), (STRAGGLER, 59), (STRAGGLER, 60), (HANG, 70))
    ]
    assert sampled == [True, True, False, False, True, True]


def test_agents_follow_the_same_verdicts_wherever_the_processes_are():
    first, second = SamplingPlan(), SamplingPlan()
    followed = []
    for t, named in ((0, 2), (30, 1), (70, 1)):  # rank 2 is on a third host
        late = verdict(DAY + t, named=(named,), peer=0)
        followed.append((bool(first.samplings(late, [local(1)], DAY + t)),
                         bool(second.samplings(late, [local(0)], DAY + t))))  # fmt: skip
    assert followed == [(False, True), (False, False), (True, True)]


def test_an_old_verdict_is_not_followed():
    plan = SamplingPlan()
    assert not plan.samplings(verdict(), [local(1)], DAY + MOST_AGE_S + 1)
    assert plan.skipped == {"old": 1}


def test_a_job_has_a_budget_a_day():
    plan, step = SamplingPlan(), DAY_S / (MOST_PER_DAY + 10)
    done = sum(bool(plan.samplings(verdict(DAY + i * step), [local(1)], DAY + i * step))
               for i in range(MOST_PER_DAY + 10))  # fmt: skip
    assert done == MOST_PER_DAY
    assert plan.samplings(verdict(DAY + DAY_S), [local(1)], DAY + DAY_S), "the next day has its own"


def test_a_host_has_a_budget_a_day_for_all_jobs():
    plan, count = SamplingPlan(), MOST_SAMPLINGS_PER_DAY + 5
    processes = [local(1, job=f"j{i}") for i in range(count)]
    done = [bool(plan.samplings(verdict(DAY + i, job=f"j{i}"), processes[i : i + 1], DAY + i)) for i in range(count)]
    assert done == [True] * MOST_SAMPLINGS_PER_DAY + [False] * 5
    assert plan.skipped == {"budget": 5}


def suspect(at_s, odds=4.0):
    return Verdict(SUSPECT, "j", "r", DAY + at_s, (1,), 0, odds=odds)


def test_a_suspect_and_its_peer_are_sampled_as_such():
    samplings = SamplingPlan().samplings(suspect(0), [local(0), local(1)], DAY)
    assert roles(samplings) == [(OF_SUSPECT, 1, 1), (PEER, 0, 1)]


def test_each_inspection_of_a_job_needs_larger_odds_for_some_time():
    plan, processes = SamplingPlan(), [local(1)]
    more = FIRST_ODDS * MORE_ODDS
    requests = [
        (0, FIRST_ODDS - 0.1),
        (1, FIRST_ODDS),
        (59, 1e6),
        (300, FIRST_ODDS),
        (300, more),
        (361, more),
        (4000, 3),
    ]
    assert [bool(plan.samplings(suspect(*of), processes, DAY + of[0])) for of in requests] == [0, 1, 0, 0, 1, 0, 1]


@pytest.mark.parametrize("mean", [1.0, 30.0])
def test_a_healthy_job_has_one_inspection_in_ten_minutes_however_large_its_odds_are_by_chance(mean):
    dice, plan, hours = random.Random(1), SamplingPlan(), 20
    odds = [mean / dice.random() for _ in range(3_600 * hours)]  # of which one in A is A times as large
    followed = [
        second for second, of in enumerate(odds) if plan.samplings(suspect(second, of), [local(1)], DAY + second)
    ]
    assert 3 * hours < len(followed) <= 1.05 * 6 * hours + 8


def test_an_inspection_of_a_suspect_delays_no_sampling_of_a_named_rank():
    plan, processes = SamplingPlan(), [local(1)]
    assert plan.samplings(suspect(0), processes, DAY)
    assert plan.samplings(verdict(DAY + 1), processes, DAY + 1)
