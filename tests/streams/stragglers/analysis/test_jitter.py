"""A rank is named only where it is late beyond the turns that ranks take; turns that cost the job are its own row."""

from __future__ import annotations

import numpy as np
import pytest
from support.jitter_simulator import KINDS, STEP_NS, lateness, named, verdicts

from drumline.streams.core.thresholds import SUSPECT

#: Turns that are shorter than a window of 20 steps.
SHORT = ("independent", "drift of 3 steps", "heavy tails", "turns of 3 steps", "a pause in 20 steps")


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", SHORT)
def test_ranks_that_are_late_by_turns_are_not_named_and_the_job_has_jitter(kind, ranks):
    result = verdicts(lateness(kind, ranks, 300, 0.15, seed=1), 20)
    assert [named(verdict) for verdict in result] == [set()] * 15
    rows = [verdict.rows[0] for verdict in result if verdict.rows[0].cause.cause == "jitter"]
    assert rows
    assert {row.severity for row in rows} == {SUSPECT}
    assert all(row.share >= 0.02 and row.cause.detail.startswith("rank") and row.evidence["turns"] for row in rows)


def test_ranks_that_lead_by_turns_from_window_to_window_are_not_named():
    late = np.zeros((240, 2))
    for window, size in enumerate(np.random.default_rng(3).uniform(0.05, 0.17, 12)):
        late[window * 20 : window * 20 + 20, window % 2] = size * STEP_NS
    assert [named(verdict) for verdict in verdicts(late, 20)][1:] == [set()] * 11


@pytest.mark.parametrize("window_steps", [5, 20])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_constant_culprit_of_a_job_without_jitter_is_named_in_its_first_window(window_steps, ranks):
    late = np.zeros((8 * window_steps, ranks))
    late[4 * window_steps :, 1] = 0.05 * STEP_NS
    result = [named(verdict) for verdict in verdicts(late, window_steps)]
    assert result == [set()] * 4 + [{1}] * 4


def test_a_culprit_among_turns_is_named_by_its_size_at_once_and_else_after_some_windows():
    for size, within in ((2.0, 1), (0.6, 12)):
        late = lateness("heavy tails", 2, 800, 0.15, seed=2)
        late[400:, 1] += size * STEP_NS
        result = [named(verdict) for verdict in verdicts(late, 20)]
        assert result[:20] == [set()] * 20
        assert {1} in result[20 : 20 + within]
        assert not any(0 in names for names in result)


def test_one_wait_of_seconds_is_named_and_one_longer_step_is_not():
    for steps, expected in ((60.0, {2}), (2.0, set())):
        late = lateness("independent", 4, 200, 0.0)
        late[150, 2] = steps * STEP_NS
        assert named(verdicts(late, 20)[7]) == expected


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_false_names_and_the_delay_of_names():
    """The figures of docs/results/gpu-sessions.md, Verdicts on recordings."""
    kinds = [kind for kind in KINDS if kind not in ("turns of 20 steps", "turns of 100 steps", "drift of 20 steps")]
    windows = names = 0
    delays = []
    for ranks in (2, 4, 8):
        for at, kind in enumerate(kinds):
            result = verdicts(lateness(kind, ranks, 20 * 100, 0.05 + 0.05 * at, seed=at), 20)
            windows, names = windows + len(result), names + sum(bool(named(verdict)) for verdict in result)
            late = lateness(kind, ranks, 20 * 40, 0.05, seed=at)
            late[407:, 1] += 0.5 * STEP_NS
            hits = [at for at, verdict in enumerate(verdicts(late, 20)) if at >= 20 and 1 in named(verdict)]
            delays.append(hits[0] - 20 + 1 if hits else 20)
    print(f"{names} of {windows} healthy windows name a rank; delay {sorted(delays)} windows")
    assert names <= 2 * windows / 1000
    assert np.percentile(delays, 95) <= 3
