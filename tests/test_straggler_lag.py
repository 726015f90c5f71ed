"""Lateness that hides behind compute: seen against the job's own past, never in a victim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drumline.streams.blame import Meeting, WindowTable, blame
from drumline.streams.budgets import BUDGET
from drumline.streams.inflation import inflation
from drumline.streams.lag import with_lag
from drumline.streams.matching import LATENESS_ROW
from drumline.streams.past import STEP

STEPS, USUAL = 5, 100.0
LATE = 2


def meeting(name: str, members: list[int], lag: dict[int, float], wait: dict[int, float]) -> Meeting:
    shape = (len(members), STEPS)
    lags, waits = np.zeros(shape), np.zeros(shape)
    for rank, value in lag.items():
        lags[members.index(rank)] = value
    for rank, value in wait.items():
        waits[members.index(rank)] = value
    who, met = np.array(members), np.ones(STEPS, bool)
    worst = np.zeros(shape, LATENESS_ROW)
    return Meeting(name, len(who), who, waits, lags, worst, lags, who, met)


def table(*meetings: Meeting, step: float = USUAL) -> WindowTable:
    budget = {name: np.zeros((4, STEPS)) for name in BUDGET} | {"gpu_duration_ns": np.full((4, STEPS), step)}
    return WindowTable(np.arange(4), np.arange(STEPS), budget, list(meetings))


def share(window: WindowTable, usual: float = USUAL, expected: int = 4) -> list[float]:
    past = {STEP: usual, "comm_exposed_ns": 0.0}
    return [round(v, 3) for v in with_lag(window, blame(window, 0.8), past, expected).share.tolist()]


EVERYBODY = [0, 1, 2, 3]
HIDDEN = meeting("dp", EVERYBODY, {LATE: 9.0}, {0: 60.0, 1: 60.0, 3: 60.0})


def test_a_late_rank_whose_lag_is_made_up_costs_what_the_steps_grew():
    assert share(table(HIDDEN, step=106.0)) == [0.0, 0.0, round(6 / 106, 3), 0.0]


def test_it_never_costs_more_than_its_lag():
    assert share(table(HIDDEN, step=150.0)) == [0.0, 0.0, round(9 / 150, 3), 0.0]


def test_with_a_rank_that_is_not_heard_lag_proves_nothing():
    assert share(table(HIDDEN, step=106.0), expected=5) == [0.0, 0.0, 0.0, 0.0]


def test_a_step_in_which_a_rank_met_nobody_proves_nothing():
    absent = replace(HIDDEN, wait_ns=np.where(HIDDEN.members[:, None] == 1, np.nan, HIDDEN.wait_ns))
    assert share(table(absent, step=106.0))[LATE] == 0.0


def test_who_waited_longer_than_ever_in_something_that_was_not_recorded_is_not_late():
    window = table(HIDDEN, step=106.0)
    window.budget["comm_exposed_ns"][LATE] = 9.0
    assert share(window) == [0.0, 0.0, 0.0, 0.0]


def test_a_rank_whose_steps_have_another_length_numbers_them_in_another_way():
    long = 50e6
    late = meeting("dp", EVERYBODY, {LATE: 9e6}, {0: 60e6, 1: 60e6, 3: 60e6})
    window = table(late, step=106e6)
    assert share(window, usual=100e6)[LATE] > 0.0
    window.budget["gpu_duration_ns"][LATE] += long
    assert share(window, usual=100e6)[LATE] == 0.0


def test_where_the_steps_take_no_longer_lag_costs_nothing():
    assert share(table(HIDDEN, step=99.0)) == [0.0, 0.0, 0.0, 0.0]


def test_two_late_ranks_share_no_blame_with_the_others():
    late = meeting("dp", EVERYBODY, {1: 40.0, 3: 25.0}, {0: 41.0, 2: 41.0, 3: 16.0})
    assert share(table(late, step=137.0)) == [0.0, round(37 / 137, 3), 0.0, round(25 / 137, 3)]


@pytest.mark.parametrize("extra", [0.0, 3.0])
def test_a_rank_that_waited_elsewhere_is_a_victim(extra):
    """Rank 0 waited for rank 1 in their pair, so it comes late to its pair with rank 2, by that and `extra`."""
    pair = meeting("tp", [0, 1], {1: 20.0, 0: -20.0}, {0: 20.0})
    other = meeting("dp", [0, 2], {0: 20.0 + extra, 2: -20.0}, {2: 20.0 + extra})
    found = share(table(pair, other, meeting("dp", [1, 3], {}, {}), step=120.0))
    assert found == [round(extra / 120, 3), round(20 / 120, 3), 0.0, 0.0]


def test_what_is_not_known_of_another_communicator_takes_the_step_out():
    pair = meeting("tp", [0, 1], {1: 20.0, 0: -20.0}, {0: 20.0})
    pair.wait_ns[:, 1:4] = np.nan
    other = meeting("dp", [0, 2], {0: 20.0, 2: -20.0}, {2: 20.0})
    assert share(table(pair, other, step=120.0))[0] == 0.0


def test_a_member_that_lost_all_its_rows_is_not_blamed_elsewhere():
    pair = meeting("tp", [1, 3], {}, {})
    other = meeting("dp", [0, 2], {0: 20.0, 2: -20.0}, {2: 20.0})
    known = table(pair, other, step=120.0)
    assert share(known)[0] > 0.1
    assert share(table(replace(pair, listed=np.array([0, 1, 3])), other, step=120.0))[0] == 0.0


def test_ranks_of_a_pipeline_are_left_to_the_other_measure():
    stage = replace(HIDDEN, roles=np.array([0, 0, 2, 2]))
    assert share(table(stage, step=106.0)) == [0.0, 0.0, 0.0, 0.0]


def inflated(compute: list[float], overlapped: list[float], one: Meeting = HIDDEN, **more: list[float]) -> list[float]:
    """Shares where nothing is known of the past; the ranks' waiting shows in longer compute only."""
    rows = {"compute_ns": compute, "compute_overlapped_ns": overlapped, "kernels": [10.0] * 4, "blocks": [99.0] * 4}
    window = table(one)
    for name, values in (rows | more).items():
        window.budget[name][:] = np.array(values)[:, None]
    return [round(v, 3) for v in blame(window, 0.8, [inflation(window, one, 0.8, 1.01)]).share.tolist()]


LONGER, OVERLAPPED = [58.0, 58.0, 50.0, 58.0], [40.0, 40.0, 10.0, 40.0]


def test_without_a_past_a_late_rank_shows_in_its_peers_compute():
    assert inflated(LONGER, OVERLAPPED) == [0.0, 0.0, 0.08, 0.0]


def test_a_faster_gpu_is_not_late():
    assert inflated(LONGER, [40.0] * 4) == [0.0] * 4


def test_less_work_is_not_late():
    assert inflated(LONGER, OVERLAPPED, blocks=[99.0, 99.0, 80.0, 99.0]) == [0.0] * 4


def test_nobody_is_late_whom_nobody_waited_for():
    assert inflated(LONGER, OVERLAPPED, meeting("dp", EVERYBODY, {}, {})) == [0.0] * 4
