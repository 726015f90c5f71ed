"""The rules by which `drumline evaluate` calls a phase right; the code under evaluation cannot see the phases."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from drumline.cli.query.evaluate import app, read_phases, remarks, without_phases
from drumline.lab.evaluate.scoring import INSUFFICIENT, BadManifest, evaluate_phases, recommended_window
from drumline.views.verdict.verdict_rows import VerdictRow

HEALTHY = {"phase": "healthy", "fault_ranks": [], "first_step": 0, "last_step": 19, "accepted_causes": []}
FAULT = {"phase": "late", "fault_ranks": [2], "first_step": 20, "last_step": 42, "accepted_causes": ["host_stall"]}


def rows(severities, first=20, rank=2, cause="host_stall", share=0.3):
    return [VerdictRow(first + 5 * i, first + 5 * i + 4, rank, s, cause, "", share) for i, s in enumerate(severities)]


def test_a_found_fault_and_a_quiet_healthy_phase_are_right():
    report = evaluate_phases([HEALTHY, FAULT], rows([0, 0, 0, 0], 0) + rows([3, 2, 3, 3]))
    assert report.right
    assert report.as_json() == {
        "phases": [
            {
                "phase": "healthy",
                "counted": True,
                "first_step": 0,
                "last_step": 19,
                "windows": 4,
                "unjudged": 0,
                "unjudged_why": [],
                "expected_ranks": [],
                "found_ranks": [],
                "accepted_causes": [],
                "found_cause": None,
                "found_detail": None,
                "besides": {},
                "lost_share": 0.3,
                "accepted_details": [],
            },
            {
                "phase": "late",
                "counted": True,
                "first_step": 20,
                "last_step": 42,
                "windows": 4,
                "unjudged": 0,
                "unjudged_why": [],
                "expected_ranks": [2],
                "found_ranks": [2],
                "accepted_causes": ["host_stall"],
                "found_cause": "host_stall",
                "found_detail": "",
                "besides": {},
                "lost_share": 0.3,
                "accepted_details": [],
            },
        ],
        "windows_across_phases": 0,
        "recall": 1.0,
        "false_alarms": 0,
        "cause_accuracy": 1.0,
    }


@pytest.mark.parametrize(("details", "right"), [([], True), (["disk", ""], True), (["disk"], False)])
def test_a_detail_counts_where_the_manifest_names_some(details, right):
    report = evaluate_phases([{**FAULT, "accepted_details": details}], rows([3, 3, 3, 3]))
    assert (report.right, report.cause_accuracy) == (right, float(right))


@pytest.mark.parametrize(("severities", "ranks"), [([2, 2, 0, 0], [2]), ([2, 0, 0, 0], []), ([1, 1, 1, 1], [])])
def test_half_of_the_windows_at_warning_find_a_rank(severities, ranks):
    assert evaluate_phases([FAULT], rows(severities)).phases[0].found_ranks == ranks


def test_windows_that_reach_out_of_a_phase_are_not_evaluated_but_counted():
    report = evaluate_phases([FAULT], rows([2, 2, 2, 2, 2, 2], 10))
    assert (report.phases[0].windows, report.across) == (4, 2)
    assert remarks(report) == ["2 windows lie across the bounds of phases and count for none"]


def test_an_extra_rank_makes_a_phase_wrong_but_leaves_recall():
    report = evaluate_phases([FAULT], rows([3, 3, 3, 3]) + rows([2, 2, 2, 2], rank=0))
    assert report.recall == 1.0
    assert not report.right


def test_the_cause_of_the_largest_lost_share_counts():
    verdicts = rows([3, 3], share=0.1) + rows([3, 3], first=30, cause="slow_copy", share=0.3)
    report = evaluate_phases([FAULT], verdicts)
    assert report.phases[0].found_cause == "slow_copy"
    assert report.cause_accuracy == 0.0


@pytest.mark.parametrize("rank", [0, -1])
def test_a_rank_or_the_job_named_in_a_healthy_phase_is_a_false_alarm(rank):
    report = evaluate_phases([HEALTHY], rows([2, 2, 2], 0, rank=rank))
    assert report.false_alarms == 1
    assert report.recall is None
    assert not report.right


def test_insufficient_data_finds_no_rank():
    report = evaluate_phases([FAULT], rows([INSUFFICIENT] * 4))
    assert report.phases[0].found_ranks == []
    assert report.recall == 0.0


def test_a_healthy_phase_without_data_is_not_right_and_reported():
    silent = [replace(row, cause="insufficient_data", detail="no_past") for row in rows([INSUFFICIENT] * 4, 0)]
    assert evaluate_phases([HEALTHY], [*silent[:3], *rows([0], 15)]).right
    report = evaluate_phases([HEALTHY], [*silent, *rows([0] * 4, 0, rank=-1)])
    assert (report.right, report.without_result, report.false_alarms) == (False, ["healthy"], 0)
    assert remarks(report) == ["healthy (steps 0-19): 4 of 4 windows not evaluated, insufficient data (no_past)"]
    changed = replace(rows([1], 0, rank=-1)[0], detail="idle")
    assert remarks(evaluate_phases([HEALTHY], [*silent, changed])) == [
        "healthy (steps 0-19): 4 of 4 windows not evaluated, insufficient data (no_past)",
        "healthy (steps 0-19): the job suspect in 1 of 4 windows",
    ]


def test_a_rank_named_too_rarely_to_be_found_is_reported():
    report = evaluate_phases(
        [HEALTHY], rows([1, 0, 2, 1], 0) + rows([0, 0, INSUFFICIENT, 0], 0, rank=3) + rows([0] * 4, 0, -1)
    )
    assert (report.right, report.false_alarms) == (True, 0)
    assert remarks(report) == [
        "healthy (steps 0-19): rank 2 suspect in 2, warning in 1 of 4 windows",
        "healthy (steps 0-19): rank 3 not judged in 1 of 4 windows",
    ]


def test_a_phase_without_a_window_is_neither_right_nor_unreported():
    report = evaluate_phases([FAULT], [])
    assert report.without_result == ["late"]
    assert not report.right


def test_what_is_not_counted_changes_no_number():
    report = evaluate_phases([{**FAULT, "counted": False}, {**HEALTHY, "counted": False}], rows([2, 2, 2], 0))
    assert report.right
    assert (report.recall, report.cause_accuracy, report.false_alarms) == (None, None, 0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"phases": 3}', '{"phases": [3]}'])
def test_a_bad_manifest_is_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(BadManifest):
        read_phases(tmp_path)


def test_a_phase_that_lacks_something_is_named():
    with pytest.raises(BadManifest, match="first_step"):
        evaluate_phases([{"phase": "x"}], [])


def test_a_broken_table_is_named_as_the_user_knows_it(tmp_path):
    ranks = [{"rank": 0, "pid": 1, "host": "a"}]
    (tmp_path / "manifest.json").write_text(json.dumps({"phases": [], "ranks": ranks}))
    (tmp_path / "kernel.parquet").write_bytes(b"PAR1 but not much more")
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path / 'kernel.parquet'}: " in result.output
    assert "drumline-evaluate-" not in result.output


def test_the_copy_under_evaluation_has_no_phases(tmp_path):
    source, copy = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    copy.mkdir()
    (source / "manifest.json").write_text(json.dumps({"phases": [FAULT], "world_size": 4}))
    (source / "kernel.parquet").write_bytes(b"x")
    without_phases(source, copy)
    assert json.loads((copy / "manifest.json").read_text()) == {"world_size": 4}
    assert (copy / "kernel.parquet").read_bytes() == b"x"
    assert "host_stall" not in (copy / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("phases", "most", "steps"),
    [
        ([(0, 23, []), (24, 43, [1]), (44, 53, [])], 20, 6),
        ([(0, 199, [1])], 20, 20),
        ([(0, 24, []), (25, 39, [0]), (40, 54, [])], 20, 5),
        ([(0, 1, [])], 20, 2),
        ([(1, 1, [])], 20, 20),
        ([], 12, 12),
    ],
)
def test_the_window_fits_the_phases_of_the_recording(phases, most, steps):
    declared = [{"first_step": a, "last_step": b, "fault_ranks": r, "counted": True} for a, b, r in phases]
    assert recommended_window(declared, most) == steps
    assert recommended_window([{**phase, "counted": False} for phase in declared], most) == most
