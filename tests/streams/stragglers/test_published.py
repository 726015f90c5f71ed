"""Jobs of two H100s as an agent published them: which rank, which cause, which detail, window by window."""

from pathlib import Path

import pytest

from drumline.infra.cli.query.evaluate import read_phases, straggler_rows
from drumline.infra.evaluate.scoring import WARNING, evaluate_phases

FOLDER = Path(__file__).parents[2] / "data" / "published"


@pytest.mark.parametrize("name", ["host", "gpu", "gpu-light"])
def test_injected_causes_are_named_with_their_detail(name):
    phases, rows = read_phases(FOLDER / name), list(straggler_rows(FOLDER / name, 20))
    assert evaluate_phases(phases, rows).right
    for phase in phases:
        inside = [row for row in rows if phase["first_step"] <= row.first_step and row.last_step <= phase["last_step"]]
        windows = {row.first_step for row in inside}
        named = [row for row in inside if row.severity >= WARNING]
        assert {row.rank for row in named} <= set(phase["fault_ranks"])
        expected = phase["accepted_causes"], phase["accepted_details"]
        right = [row for row in named if ([row.cause], [row.detail]) == expected]
        assert len(right) >= len(windows) - 1, (phase["phase"], named)
