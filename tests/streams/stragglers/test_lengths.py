"""Windows of a run have as many steps as its first steps decide, and more where steps become short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.straggler_simulator import MS, batches, ddp, simulate

from drumline.streams.core.records import run_key
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.offline import verdicts
from drumline.streams.stragglers.lengths import FIRST_STEPS, WindowLengths
from drumline.streams.stragglers.step_rows import STEP_ROW

CONFIG = StragglerConfig()
SECOND = 1_000_000_000


def rows(lengths_ns, first=0):
    out = np.zeros(len(lengths_ns), STEP_ROW)
    out["step"], out["duration_ns"] = first + np.arange(len(lengths_ns)), lengths_ns
    return out


def decided(*lengths_ns, store=None):
    lengths = WindowLengths({} if store is None else store, run_key("j", "r"), CONFIG)
    lengths.note_steps(rows(lengths_ns))
    assert lengths.decide(False)
    return lengths


def steps_of(lengths, window=0):
    return lengths.last_step_of(window) - lengths.first_step_of(window) + 1


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.03, 20), (1.5, 20), (1.6, 10), (3, 10), (5, 5), (7, 4), (15, 2), (16, 1), (600, 1)]
)
def test_a_window_is_the_largest_part_of_a_block_that_lasts_no_longer_than_the_bound(step_s, steps):
    assert steps_of(decided(*[round(step_s * SECOND)] * FIRST_STEPS)) == steps


@given(st.lists(st.integers(1, CONFIG.window_ns // CONFIG.window_steps), min_size=1), st.lists(st.integers(1, 10**15)))
def test_windows_of_fast_steps_have_all_their_steps_however_long_some_take(fast, slow):
    lengths = decided(*fast, *slow)
    assert [lengths.window_of(step) for step in (0, 19, 20, 399)] == [0, 0, 1, 19]
    assert lengths.config_of(7) == CONFIG


def test_the_first_steps_compile_and_do_not_decide():
    lengths = WindowLengths({}, run_key("j", "r"), CONFIG)
    for step, length_s in enumerate((90, 40)):
        lengths.note_steps(rows([length_s * SECOND], step))
        assert not lengths.decide(False)
    lengths.note_steps(rows([SECOND // 2], 2))
    assert lengths.decide(False)
    assert steps_of(lengths) == 20


def test_steps_without_a_length_decide_nothing_else_than_whole_blocks():
    assert steps_of(decided(0, 0, 0)) == 20


def test_windows_become_longer_behind_all_rows_once_a_block_of_steps_was_short():
    store = {}
    lengths = decided(90 * SECOND, 80 * SECOND, 70 * SECOND, store=store)
    for window in range(24):
        lengths.note_window(window, 70 * SECOND if window < 3 else SECOND // 2, window // 20)
    again = WindowLengths(store, run_key("j", "r"), CONFIG)
    again.restore()
    for of in (lengths, again):
        assert [steps_of(of, window) for window in (0, 19, 20, 21)] == [1, 1, 20, 20]
        bounds = [(of.first_step_of(w), of.last_step_of(w)) for w in range(30)]
        assert [last + 1 for _, last in bounds[:-1]] == [first for first, _ in bounds[1:]]
        assert all(of.window_of(first) == of.window_of(last) == w for w, (first, last) in enumerate(bounds))


def test_windows_stay_as_long_where_steps_become_slow():
    lengths = decided(SECOND, SECOND, SECOND)
    for window in range(100):
        lengths.note_window(window, 60 * SECOND, window)
    assert steps_of(lengths, 99) == 20


def test_a_job_that_compiles_for_long_has_windows_of_one_length_at_a_time():
    """No two windows share a step, and later ones have all steps of a block."""
    recording = simulate(ddp(2), 120)
    for rank_steps in recording.steps.values():
        shift = 0
        for row in rank_steps:
            row["start_ns"] += shift
            longer = 40_000 * MS if row["step"] < 4 else 0
            row["duration_ns"] += longer
            shift += longer
    published = verdicts(batches(recording, flush=1), CONFIG)
    spans = sorted({(int(of.envelope["first_step"]), int(of.envelope["last_step"])) for of in published})
    assert [first for first, _ in spans] == [0, *(last + 1 for _, last in spans[:-1])]
    assert spans[0] == (0, 0)
    assert spans[-1] == (100, 119)
