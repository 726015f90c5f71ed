"""Rows of many late ranks: what they are compared with is computed once for the window, not for each of them."""

from __future__ import annotations

import pytest
from support.labs.attribution import evaluated
from support.straggler_simulator import MS, Fault, batches, ddp, simulate

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis import cause, rank_rows


@pytest.mark.parametrize("kind", ["idle", "compute"])
def test_medians_of_peers_are_taken_once_however_many_ranks_are_late(monkeypatch, kind):
    taken, causes = [], []
    peer_median, find_cause = cause.peer_median, rank_rows.find_cause
    monkeypatch.setattr(cause, "peer_median", lambda *of: (taken.append(of), peer_median(*of))[1])
    monkeypatch.setattr(rank_rows, "find_cause", lambda *of: (causes.append(of), find_cause(*of))[1])

    def work(late: set[int]) -> tuple[int, int]:
        taken.clear()
        causes.clear()
        recording = simulate(ddp(9), 12, tuple(Fault(rank, kind, 25 * MS) for rank in late))
        rows = evaluated(batches(recording), StragglerConfig(window_steps=12))[0]
        assert {rank for rank, row in rows.items() if row[0] >= 1} == late
        return len(taken), len(causes)

    (few_medians, few), (many_medians, many) = work({2}), work({2, 5, 7})
    assert (few, many) == (1, 3)
    assert many_medians == few_medians > 0
