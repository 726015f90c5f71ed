"""Windows of one or two steps: no t-test by steps is possible in them, and single odd steps name no rank."""

from __future__ import annotations

import numpy as np
import pytest

from drumline.lab.bench.jittery_jobs import HEALTHY, STEP_NS, fault, lateness, named, verdicts, windows

LATE, STEPS = 1, 60
#: Jitter of the kinds whose runs end within one window, however short it is.
WITHIN_A_STEP = ("no jitter", "independent steps", "heavy tails", "pauses, one in 100 steps", "checkpoints of rank 0")


def job(window_steps, late_ns=None, noise=0.01, steps=STEPS, ranks=4):
    idle = np.zeros((steps, ranks))
    idle[:, LATE] += 0.0 if late_ns is None else late_ns
    more = STEP_NS * noise * np.random.default_rng(0).standard_normal((steps, ranks))
    return verdicts(windows(idle, more, window_steps), window_steps)


def naming(result):
    return [number for number, verdict in enumerate(result) if LATE in named(verdict)]


@pytest.mark.parametrize("window_steps", [1, 2])
@pytest.mark.parametrize("first", [0, 12])
def test_a_rank_late_in_each_step_is_named_in_some_windows_and_as_long_as_it_lasts(window_steps, first):
    windows_named = naming(job(window_steps, fault("idle", STEPS, first, 0.25)))
    assert windows_named[0] < first // window_steps + 5
    assert windows_named == list(range(windows_named[0], STEPS // window_steps))


@pytest.mark.parametrize("window_steps", [1, 2])
@pytest.mark.parametrize("run", [1, 2])
def test_some_late_steps_name_no_rank(window_steps, run):
    late = np.zeros(STEPS)
    late[30 : 30 + run] = 2 * STEP_NS
    assert naming(job(window_steps, late)) == []


def test_a_long_step_of_all_ranks_is_no_slower_job_and_a_second_one_is():
    def causes(run):
        more = np.zeros((STEPS, 4))
        more[30 : 30 + run] = STEP_NS
        result = verdicts(windows(np.zeros(more.shape), more, 1), 1)
        return {number for number, verdict in enumerate(result) if verdict.rows[0].cause.cause == "changed_job"}

    assert causes(1) == set()
    assert causes(3) == {31, 32}


@pytest.mark.parametrize("kind", WITHIN_A_STEP)
def test_a_healthy_job_names_no_rank_in_windows_of_one_step(kind):
    assert kind in HEALTHY
    result = verdicts(windows(lateness(kind, 4, 150, 0.15), window_steps=1), 1)
    assert [verdict for verdict in result if named(verdict)] == []
