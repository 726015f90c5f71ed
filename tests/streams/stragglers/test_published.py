"""Jobs of two GPUs as an agent published them: which rank, which cause, which detail, window by window."""

from pathlib import Path

import pytest

from drumline.cli.query.evaluate import read_phases, straggler_rows
from drumline.lab.evaluate.scoring import WARNING, evaluate_phases
from drumline.streams.core.thresholds import SUSPECT

FOLDER = Path(__file__).parents[2] / "data" / "published"


@pytest.mark.parametrize(
    ("name", "window"),
    [("host-kinds", 20), ("trainer", 12), ("gpu", 20), ("gpu-light", 20), ("cpu", 20), ("link", 15)],
)
def test_injected_causes_are_named_with_their_detail(name, window):
    phases, rows = read_phases(FOLDER / name), list(straggler_rows(FOLDER / name, window))
    assert evaluate_phases(phases, rows).right
    for phase in phases:
        inside = [row for row in rows if phase["first_step"] <= row.first_step and row.last_step <= phase["last_step"]]
        windows = {row.first_step for row in inside}
        assert windows
        named = [row for row in inside if row.severity >= WARNING]
        if not phase["accepted_causes"]:  # what ranks lose by turns is the job's, and no more than suspect
            assert {(row.rank, row.cause) for row in inside if row.severity >= SUSPECT} <= {(-1, "jitter")}
            continue
        assert {row.rank for row in named} == set(phase["fault_ranks"] or [-1])
        expected = phase["accepted_causes"], phase.get("accepted_details", [""])
        right = [row for row in named if row.cause in expected[0] and (row.detail in expected[1] or row.rank < 0)]
        assert len(right) >= max(1, len(windows) - 1), (phase["phase"], named)


def test_turns_of_a_healthy_job_are_its_jitter_with_who_takes_them():
    rows = list(straggler_rows(FOLDER / "cpu", 20))
    [healthy] = [phase for phase in read_phases(FOLDER / "cpu") if phase["first_step"] == 46]
    inside = [row for row in rows if healthy["first_step"] <= row.first_step and row.last_step <= healthy["last_step"]]
    jitter = [row for row in inside if row.rank == -1]
    assert {(row.cause, row.severity) for row in jitter} == {("jitter", SUSPECT)}
    assert all(0.02 <= row.share < 0.5 for row in jitter)
