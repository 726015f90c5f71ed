"""An inference engine end to end: from its scheduler through spool, Kafka and sink to answers, time line and page."""

import json
import os
import subprocess
import sys

import pytest
from starlette.testclient import TestClient
from support.fakes.fake_vllm import PROGRAM, write_fake_vllm
from support.metrics_scraper import free_port, get, until
from support.otlp_receiver import receiving
from support.perfetto_reading import Reading
from support.pipeline import Pipeline
from support.published_spool import is_published
from support.wait_limit import WAIT_S

from drumline.infra.kafka.tail import read
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.runtime.processes import ManagedProcess
from drumline.schemas.topics import RAW_TOPICS
from drumline.views.serve.app import application

TRACE = "ab" * 16
pytestmark = [pytest.mark.long, pytest.mark.stack]


def table(text):
    names, *lines = [line.split("\t") for line in text.splitlines()]
    return [dict(zip(names, line, strict=True)) for line in lines]


def test_a_callers_trace_leads_to_the_iterations_of_its_request_and_no_text_of_it_is_in_kafka_spool_or_logs(
    clean_stack, environment_of, tmp_path
):
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    spool = tmp_path / "spool"
    pipeline.environment |= {"DRUMLINE_SPOOL__ROOT": str(spool), "PATH": os.environ["PATH"]}
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    pipeline.programs["agent"] = ManagedProcess("agent", ["agent"], tmp_path / "agent.log", pipeline.environment)
    write_fake_vllm(tmp_path / "packages")
    paths = [str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")]
    environment = pipeline.environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = ["run", "--job", "chat", "--", sys.executable, "-c", PROGRAM]
    with receiving() as collector, pipeline.running():
        port = free_port()
        options = ["exporter", "--otlp", collector.address]
        with_port = pipeline.environment | {"DRUMLINE_METRICS_PORT": str(port)}
        pipeline.programs["exporter"] = ManagedProcess("exporter", options, tmp_path / "exporter.log", with_port)
        pipeline.programs["exporter"].start()
        until(lambda: get(port, "/readyz")[0] == 200)
        job = subprocess.run([sys.executable, "-m", "drumline.cli.app", *command], env=environment, timeout=WAIT_S)
        assert job.returncode == 0
        assert wait_until(lambda: is_published(spool), WAIT_S)
        pipeline.wait_stored()
        until(lambda: len(collector.spans()) == 4)
    assert {span.name for span in collector.spans()} == {"inference request", "queue", "prefill", "decode"}
    assert {span.trace_id.hex() for span in collector.spans()} == {TRACE}
    assert pipeline.query("SELECT count() AS n FROM iterations") == [{"n": 4}]
    [engine] = table(pipeline.drumline("sql", "serving", "--job", "chat"))
    assert (engine["engine"], engine["requests"], engine["iterations"]) == ("vllm", "3", "4")
    [row] = table(pipeline.drumline("sql", "serving-requests", "--job", "chat", "--trace", TRACE))
    assert (row["prompt_tokens"], row["output_tokens"], row["model"]) == ("6", "4", "tiny")
    assert len(table(pipeline.drumline("sql", "serving-cost", "--job", "chat"))) >= 1

    path = tmp_path / "request.pftrace"
    wrote = pipeline.drumline("timeline", "--job", "chat", "--trace", TRACE, "-o", str(path), "--json")
    assert json.loads(wrote)["requests"] == [row["request"]]
    trace = Reading(path.read_bytes())
    request, engine = f"request {row['request']}", "vllm engine, rank 0"
    assert {process for process, _ in trace.slices} == {request, engine}
    assert (trace.slices[request, "iterations"], trace.slices[engine, "iterations"]) == (4, 4)
    assert trace.slices[request, "waits"] == 3  # queue, prefill, decode
    for wrong in (["--request", "none"], ["--trace", "ab"], ["--steps", "1", "--trace", TRACE], []):
        pipeline.drumline("timeline", "--job", "chat", *wrong, "-o", str(tmp_path / "wrong"), ok=(2,))
    assert not (tmp_path / "wrong").exists()
    assert sorted(trace.flows.values()) == [
        [(request, phase), (engine, phase)] for phase in ["decode"] * 3 + ["prefill"]
    ]

    page = TestClient(application(clean_stack), base_url="http://localhost:18080")
    assert "/job/chat/serving" in page.get("/job/chat").text
    shown = page.get("/job/chat/serving")
    assert shown.status_code == 200
    address = f"/job/chat/request/{row['request']}/timeline.pftrace?run={row['run']}"
    assert address in shown.text
    assert "Nothing, in the minutes that are stored." in shown.text
    assert Reading(page.get(address).content).slices == trace.slices
    assert page.get("/job/chat/request/none/timeline.pftrace").status_code == 404

    records = [record for topic in RAW_TOPICS for record in read(clean_stack, topic, "beginning", follow=False)]
    assert records
    assert not any(b"planted" in (part or b"") for record in records for part in (record.key(), record.value()))
    files = [*tmp_path.glob("*.log"), *(path for path in spool.rglob("*") if path.is_file())]
    assert any(path.suffix == ".log" for path in files)
    assert not [path for path in files if b"planted" in path.read_bytes()]
    assert pipeline.audit(row["run"])["clean"]
