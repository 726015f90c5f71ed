"""Loss of healthy windows: what a rank's peers wait for it; turns cancel, the later waits of a step do not count."""

from dataclasses import replace

import numpy as np
import pytest
from support.pipeline_simulator import simulate_pipeline
from support.simulated_rows import healthy_rows, healthy_runs, rows_of

from drumline.lab.evaluate.curve.timings import runs_of_steps
from drumline.lab.evaluate.curve.window_loss import window_losses


def with_durations(runs, durations):
    """Return one run whose first operation of each step takes so long, by rank; ns."""
    [steps] = runs
    out = []
    for number, step in enumerate(steps):
        first, *rest = step.operations
        first = replace(first, duration_ns=np.array(durations[number % len(durations)], float))
        quiet = (replace(o, duration_ns=np.full(2, 5e5)) for o in rest)
        out.append(replace(step, operations=(first, *quiet)))
    return [out]


def test_a_rank_that_is_always_late_costs_its_lateness():
    runs = with_durations(healthy_runs(healthy_rows()), [(5e5, 6.7e6)])
    assert window_losses(runs, 20) == [pytest.approx(0.1, abs=0.005)] * 2


def test_turns_cancel():
    runs = with_durations(healthy_runs(healthy_rows()), [(5e5, 6.7e6), (6.7e6, 5e5)])
    assert max(window_losses(runs, 20)) < 0.001


def test_the_loss_of_a_pipeline_whose_ranks_never_meet_is_not_known():
    assert window_losses(runs_of_steps(rows_of(simulate_pipeline((1.0, 1.2), 1, 41)), [(0, 40)]), 20) == []
