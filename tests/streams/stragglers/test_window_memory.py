"""Windows of large jobs: their arrays are in memory once, and evaluation takes about as much again."""

import tracemalloc

import numpy as np

from drumline.lab.bench.jittery_jobs import windows
from drumline.streams.core.attempts import Attempt
from drumline.streams.core.input_counts import InputCounts
from drumline.streams.core.records import run_key
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.verdict import WindowContext, evaluate_window
from drumline.streams.stragglers.lateness_rows import KEPT_ROW, NO_LISTS, WHOLE
from drumline.streams.stragglers.lateness_state import LatenessState
from drumline.streams.stragglers.state import JobState
from drumline.streams.stragglers.step_rows import BUDGET, STEP_ROW
from drumline.streams.stragglers.step_state import AppliedParts, RankReport
from drumline.streams.stragglers.window import load_window

RANKS, STEPS, LATE = 8_192, 20, 77
CONFIG = StragglerConfig()


def step_rows(ranks, steps):
    """Return rows by rank and step, whose numbers are different from each other."""
    rows = np.zeros(len(ranks) * len(steps), STEP_ROW)
    rows["rank"], rows["step"] = np.repeat(ranks, len(steps)), np.tile(steps, len(ranks))
    rows["start_ns"], rows["duration_ns"] = 1_000_000 * rows["step"] + rows["rank"], 900_000
    for number, name in enumerate(BUDGET):
        rows[name] = 1 + number + 100 * np.arange(len(rows))
    return rows


def stored(*records):
    """Return the state of a run that got rows of steps, record by record."""
    state = JobState({}, Attempt(run_key("j", "r"), 0, 0), CONFIG, InputCounts())
    for offset, rows in enumerate(records):
        ranks, part_of = np.unique(rows["rank"], return_inverse=True)
        parts = AppliedParts(rows, part_of, ranks, np.full(len(ranks), -1), np.full(len(ranks), offset))
        kept = {rank: RankReport(-1, len(ranks), "h", "g", "") for rank in ranks.tolist()}
        state.steps.apply(parts, kept, state.blocks, 0)
    state.lengths.decide(True)
    return state


def peak_of(function, *arguments):
    """Return the result of a function, and the bytes that were allocated during it at most."""
    tracemalloc.start()
    try:
        result = function(*arguments)
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_arrays_of_a_window_are_in_memory_once():
    state = stored(step_rows(range(RANKS), range(STEPS)))
    loaded, peak = peak_of(load_window, state, 0)
    size = sum(values.nbytes for values in loaded.data.budget.values())
    assert size == RANKS * STEPS * 8 * len(BUDGET)
    assert peak < 1.5 * size


def test_evaluation_takes_about_as_much_memory_as_the_window():
    idle = np.full((STEPS, RANKS), 1e6)
    idle[:, LATE] += 4e8
    [data] = windows(idle)
    size = sum(values.nbytes for values in data.budget.values())
    verdict, peak = peak_of(evaluate_window, data, WindowContext(), CONFIG)
    assert verdict.rows[1 + LATE].cause.cause == "host_stall"
    assert peak < 1.6 * size


def test_rows_that_come_in_any_order_have_their_places():
    ranks, steps = [*range(3, 1_100), 5_000], [20, 21, 24, 39]
    rows = step_rows(ranks, steps)
    order = np.random.default_rng(0).permutation(len(rows))
    data = load_window(stored(*np.array_split(rows[order], 3)), 1).data
    assert data.ranks.tolist() == ranks
    assert data.steps.tolist() == steps
    for name in BUDGET:
        assert (data.budget[name].ravel() == rows[name]).all()


def test_a_step_that_comes_twice_counts_as_it_began_last():
    rows = step_rows(range(100), range(STEPS))
    earlier = rows.copy()
    earlier["start_ns"] -= 1
    earlier["compute_ns"] = 7
    data = load_window(stored(rows, earlier), 0).data
    assert (data.budget["compute_ns"].ravel() == rows["compute_ns"]).all()


def test_steps_of_another_source_and_without_a_budget_are_missing():
    rows = step_rows(range(9), range(STEPS))
    rows["light"][:STEPS], rows["gc_ns"] = 1, -1
    rows["skipped"][STEPS], rows["gpu_duration_ns"][STEPS + 1], rows["comm_exposed_ns"][STEPS + 2] = 1, 0, -1
    data = load_window(stored(rows), 0).data
    assert data.left_out == {0}
    known = np.isfinite(data.budget["compute_ns"])
    assert not known[0].any()
    assert known[1].tolist() == [False] * 3 + [True] * (STEPS - 3)
    assert known[2:].all()
    assert (np.isfinite(data.budget["gc_ns"]) == known).all()
    assert (data.budget["gc_ns"][known] == -1).all()


def test_a_column_may_be_the_same_for_long_or_in_all_rows():
    rows = step_rows(range(1_100), range(STEPS))
    rows["gc_ns"], rows["load_ns"] = -1, 5
    rows["load_ns"][-1] = 6
    data = load_window(stored(rows[: 9 * STEPS], rows[9 * STEPS :]), 0).data
    for name in BUDGET:
        kept = rows[name].reshape(-1, STEPS)
        np.testing.assert_array_equal(data.budget[name], kept)


def test_communicators_that_are_whole_share_what_the_index_has_of_them_until_one_changes():
    lateness, index, rows = LatenessState({}, run_key("j", "r"), 20), {}, np.zeros(1, KEPT_ROW)
    for communicator in ("a", "b"):
        lateness.replace(index, (0, communicator), WHOLE, rows, {0: NO_LISTS}, 1)
    assert index[0, "a"] is index[0, "b"]
    lateness.replace(index, (0, "a"), 3, rows, {0: NO_LISTS}, 2)
    assert index == {(0, "a"): {3: (0,)}, (0, "b"): {WHOLE: (0,)}}
    lateness.replace(index, (0, "a"), 4, rows, {0: NO_LISTS}, 3)
    assert index[0, "a"] == {3: (0,), 4: (0,)}
