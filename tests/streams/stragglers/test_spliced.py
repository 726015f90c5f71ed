"""Jobs made of recorded steps in another order: faults now and then, from the first step on, two at once, none at all.

The oracle (straggler_oracle.py) decides: the ranks that cost what matters are named, and no others."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest
from support import trace_splice as splice
from support.recordings import jobs_to_damage, phases
from support.straggler_oracle import costs

from drumline.streams.core.thresholds import INSUFFICIENT, WARNING

MATTERS = 0.05
#: Clearly more than the 4% of a warning: the oracle and the measure differ by a fifth of a loss.
CLEARLY = 0.06
LEAD, LENGTH = 20, 40


def jobs():
    """Recordings with healthy steps to mix faults with."""
    return [
        job
        for job in jobs_to_damage()
        if any(p["counted"] and not p["fault_ranks"] and not p["accepted_causes"] for p in phases(job.values[0]))
    ]


def faults(folder):
    return [p for p in phases(folder) if p["counted"] and p["fault_ranks"]]


def evaluated(folder, order, begin=0):
    """(rank -> share of windows from step `begin` on in which it is named, cost by the oracle)."""
    ranks = splice.spliced(folder, order)
    windows = splice.rows(folder, ranks)
    result = [
        row for (first, rank), row in windows.items() if rank >= 0 and begin <= first and row.last_step < len(order)
    ]
    assert not any(row.severity == INSUFFICIENT for row in result)
    named = {
        rank: np.mean([row.severity >= WARNING for row in result if row.rank == rank]) for rank in range(len(ranks))
    }
    return named, costs(ranks, begin, len(order) - 1)


def right(guilty, named, cost, clearly=CLEARLY):
    """Two ranks that are late by turns wait for each other, and the oracle sees the difference only."""
    for rank, often in named.items():
        assert often == 0.0 or rank in guilty or cost[rank] >= MATTERS, ("innocent, and named", rank, named, cost)
        assert often >= 0.5 or cost[rank] < clearly, ("missed", rank, named, cost)


@cache
def healthy(folder):
    return splice.steps_of(folder)


@pytest.mark.parametrize("folder", jobs())
@pytest.mark.parametrize("nth", [2, 3, 5])
def test_a_fault_in_every_nth_step(folder, nth):
    for fault in faults(folder):
        chosen = splice.mixed((splice.steps_of(folder, fault["phase"]), 1), (healthy(folder), nth - 1))
        order = splice.first(LEAD, splice.mixed((healthy(folder), 1))) + splice.first(LENGTH, chosen)
        right(fault["fault_ranks"], *evaluated(folder, order, LEAD))


@pytest.mark.parametrize("folder", jobs())
def test_a_fault_from_the_first_step_on(folder):
    """Without a past, a rank with other work that hides behind compute shows less than it costs."""
    for fault in faults(folder):
        order = splice.first(LENGTH, splice.mixed((splice.steps_of(folder, fault["phase"]), 1)))
        right(fault["fault_ranks"], *evaluated(folder, order), clearly=2 * MATTERS)


@pytest.mark.parametrize("folder", jobs())
def test_two_faults_by_turns(folder):
    for first, other in combinations(faults(folder), 2):
        both = splice.mixed(*((splice.steps_of(folder, fault["phase"]), 1) for fault in (first, other)))
        order = splice.first(LEAD, splice.mixed((healthy(folder), 1))) + splice.first(LENGTH, both)
        right({*first["fault_ranks"], *other["fault_ranks"]}, *evaluated(folder, order, LEAD))


@pytest.mark.parametrize("folder", jobs())
def test_healthy_steps_in_any_order_name_no_rank(folder):
    order = np.random.default_rng(1).permutation(healthy(folder))[:60].tolist()
    named, _ = evaluated(folder, order)
    assert not any(named.values()), named
