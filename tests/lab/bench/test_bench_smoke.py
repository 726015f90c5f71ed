"""Each benchmark at its smallest, on the tests' stack: it ends, loses nothing, and reports what it promises."""

from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import pytest
from support import migrated_database

from drumline.infra.kafka.topic_admin import TopicsAdmin, declared_topics, plan
from drumline.lab.bench.benchmarks import agent, pipeline, queries, scale, sink, soak, stream
from drumline.lab.bench.benchmarks.recorded_speed import Course
from drumline.lab.bench.processes import child_process as children
from drumline.lab.demo_recording import DEMO_RECORDING


@pytest.fixture
def small(clean_stack, monkeypatch):
    """The benchmarks run on the session's stack instead of one each, and leave its processes on all cores."""

    @contextmanager
    def shared():
        admin, topics = TopicsAdmin(clean_stack), declared_topics(clean_stack)
        admin.apply(topics, plan(topics, admin.existing(topic.name for topic in topics)))
        migrated_database.create(clean_stack)
        yield clean_stack

    for module in (agent, pipeline, scale, sink, soak, stream):
        monkeypatch.setattr(module, "private_stack", shared)
    monkeypatch.setattr(children, "keep_off_last_core", lambda pids: None)


def results(report):
    json.dumps(report.as_json(), allow_nan=False)
    values = {result.name: result.value for result in report.results}
    assert all(np.isfinite(value) for value in values.values()), values
    return values


@pytest.mark.stack
@pytest.mark.long
def test_stream(small):
    values = results(stream.bench_stream(DEMO_RECORDING, loops=1, events=100))
    assert values["kernel frequency, one core"] > values["wall clock"] > 0
    assert values["times the baseline, CPU"] > 1


@pytest.mark.stack
@pytest.mark.long
def test_sink(small):
    values = results(sink.bench_sink(DEMO_RECORDING, loops=1))
    assert values["sink, one core"] > values["wall clock"] > 0
    assert 1 < values["bytes a row on disk, kernels, merged"] < 12


@pytest.mark.stack
@pytest.mark.long
def test_scale(small):
    report = scale.bench_scale(ranks=[4])
    values = results(report)
    assert values["4 ranks: late rank named"] == 1
    assert values["4 ranks: other ranks named"] == 0
    assert values["4 ranks: partition of the job"] == values["4 ranks: job"] + values["4 ranks: hangs"] > 0
    assert {"4 ranks: sink, CPU of a rank", "4 ranks: table collectives", "4 ranks: table steps"} <= set(values)


@pytest.mark.stack
@pytest.mark.long
def test_pipeline(small):
    report = pipeline.bench_pipeline(DEMO_RECORDING, loops=1, paced=1, parts=["throughput", "delays"])
    values = results(report)
    assert values["kernels, first published to last stored"] > 0
    assert values["any window's end to its first row, p95"] > 0
    [named] = [result for result in report.results if result.name == "faults named"]
    assert (named.target, named.at_most) == (4, False), "faults without a named rank have no delay"


@pytest.mark.stack
@pytest.mark.long
def test_pipeline_at_the_recorded_speed(small):
    course = Course(warm=1, loops=1, settle_s=1, silent_s=2)
    values = results(pipeline.bench_pipeline(DEMO_RECORDING, parts=["cost"], course=course))
    names = ("stream", "sink", "broker", "engine")
    for cost in ("recorded speed, CPU per million rows: {}", "silence, cores used by {}"):
        assert values[cost.format("all")] == pytest.approx(sum(values[cost.format(name)] for name in names))
        assert all(values[cost.format(name)] > 0 for name in names)


@pytest.mark.stack
@pytest.mark.long
def test_soak(small):
    values = results(soak.bench_soak(DEMO_RECORDING, minutes=0.5, rate=20_000, ranks=4))
    assert values["kernels published and not stored"] == values["audit findings"] == 0
    assert values["kernels"] > 10_000
    assert values["memory of sink, most"] > 0
    assert values["cores used by stream"] > 0


@pytest.mark.stack
@pytest.mark.long
def test_agent(small):
    values = results(agent.bench_agent(DEMO_RECORDING, seconds=1, rate=40_000, ranks=4))
    assert values["rows lost"] == 0
    assert values["kernels written"] > 0 < values["catching up, start of the program included"]


@pytest.mark.stack
@pytest.mark.long
def test_queries():
    report = queries.bench_queries(DEMO_RECORDING, rows=10_000, repeats=1)
    values = results(report)
    assert values["queries that failed"] == 0, report.notes
    assert values["dashboards: most CPU"] > 0, "the engine was not found"
    assert {name.split(":")[0] for name in values} >= {"cookbook", "dashboards", "alert rules"}
