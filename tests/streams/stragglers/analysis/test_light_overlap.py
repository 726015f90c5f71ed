"""Waits that light steps do not show, moved to communication."""

import numpy as np
import pytest

from drumline.streams.stragglers.analysis.light_overlap import with_unseen_waiting
from drumline.streams.stragglers.analysis.window_data import WORST_ROW, CommunicatorWindow, WindowData


def window(wait, exposed, compute, idle, light=True):
    """Two ranks in one step; rank 0 waits."""
    columns = {"comm_exposed_ns": exposed, "compute_ns": compute, "idle_ns": idle}
    budget = {name: np.array([[value], [1.0]]) for name, value in columns.items()}
    waiting = np.array([[wait], [0.0]])
    group = CommunicatorWindow("c", 2, np.arange(2), waiting, waiting[::-1], np.zeros(2, WORST_ROW))
    return WindowData(np.arange(2), np.arange(1), budget, [group], light=light)


def moved(*arguments, **options):
    budget = with_unseen_waiting(window(*arguments, **options)).budget
    return tuple(float(budget[name][0, 0]) for name in ("comm_exposed_ns", "compute_ns", "idle_ns"))


def test_a_wait_beyond_exposed_communication_was_counted_as_compute_then_as_idle():
    assert moved(12.0, 2.0, 20.0, 5.0) == (12.0, 10.0, 5.0)
    assert moved(12.0, 2.0, 4.0, 7.0) == (12.0, 0.0, 1.0)
    assert moved(12.0, 2.0, 4.0, 3.0) == (9.0, 0.0, 0.0)


@pytest.mark.parametrize("wait", [0.0, 2.0, np.nan])
def test_waits_that_communication_shows_move_nothing(wait):
    assert moved(wait, 2.0, 20.0, 5.0) == (2.0, 20.0, 5.0)


def test_steps_with_kernels_are_left_as_they_are():
    assert moved(12.0, 2.0, 20.0, 5.0, light=False) == (2.0, 20.0, 5.0)
