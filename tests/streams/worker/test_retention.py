"""A worker that Kafka's retention overtook: it is not ready, and its log has the job and what it lost."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from support.pipeline import Pipeline

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.localstack.ephemeral import free_ports
from drumline.infra.runtime.processes import ManagedProcess
from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.schemas.topics import Topic

pytestmark = pytest.mark.stack


def readiness(port: int) -> str:
    """The body of /readyz; "" where nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError:
        return ""


def test_a_worker_behind_kafkas_retention_is_not_ready_and_names_the_job(
    clean_stack: Settings, environment_of: Callable[[Settings], dict[str, str]], tmp_path: Path
) -> None:
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    [port] = free_ports(1)
    environment = {
        **pipeline.environment,
        "DRUMLINE_METRICS_PORT": str(port),
        "DRUMLINE_LOG_JSON": "true",
    }
    worker = ManagedProcess("stream", ["stream"], tmp_path / "worker.log", environment)
    pipeline.drumline("topics", "apply")

    def has_processed() -> bool:
        states = read_statuses(pipeline.settings, 0).values()
        return any(state["handled"] and state["lag"] == 0 and not state["unsettled"] for state in states)

    worker.start()
    try:
        pipeline.drumline("replay", str(DEMO_RECORDING), "--speed", "max", "--job", "overtaken")
        assert wait_until(has_processed, 120)
        worker.stop()
        pipeline.drumline("replay", str(DEMO_RECORDING), "--speed", "max", "--job", "overtaken")
        admin = AdminClient({"bootstrap.servers": clean_stack.bootstrap})
        count = len(admin.list_topics(timeout=30).topics[Topic.STEP].partitions)
        ends = [TopicPartition(Topic.STEP, number, -1) for number in range(count)]
        for done in admin.delete_records(ends).values():
            done.result(30)
        worker.start()
        assert wait_until(lambda: "expired" in readiness(port), 120)
    finally:
        worker.stop()
    lines = [json.loads(line) for line in worker.log.read_text().splitlines() if '"jobs"' in line]
    assert {job for line in lines for job in line["jobs"]} == {"overtaken"}
    assert {line["topic"] for line in lines} == {Topic.STEP}
    assert sum(line["records"] for line in lines) > 0
