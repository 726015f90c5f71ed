"""The true cost of a fault: known factors, nothing for nothing, an interval that covers, neighbours only."""

import numpy as np
import pytest

from drumline.lab.evaluate.curve.job_rows import StepTimes
from drumline.lab.evaluate.curve.true_cost import beside, cost_class, true_cost


def steps_of(count, ms, spread=0.05, seed=0):
    return ms * 1e6 * (1 + spread * np.random.default_rng(seed).standard_normal(count))


def test_a_fault_that_lengthens_each_step_costs_that_much_and_the_interval_covers_it():
    cost = true_cost(steps_of(200, 130), steps_of(200, 100, seed=1))
    assert cost.low < 0.30 < cost.high
    assert cost.high - cost.low < 0.06
    assert cost.lost_share == pytest.approx(0.3 / 1.3, abs=0.02)


def test_a_fault_that_changes_nothing_has_an_interval_around_zero():
    cost = true_cost(steps_of(200, 100), steps_of(200, 100, seed=1))
    assert cost.low < 0 < cost.high
    assert cost_class(cost.cost) == "< 5 %"


def test_steps_that_are_alike_in_rows_widen_the_interval():
    mixed, in_rows = steps_of(200, 100, spread=0.2), np.repeat(steps_of(20, 100, spread=0.2), 10)
    narrow, wide = (true_cost(times, np.full(200, 1e8)) for times in (mixed, in_rows))
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_single_long_steps_show_in_the_mean_not_in_the_median():
    times = np.full(100, 1e8)
    times[::5] = 6e8
    cost = true_cost(times, np.full(100, 1e8))
    assert (cost.cost, cost.mean_cost) == (0.0, pytest.approx(1.0))


def test_only_the_healthy_phases_next_to_a_fault_count():
    step = np.arange(50)
    times = StepTimes(step, step.astype(float), step)
    assert beside(times, (20, 29), [(0, 4), (10, 14), (35, 36), (40, 49)]).tolist() == [10, 11, 12, 13, 14, 35, 36]
    assert true_cost(times.between(20, 29), beside(times, (20, 29), [])) is None


@pytest.mark.parametrize(("cost", "name"), [(0.049, "< 5 %"), (0.05, "5-10 %"), (0.399, "20-40 %"), (2.0, "> 40 %")])
def test_bounds_of_the_classes(cost, name):
    assert cost_class(cost) == name
