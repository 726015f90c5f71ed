"""A real OpenTelemetry Collector, built from its Go modules, takes what the exporter sends."""

import contextlib
import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import yaml
from support.metrics_scraper import free_port, until
from support.otlp_receiver import options_of, seen
from support.verdict_worlds import hang, late_job

from drumline.infra.telemetry.verdict_metrics import VERDICT_METRICS
from drumline.views.exporter.otlp import Otlp

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("go"), reason="the Collector is built with Go"),
]
SOURCE = Path(__file__).parents[2] / "support" / "otel_collector"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The Collector: receiver otlp, exporter file. The build takes minutes, and the network the first time."""
    path = tmp_path_factory.mktemp("collector") / "collector"
    done = subprocess.run(["go", "build", "-o", path, "."], cwd=SOURCE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return path


@pytest.fixture
def collector(program, tmp_path):
    """Start it; returns its address and the file of what it took."""
    port, taken = free_port(), tmp_path / "taken.json"
    pipeline = {"receivers": ["otlp"], "exporters": ["file"]}
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"file": {"path": str(taken), "flush_interval": "200ms"}},
        "service": {
            "pipelines": {"metrics": pipeline, "logs": pipeline},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with (tmp_path / "log").open("wb") as log:
        command = [program, "--config", f"file:{tmp_path / 'config.yaml'}"]
        child = subprocess.Popen(command, stdout=log, stderr=log)
    assert until(lambda: child.poll() is not None or accepts(port))
    assert child.poll() is None, (tmp_path / "log").read_text()[-2000:]
    yield f"http://127.0.0.1:{port}", taken
    child.kill()
    child.wait()


def accepts(port):
    """Return whether it listens."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def values(of):
    """Attributes of OTLP's JSON: name -> text or number."""
    return {pair["key"]: next(iter(pair["value"].values())) for pair in of}


def lines(taken):
    return [json.loads(line) for line in taken.read_text().splitlines()] if taken.exists() else []


def metrics(taken):
    """Metric -> its points in the newest request: (attributes, value)."""
    newest = {}
    for line in lines(taken):
        for metric in (m for r in line.get("resourceMetrics", []) for s in r["scopeMetrics"] for m in s["metrics"]):
            points = metric["gauge"]["dataPoints"]
            newest[metric["name"]] = {
                frozenset(values(point["attributes"]).items()): point.get("asDouble", point.get("asInt"))
                for point in points
            }
    return newest


def records(taken):
    return [
        record
        for line in lines(taken)
        for resource in line.get("resourceLogs", [])
        for scope in resource["scopeLogs"]
        for record in scope["logRecords"]
    ]


def test_a_collector_takes_all_series_and_each_event(collector):
    address, taken = collector
    shown, events = seen(late_job(job="j", run="r"), hang("hung", (5,), job="h"))
    otlp = Otlp(options_of(address), None)
    otlp.take(shown, events, [])
    until(lambda: "drumline_rank_state" in metrics(taken) and len(records(taken)) == len(events))
    otlp.close()
    known = metrics(taken)
    for metric in VERDICT_METRICS:
        expected = {frozenset(zip(metric.labels, labels, strict=True)): v for labels, v in shown.of(metric).items()}
        assert {labels: float(value) for labels, value in known.get(metric.name, {}).items()} == expected
    by_name = {record["eventName"]: record for record in records(taken)}
    assert by_name["drumline.verdict"]["severityText"] == "critical"
    assert "rank 3" in by_name["drumline.verdict"]["body"]["stringValue"]
    assert values(by_name["drumline.hang"]["attributes"])["drumline.cause"] == "not_called"
