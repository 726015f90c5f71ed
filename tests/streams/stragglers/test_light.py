"""Verdicts on light rows: NCCL's operations alone, without other kernels."""

from __future__ import annotations

import json

import pytest
from support.labs.light import light, light_batches
from support.recordings import folder, rows
from support.straggler_simulator import MS, Fault, batches, ddp, mesh, overlapped, simulate
from typer.testing import CliRunner

from drumline.cli.query.evaluate import app
from drumline.lab.evaluate.scoring import light_phases
from drumline.streams.core.thresholds import INSUFFICIENT, OK, WARNING, StragglerConfig
from drumline.streams.offline import latest, verdicts

RECORDED = ["ddp-gpu-bound", pytest.param("mesh-2x2", marks=pytest.mark.traces)]
RECORDED += [pytest.param(name, marks=pytest.mark.traces) for name in ("ddp-mild", "fsdp", "mesh-tpdp", "pipeline")]


def named(result):
    """(rank, cause) of the windows that name a rank."""
    return {(rank, row.cause) for (_, rank), row in result.items() if rank >= 0 and row.severity >= WARNING}


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_fault_is_found_from_nccl_alone(name):
    result = CliRunner().invoke(app, [str(folder(name)), "--window-steps", "5", "--json", "--light"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["recall"], report["false_alarms"], report["cause_accuracy"]) == (1.0, 0, 1.0)
    for phase in report["phases"]:
        if phase["counted"]:
            assert phase["found_ranks"] == phase["expected_ranks"]


def test_light_and_compare_exclude_each_other():
    result = CliRunner().invoke(app, [str(folder("ddp-gpu-bound")), "--light", "--compare"])
    assert (result.exit_code, "use one of them" in result.output) == (2, True)


def test_a_fault_may_have_the_causes_that_nccl_can_show():
    phases = [
        {"accepted_causes": ["slow_compute", "unknown"]},
        {"accepted_causes": ["slow_copy"]},
        {"phase": "healthy"},
    ]
    expected = [["slow_gpu", "unknown"], ["host_stall", "slow_gpu"], None]
    assert [phase.get("accepted_causes") for phase in light_phases(phases)] == expected


@pytest.mark.parametrize(("kind", "cause"), [("idle", "host_stall"), ("compute", "slow_gpu"), ("work", "slow_gpu")])
@pytest.mark.parametrize("layout", [ddp(4), mesh(2, 2)])
def test_the_cause_is_the_host_or_the_gpu(layout, kind, cause):
    recording = light(simulate(layout, 15, (Fault(1, kind, 10 * MS),)))
    assert named(rows(light_batches(recording))) == {(1, cause)}


def test_waits_behind_compute_name_the_late_rank_only():
    recording = light(overlapped(ddp(4, 8), 20, (Fault(2, "idle", 20 * MS, period=2),), seed=1))
    assert named(rows(light_batches(recording))) == {(2, "host_stall")}
    assert not named(rows(light_batches(light(overlapped(ddp(4, 8), 20, (), seed=1)))))


def test_light_rows_know_no_kernels():
    result = verdict_evidence(light_batches(light(simulate(ddp(4), 15, (Fault(1, "compute", 10 * MS),)))))
    assert result
    assert all(evidence["ratios"] == {} for evidence in result)


def verdict_evidence(stream):
    last = latest(verdicts(stream, StragglerConfig(window_steps=5))).values()
    texts = [text for batch in last for text in batch.strings("evidence_json", "evidence")]
    return [evidence for evidence in map(json.loads, texts) if "excess_ns" in evidence]


def test_one_rank_of_another_source_is_left_out():
    recording = light(simulate(ddp(6), 15, (Fault(1, "idle", 10 * MS),)))
    result = rows(light_batches(recording, ranks={0, 1, 2, 3, 4}))
    assert {rank for rank, _ in named(result)} == {1}
    odd = [row for (_, rank), row in result.items() if rank == 5]
    assert {(row.severity, row.detail) for row in odd} == {(INSUFFICIENT, "other_source")}


def test_half_the_ranks_of_either_source_are_not_compared():
    recording = light(simulate(ddp(4), 15, (Fault(1, "idle", 10 * MS),)))
    result = rows(light_batches(recording, ranks={0, 1}))
    assert {row.severity for (_, rank), row in result.items() if rank >= 0} == {INSUFFICIENT}


def test_windows_of_one_source_are_no_baseline_of_the_other():
    """Budgets of the two differ: a change of source is no change of the job."""
    plain = simulate(ddp(4), 40)
    deep = [(at, b) for at, b in batches(plain) if int(b.columns["step"].min()) >= 30]
    before = [(at, b) for at, b in light_batches(light(plain)) if int(b.columns["step"].max()) < 30]
    result = rows([*before, *deep])
    assert {first for first, _ in result} >= {0, 25, 30, 35}
    assert {row.severity for row in result.values()} == {OK}
