"""Traces of PyTorch's profiler through Kafka: import, replay, worker, sink, and what people ask of the job."""

import json

import pytest
from support.kineto_files import small_job, write_job
from support.pipeline import Pipeline

RANKS, STEPS, LATE = 4, 40, 2


@pytest.mark.long  # a worker and a sink
@pytest.mark.stack
def test_an_imported_job_has_its_rows_its_verdict_and_its_time_line(clean_stack, environment_of, tmp_path):
    job = small_job(steps=STEPS, ranks=RANKS, late_rank=LATE, late_ns=300_000)
    traces = [str(path) for path in write_job(tmp_path, job)]
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    recording = tmp_path / "imported"
    pipeline.drumline("import", *traces, "-o", str(recording))
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    replayed = json.loads(pipeline.drumline("replay", str(recording), "--speed", "max", "--json"))
    with pipeline.running():
        pipeline.wait_stored()
    assert replayed["rows"]["gpu.kernel.v1"] == 2 * RANKS * STEPS
    stored = pipeline.query(
        "SELECT rank, uniqExact(step) AS steps, min(step) AS first, countIf(operation = 'AllReduce') AS reduced "
        "FROM collectives WHERE job = 'imported' GROUP BY rank ORDER BY rank"
    )
    assert [tuple(row.values()) for row in stored] == [(rank, STEPS, 10, STEPS) for rank in range(RANKS)]
    named = pipeline.query("SELECT DISTINCT rank, cause FROM stragglers WHERE severity >= 'warning'")
    assert [tuple(row.values()) for row in named] == [(LATE, "host_stall")]
    report = pipeline.drumline("report", "--job", "imported", "-o", str(tmp_path / "report.html"))
    assert f"Rank {LATE} " in report
    written = pipeline.drumline(
        "timeline", "--job", "imported", "--steps", "20-21", "--json", "-o", str(tmp_path / "t.pftrace")
    )
    assert json.loads(written)["ranks"] == list(range(RANKS))
