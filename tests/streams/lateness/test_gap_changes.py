"""Waits that are hidden behind compute, told from exposed ones by collectives alone."""

from __future__ import annotations

import numpy as np
import pytest
from support.labs.light import hidden_windows, light
from support.straggler_simulator import MS, Fault, ddp, fsdp, mesh, overlapped, simulate

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_rows import COLLECTIVE_ROW, LOCKSTEP, SEND_RECV
from drumline.streams.lateness.gap_changes import beyond_longest, hidden_part

CONFIG = StragglerConfig()
RANKS = np.array([0, 1])


def table(waiting, gaps):
    """Two ranks of which the first waits: its waits, and the gaps behind them."""
    out = np.zeros((2, len(waiting) + 1), COLLECTIVE_ROW)
    out["ordinal"], out["duration_ns"] = range(len(waiting) + 1), 10
    out["duration_ns"][0, :-1] += np.array(waiting)
    for column in range(len(waiting)):
        out["start_ns"][:, column + 1] = (out["start_ns"] + out["duration_ns"])[:, column] + [gaps[column], 100]
    return out


def test_a_gap_that_shrinks_by_what_the_wait_grew_hides_it():
    part = hidden_part(table([20], [80]), table([50], [50]), RANKS, RANKS, CONFIG)
    assert (part.hidden_ns, part.changed_ns) == (30, 30)


def test_a_gap_that_stays_shows_an_exposed_wait():
    part = hidden_part(table([20], [100]), table([50], [100]), RANKS, RANKS, CONFIG)
    assert (part.hidden_ns, part.changed_ns) == (0, 30)


@pytest.mark.parametrize(("gap", "hidden"), [(5, 25), (100, 0)])
def test_a_wait_beyond_every_gap_is_hidden_if_it_leaves_none(gap, hidden):
    part = hidden_part(table([500], [gap]), table([400], [gap]), RANKS, RANKS, CONFIG)
    assert (part.hidden_ns, part.changed_ns) == (hidden, 25)


def test_ranks_and_collectives_that_either_step_lacks_are_left_out():
    three = np.concatenate([table([20], [80]), table([20], [80])[:1]])
    assert hidden_part(three, table([50], [50]), np.array([0, 1, 7]), RANKS, CONFIG).hidden_ns == 30
    assert hidden_part(table([20], [80]), table([50], [50]), RANKS, np.array([8, 9]), CONFIG).changed_ns == 0
    hole = table([20, 20], [80, 80])[:, [0, 2]]
    assert hidden_part(hole, table([50], [50]), RANKS, RANKS, CONFIG).changed_ns == 0


def test_all_but_the_longest_wait_may_be_hidden():
    assert beyond_longest(table([20, 50, 0], [1, 1, 1])).tolist() == [20, 0]


def test_beside_other_collectives_the_waits_in_exchanges_are_not_tested():
    """The result of an exchange is needed at once: beside DDP's hidden waits those for a slow GPU are not hidden."""
    before, now = table([20, 20], [80, 100]), table([50, 50], [50, 100])
    mixed = [part.copy() for part in (before, now)]
    for part in mixed:
        part["lockstep"] = LOCKSTEP
        part["operation"][:, 1] = SEND_RECV
    part = hidden_part(*mixed, RANKS, RANKS, CONFIG)
    assert (part.hidden_ns, part.changed_ns) == (30, 30)
    assert beyond_longest(mixed[1]).tolist() == [0, 0]
    assert hidden_part(before, now, RANKS, RANKS, CONFIG).changed_ns == 60


FAULTS = [
    (),
    (Fault(1, "idle", 15 * MS, period=2),),
    (Fault(0, "compute", 10 * MS),),
    (Fault(1, "idle", 5 * MS, first=7),),
]
EXPOSED = {"ddp": ddp(4), "fsdp": fsdp(4), "mesh": mesh(2, 2), "two ranks": ddp(2, 8)}


@pytest.mark.parametrize("layout", EXPOSED)
def test_exposed_communicators_hide_nothing(layout):
    windows = [
        w
        for seed in range(2)
        for f in FAULTS
        for w in hidden_windows(light(simulate(EXPOSED[layout], 15, f, seed=seed)))
    ]
    assert len(windows) >= 24
    assert not any(is_hidden for is_hidden, *_ in windows)


@pytest.mark.parametrize("fault", FAULTS[:3])
@pytest.mark.parametrize("layout", [fsdp(4), ddp(8, 8)])
def test_overlapped_communicators_hide_their_waits(layout, fault):
    windows = hidden_windows(light(overlapped(layout, 15, fault, seed=1)))
    assert len(windows) == 3
    assert all(is_hidden for is_hidden, *_ in windows)
