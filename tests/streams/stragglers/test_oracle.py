"""Verdicts on recorded jobs against an oracle that shares no code with them (straggler_oracle.py)."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from support.recordings import other_recordings, phases, report, rows, stream, trace
from support.straggler_oracle import costs, step_ms

from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.producers.activity.table import Table
from drumline.producers.derive.rows import derive
from drumline.producers.replay.recording import measured_from

#: A loss that matters (design, section 5): every injected rank has it, and no named rank lacks it.
MATTERS = 0.05
JOBS = [pytest.param(DEMO_RECORDING, id=DEMO_RECORDING.name)] + [
    pytest.param(folder, id=folder.name, marks=pytest.mark.traces) for folder in other_recordings()
]


@cache
def derived(folder):
    recorded = trace(folder)
    pairs = zip(recorded.activities, measured_from(recorded), strict=True)
    return [derive(activity, since_ns=since) for activity, since in pairs]


@cache
def verdicts(folder):
    return report(folder, rows(stream(folder)))


def costs_of(folder, phase):
    return costs(derived(folder), phase["first_step"], phase["last_step"])


@pytest.mark.parametrize("folder", JOBS)
def test_every_injected_rank_costs_what_matters_and_healthy_ranks_do_not(folder):
    for phase in (p for p in phases(folder) if p["counted"]):
        cost = costs_of(folder, phase)
        for rank in phase["fault_ranks"]:
            assert cost[rank] >= MATTERS, (phase["phase"], rank, cost)
        if not phase["fault_ranks"] and not phase["accepted_causes"]:
            assert cost.max() < MATTERS, (phase["phase"], cost)


@pytest.mark.parametrize("folder", JOBS)
def test_the_oracle_agrees_with_how_much_slower_the_job_was(folder):
    healthy = [p for p in phases(folder) if p["counted"] and not p["fault_ranks"]]
    if not healthy:
        pytest.skip("no counted healthy phase to compare with")
    baseline = np.median([step_ms(derived(folder), p["first_step"] + 1, p["last_step"]) for p in healthy])
    for phase in (p for p in phases(folder) if p["counted"] and len(p["fault_ranks"]) == 1):
        lost = 1 - baseline / step_ms(derived(folder), phase["first_step"] + 1, phase["last_step"])
        cost = costs_of(folder, phase)[phase["fault_ranks"][0]]
        assert 0.5 <= cost / lost <= 2.0, (phase["phase"], cost, lost)


@pytest.mark.parametrize("folder", JOBS)
def test_no_rank_is_named_that_the_oracle_acquits(folder):
    for phase, result in zip(phases(folder), verdicts(folder).phases, strict=True):
        if phase["counted"]:
            cost = costs_of(folder, phase)
            extra = set(result.found_ranks) - set(phase["fault_ranks"])
            assert all(cost[rank] >= MATTERS for rank in extra), (phase["phase"], extra, cost)


@pytest.mark.parametrize("folder", JOBS)
def test_every_rank_that_the_oracle_and_the_manifest_agree_on_is_found(folder):
    missed = [
        (phase["phase"], rank, costs_of(folder, phase)[rank])
        for phase, result in zip(phases(folder), verdicts(folder).phases, strict=True)
        for rank in phase["fault_ranks"]
        if phase["counted"] and result.windows and rank not in result.found_ranks
    ]
    assert not missed


def processes(collectives, time=100, operation="AllReduce"):
    """Ranks with one step each; `collectives`: rank -> [(communicator, ordinal, duration, covered)]."""
    out = []
    for values in collectives.values():
        names = ("communicator", "ordinal", "duration_ns", "covered_ns")
        columns = dict(zip(names, np.array(values, np.int64).T, strict=True))
        columns |= {"step": np.zeros(len(values), np.int64), "operation": np.zeros(len(values), np.int64)}
        steps = Table({"step": np.zeros(1, np.int64), "gpu_duration_ns": np.full(1, time)})
        out.append(SimpleNamespace(collectives=Table(columns, {"operations": (operation,)}), steps=steps))
    return out


def test_the_oracle_names_the_root_of_a_chain():
    # Rank 1 is late in {0, 1}; rank 0, which waited for it, then comes late in {0, 2}.
    chain = {0: [(7, 0, 31, 0), (8, 0, 1, 0)], 1: [(7, 0, 1, 0)], 2: [(8, 0, 31, 0)]}
    assert costs(processes(chain), 0, 0) == pytest.approx([-0.15, 0.3, -0.15])


def test_the_oracle_counts_a_lead_that_is_seen_in_many_collectives_once():
    late = [(7, k, 1, 0) for k in range(4)]
    ahead = [(7, k, 11, 11) for k in range(4)]
    assert costs(processes({0: ahead, 1: late, 2: ahead}), 0, 0) == pytest.approx([-0.05, 0.1, -0.05])


def test_the_oracle_acquits_all_ranks_where_all_wait_alike():
    assert costs(processes({rank: [(7, 0, 5, 0)] for rank in range(4)}), 0, 0) == pytest.approx([0.0] * 4)


def test_the_oracle_finds_two_late_ranks_each_by_its_own_amount():
    waiting = {0: 41, 1: 1, 2: 41, 3: 16}  # 40 and 25 late: the median of the others waited 15 more than 1, and 40
    result = costs(processes({rank: [(7, 0, wait, 0)] for rank, wait in waiting.items()}), 0, 0)
    assert result == pytest.approx([-0.25, 0.40, -0.25, 0.25])


def test_the_oracle_counts_what_is_covered_only_once_and_what_is_not_always():
    late, ahead = [(7, 0, 1, 0), (7, 1, 1, 0)], [(7, 0, 11, 10), (7, 1, 21, 0)]  # 10 covered, then 20 that are not
    assert costs(processes({0: ahead, 1: late, 2: ahead}), 0, 0)[1] == pytest.approx(0.20)


def test_the_oracle_acquits_the_partner_of_a_rank_with_less_work():
    """Rank 1 has less work: it waits in its pair, for rank 0, which is as long as 2 and 3 are."""
    meets = {0: [(8, 0, 1, 0)], 1: [(8, 0, 21, 0)], 2: [(9, 0, 1, 0)], 3: [(9, 0, 1, 0)]}
    rows_of = {rank: [*pair, (7, 0, 1, 0)] for rank, pair in meets.items()}
    assert costs(processes(rows_of), 0, 0) == pytest.approx([0.0, -0.2, 0.0, 0.0])
    assert costs(processes({rank: meets[rank] for rank in (0, 1)}), 0, 0) == pytest.approx([0.2, -0.2])


def test_the_oracle_compares_a_sender_only_with_ranks_that_it_meets():
    """Ranks 0 and 1 meet in 8; what 2 waits in its receive is not their affair."""
    meet = {rank: [(8, 0, 1, 0)] for rank in range(2)} | {2: [(9, 0, 1, 0)]}
    ranks, single = processes(meet), processes({2: [(9, 0, 80, 0)]}, operation="Recv")
    ranks[2] = single[0]
    assert costs(ranks, 0, 0) == pytest.approx([0.0, 0.0, 0.0])


def test_the_oracle_takes_receives_whole():
    """Rank 1 is late in the pair only by what rank 0 waited in a receive of its own: 30 of it."""
    pair = processes({rank: [(8, 0, 1, 0)] for rank in range(2)})
    receive = processes({0: [(9, 0, 30, 0)]}, operation="Recv")[0].collectives
    both = Table(
        {name: np.concatenate([pair[0].collectives[name], receive[name]]) for name in receive.columns},
        {"operations": ("AllReduce", "Recv")},
    )
    both.columns["operation"] = np.array([0, 1])
    pair[0] = SimpleNamespace(collectives=both, steps=pair[0].steps)
    assert costs(pair, 0, 0) == pytest.approx([-0.3, 0.3])


def test_the_oracle_looks_at_no_other_steps():
    late = processes({0: [(7, 0, 31, 0)], 1: [(7, 0, 1, 0)]})
    assert costs(late, 0, 0)[1] == pytest.approx(0.3)
    for row in late:
        row.collectives.columns["step"] = np.ones(1, np.int64)
    assert costs(late, 0, 0) == pytest.approx([0.0, 0.0])
