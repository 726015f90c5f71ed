"""An inspection is evidence for or against a suspect, once, and never more than its chance allows."""

from dataclasses import asdict

import numpy as np
import pytest

from drumline.streams.stragglers.inspection.evidence import next_inspection, odds_ratio, stated
from drumline.streams.stragglers.inspection.sampled_stacks import Inspection


def inspection(chance=1e-6, share=0.2, first_step=40, at="load (data.py:4)"):
    return Inspection(1, 0, first_step, at, share, 0.0, chance)


def test_without_a_reason_an_inspection_multiplies_odds_by_one_on_average():
    chances = np.random.default_rng(0).random(200_000)
    ratios = [odds_ratio(inspection(chance), 0.2) for chance in chances.tolist()]
    assert np.mean(ratios) == pytest.approx(1.0, rel=0.05)
    assert min(ratios) == pytest.approx(0.5, rel=0.01)


def test_what_is_the_same_on_both_halves_the_odds():
    assert odds_ratio(inspection(1.0, 0.0, at=""), 0.2) == 0.5


@pytest.mark.parametrize(("chance", "at"), [(1e-6, "load (data.py:4)"), (0.5, "")])
def test_a_line_that_differs_by_chance_is_not_stated(chance, at):
    of = inspection(chance)
    assert stated({**asdict(of), "ratio": odds_ratio(of, 0.2)})["at"] == at


@pytest.mark.parametrize(("cost", "ratio"), [(0.05, 500.0), (0.39, 500.0), (0.41, 1.0)])
def test_a_difference_that_does_not_explain_the_cost_counts_for_nothing(cost, ratio):
    assert odds_ratio(inspection(), cost) == pytest.approx(ratio)


def test_the_newest_inspection_counts_in_windows_from_the_one_that_asked_and_once():
    requests = {number: inspection(first_step=20 * number) for number in (1, 3)}

    def at(after, window):
        matched = next_inspection(requests, after, window)
        return None if matched is None else matched[1].first_step

    assert [at(-1, window) for window in range(4)] == [None, 20, 20, 60]
    assert [at(1, 2), at(1, 9), at(3, 9)] == [None, 60, None]
