"""Recorded jobs with known faults: every fault found, no victim named, whatever the order and the clocks."""

from __future__ import annotations

import json
import random
from functools import cache

import numpy as np
import pytest
from support.recordings import folder
from typer.testing import CliRunner

from drumline.cli.query.evaluate import app
from drumline.lab.evaluate.scoring import EvaluationReport, evaluate_phases
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.offline import latest, verdicts
from drumline.views.verdict.verdict_rows import VerdictRow

SHORT = ("ddp-gpu-bound", "mesh-2x2", "ddp-launch-bound")
Stream = list[tuple[int, Batch]]
#: Columns that hold times of the process's own clock.
CLOCK = ("start_ns", "gpu_start_ns")


@cache
def recorded(name: str) -> Stream:
    recording = RecordedJob(folder(name), topics={Topic.COLLECTIVE, Topic.STEP})
    return [(out.time_ns, out.batch) for out in recording.batches("run")]


def rows(stream: Stream, window_steps: int = 5) -> list[VerdictRow]:
    out = []
    for _, batch in sorted(latest(verdicts(stream, StragglerConfig(window_steps=window_steps))).items()):
        c, first, last = batch.columns, int(batch.envelope["first_step"]), int(batch.envelope["last_step"])
        causes, details = batch.strings("cause", "causes"), batch.strings("detail", "details")
        for i in range(batch.rows):
            rank, severity, share = int(c["rank"][i]), int(c["severity"][i]), float(c["lost_share"][i])
            out.append(VerdictRow(first, last, rank, severity, causes[i], details[i], share))
    return out


def evaluated(name: str, result: list[VerdictRow]) -> EvaluationReport:
    return evaluate_phases(json.loads((folder(name) / "manifest.json").read_text())["phases"], result)


def altered(batch: Batch, rank: dict[int, int] | None = None, by: int = 0) -> Batch:
    envelope = {**batch.envelope, "rank": (rank or {}).get(batch.envelope["rank"], batch.envelope["rank"])}
    columns = {name: v + by if name in CLOCK else v for name, v in batch.columns.items()}
    return Batch(batch.topic, envelope, columns)


@pytest.mark.parametrize("name", SHORT)
def test_every_fault_is_found_with_its_cause_and_no_victim(name):
    recorded(name)
    result = CliRunner().invoke(app, [str(folder(name)), "--window-steps", "5", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["recall"], report["false_alarms"], report["cause_accuracy"]) == (1.0, 0, 1.0)
    for phase in report["phases"]:
        if phase["counted"]:
            assert phase["found_ranks"] == phase["expected_ranks"]


@pytest.mark.traces
def test_the_long_recording_with_default_windows():
    report = evaluated("ddp-long", rows(recorded("ddp-long"), 20))
    assert report.right
    assert (report.recall, report.false_alarms, report.cause_accuracy) == (1.0, 0, 1.0)


@pytest.mark.traces
@pytest.mark.parametrize("window_steps", [4, 5, 7])
@pytest.mark.parametrize("name", SHORT)
def test_the_size_of_the_window_decides_nothing(name, window_steps):
    report = evaluated(name, rows(recorded(name), window_steps))
    assert all(phase.right for phase in report.phases if phase.windows and phase.counted)
    healthy = [phase for phase in report.phases if not phase.expected_ranks]  # those that do not count, too
    assert [phase.found_ranks for phase in healthy] == [[]] * len(healthy)


@pytest.mark.parametrize("by_ms", [-500, 500])
@pytest.mark.parametrize("name", SHORT)
def test_a_hosts_clock_may_be_half_a_second_off(name, by_ms):
    by = by_ms * 1_000_000
    off = [(t + by, altered(b, by=by)) if b.envelope["host"] == "node-b" else (t, b) for t, b in recorded(name)]
    assert rows(sorted(off, key=lambda item: item[0])) == rows(recorded(name))


@pytest.mark.parametrize("name", SHORT)
def test_order_across_keys_and_duplicates_change_nothing(name):
    dice = random.Random(5)
    late: dict[object, float] = {}

    def when(item):
        envelope = item[1].envelope
        source = (envelope["rank"], item[1].topic, envelope.get("communicator"))
        return item[0] + late.setdefault(source, dice.uniform(0, 1e9))

    mixed = [item for item in sorted(recorded(name), key=when) for _ in range(1 + (dice.random() < 0.2))]
    assert rows(mixed) == rows(recorded(name))


@pytest.mark.parametrize("name", SHORT)
def test_names_follow_the_ranks(name):
    other = {0: 3, 1: 0, 2: 1, 3: 2}
    expected = {(r.first_step, other.get(r.rank, -1)): (r.severity, r.cause) for r in rows(recorded(name))}
    result = rows([(t, altered(b, other)) for t, b in recorded(name)])
    assert {(r.first_step, r.rank): (r.severity, r.cause) for r in result} == expected


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("share", [0.001, 0.01])
@pytest.mark.parametrize("unit", ["batches", "rows"])
def test_what_is_lost_never_names_another_rank(name, share, unit):
    dice = np.random.default_rng(11)
    kept = []
    for time_ns, batch in recorded(name):
        if unit == "batches":
            if dice.random() > share:
                kept.append((time_ns, batch))
            continue
        keep = dice.random(batch.rows) > share
        columns = {column: values[keep] for column, values in batch.columns.items()}
        kept.append((time_ns, Batch(batch.topic, {**batch.envelope, "rows": int(keep.sum())}, columns)))
    for phase in evaluated(name, rows(kept)).phases:
        if phase.counted:
            assert set(phase.found_ranks) <= set(phase.expected_ranks)


def test_the_phases_of_the_manifest_have_no_influence(tmp_path):
    name = "mesh-2x2"
    recorded(name)
    manifest = json.loads((folder(name) / "manifest.json").read_text())
    for path in folder(name).iterdir():
        if path.name != "manifest.json":
            (tmp_path / path.name).symlink_to(path.resolve())
    for phase in manifest["phases"]:
        phase["fault_ranks"], phase["accepted_causes"] = [0, 1, 2, 3], ["slow_link"]
        phase["phase"] = "unknown"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    lies = json.loads(CliRunner().invoke(app, [str(tmp_path), "--window-steps", "5", "--json"]).stdout)
    truth = evaluated(name, rows(recorded(name)))
    assert [(p["found_ranks"], p["found_cause"]) for p in lies["phases"]] == [
        (p.found_ranks, p.found_cause) for p in truth.phases
    ]


def test_a_rank_that_sleeps_half_of_each_step_is_the_only_one_that_costs():
    result = {row.rank: row for row in rows(recorded("mesh-2x2")) if row.first_step == 50}
    assert (result[1].cause, result[1].severity) == ("host_stall", 3)
    assert result[1].share == pytest.approx(0.521, abs=0.001)
    assert max(result[rank].share for rank in (0, 2, 3)) < 0.0005


def test_a_folder_that_is_no_recording_is_bad_input(tmp_path):
    (tmp_path / "manifest.json").write_text('{"phases": []}')
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert result.exit_code == 2
    assert str(tmp_path) in result.output


def test_a_folder_of_recordings_names_them(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert (result.exit_code, "2 recordings, evaluate each: one, two" in result.output) == (2, True)


def test_a_job_of_one_rank_is_reported_to_have_no_peers():
    result = CliRunner().invoke(app, [str(folder("fusion"))])
    assert (result.exit_code, "no rank was evaluated" in result.output, "no_peers" in result.output) == (0, True, True)
