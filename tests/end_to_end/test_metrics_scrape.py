"""A real worker and a real sink, scraped while they work: what they serve is what happened."""

import json
import os
import secrets
import subprocess
import time

import pytest
from support.labs.sink import Pipeline, any_batch, process_id
from support.labs.stream_worker import PYTHON, Child
from support.labs.windows import S
from support.metrics_scraper import free_port, get, of, samples, until
from support.wait_limit import WAIT_S

from drumline.infra.kafka.offsets import Offsets
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import encode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

pytestmark = pytest.mark.stack
ROWS = 300


@pytest.fixture
def ports():
    return {"stream": free_port(), "sink": free_port()}


@pytest.fixture
def pipeline(clean_stack, environment_of, tmp_path, ports):
    environment = environment_of(clean_stack)
    environment |= {"DRUMLINE_STREAM__IDLE_S": "1", "DRUMLINE_LOG_JSON": "true"}
    of = {name: environment | {"DRUMLINE_METRICS_PORT": str(port)} for name, port in ports.items()}
    created = Pipeline(clean_stack, of["sink"])
    created.worker = Child(of["stream"], tmp_path, [PYTHON, "-m", "drumline.cli.app", "stream"], "one")
    yield created
    created.worker.kill()
    created.stop()


def batches(count):
    for sequence in range(count):
        batch = any_batch(Topic.KERNEL, ROWS, process_id(0), sequence)
        batch.columns["start_ns"] -= 60 * S
        batch.envelope["sent_ns"] = time.time_ns()
        yield batch


def test_a_worker_and_a_sink_serve_what_they_did(pipeline, ports):
    pipeline.start("--instance", "1")
    for port in ports.values():
        until(lambda port=port: get(port, "/readyz") == (200, '{"ready": true, "reasons": {}}\n'))
        assert get(port, "/healthz")[0] == 200

    sent = list(batches(3))
    pipeline.publish(*sent)
    pipeline.publish(sent[2], again=True)
    poison = f"poison-{secrets.token_hex(8)}"
    pipeline.raw(Topic.KERNEL, "p", poison.encode())

    kernel, windows = "gpu.kernel.v1", "gpu.kernel-frequency.v1"
    stream = until(
        lambda: (
            (s := samples(ports["stream"])).get(of("drumline_stream_input_records_total", kernel), 0) >= 5
            and s.get(of("drumline_stream_output_rows_total", windows))
            and s["drumline_stream_open_windows"] == 0
            and s
        )
    )
    assert stream[of("drumline_stream_input_rows_total", kernel)] == 4 * ROWS
    assert stream[of("drumline_stream_input_batch_rows_count", kernel)] == 4
    assert stream[of("drumline_stream_input_delay_seconds_count", kernel)] == 4
    assert stream[of("drumline_stream_duplicate_records_total", "kernel-frequency")] == 1
    assert stream[of("drumline_stream_dead_letters_total", kernel, "BadFrame")] == 1
    assert stream["drumline_stream_lag_records"] == 0
    assert stream["drumline_stream_assigned_partitions"] == pipeline.settings.kafka.partitions
    assert stream["drumline_stream_rebalances_total"] >= 1
    assert until(lambda: samples(ports["stream"])["drumline_stream_last_commit_age_seconds"] < 5)

    sink = until(
        lambda: (
            (s := samples(ports["sink"])).get(of("drumline_sink_input_records_total", kernel, "dead_letter"))
            and s.get(of("drumline_sink_stored_rows_total", windows))
            and s.get(of("drumline_sink_input_records_total", kernel, "duplicate"))
            and s
        )
    )
    assert sink[of("drumline_sink_stored_rows_total", kernel)] == 3 * ROWS
    assert sink[of("drumline_sink_input_records_total", kernel, "duplicate")] == 1
    assert sink[of("drumline_sink_dropped_rows_total", kernel, "duplicate")] == ROWS
    assert sink[of("drumline_sink_dead_letters_total", kernel, "BadFrame")] == 1
    assert sink[of("drumline_sink_delay_seconds_count", kernel)] == 3
    assert sink[of("drumline_sink_delay_seconds_count", windows)] >= 1
    assert sink[of("drumline_sink_result_delay_seconds_count", windows)] >= 1
    assert sink["drumline_sink_insert_seconds_count"] >= 2
    assert sink["drumline_sink_insert_rows_sum"] >= 3 * ROWS

    password = pipeline.settings.local.state / "secrets" / "writer.password"
    served = "".join(get(port, path)[1] for port in ports.values() for path in ("/metrics", "/readyz", "/healthz"))
    logs = pipeline.worker.log.read_text()
    assert pipeline.worker.stop() == 0
    for process in pipeline.sinks:
        process.terminate()
        logs += process.communicate(timeout=WAIT_S)[1].decode()
    for text in (served, logs):
        assert poison not in text
        assert password.read_text().strip() not in text
    for line in logs.splitlines():
        assert json.loads(line)["event"], line


def test_a_sink_without_clickhouse_is_alive_and_reports_what_it_waits_for(pipeline, ports):
    pipeline.environment["DRUMLINE_CLICKHOUSE__URL"] = f"http://127.0.0.1:{free_port()}"
    pipeline.start("--instance", "1")

    def reasons():
        code, body = get(ports["sink"], "/readyz")
        return code == 503 and (reported := json.loads(body)["reasons"]).keys() >= {"clickhouse", "retry"} and reported

    reported = until(reasons)
    assert reported["clickhouse"] == "ClickHouse does not answer"
    assert reported["retry"].endswith("clickhouse")
    assert get(ports["sink"], "/healthz")[0] == 200
    assert samples(ports["sink"])[of("drumline_sink_retries_total", "clickhouse")] >= 1


@pytest.mark.long  # until the broker is back
def test_a_broker_that_was_killed_and_is_back_is_noticed(pipeline, ports, kill9, wait_for_stack):
    """It answers clients that asked before with FENCED_LEADER_EPOCH, until they ask for metadata."""
    pipeline.worker.kill()
    offsets = Offsets(pipeline.settings)
    places = offsets.places([Topic.KERNEL])
    pipeline.start()
    until(lambda: get(ports["sink"], "/readyz")[0] == 200)
    offsets.ends(places)
    kill9("broker")
    until(lambda: "no broker answers" in get(ports["sink"], "/readyz")[1])
    wait_for_stack()
    assert offsets.ends(places) == dict.fromkeys(places, 0)
    until(lambda: get(ports["sink"], "/readyz")[0] == 200)


def test_an_agent_serves_what_it_publishes_while_it_does(pipeline, ports, tmp_path):
    pipeline.worker.kill()
    root, port = tmp_path / "spool", free_port()
    root.mkdir()
    spool = SpoolWriter(root, any_batch(Topic.PROCESS, 1, process_id(0), 0).envelope)
    agent = subprocess.Popen(
        [PYTHON, "-m", "drumline.cli.app", "agent", "--spool", str(root)], stderr=subprocess.DEVNULL,
        env={**pipeline.environment, "DRUMLINE_METRICS_PORT": str(port), "DRUMLINE_AGENT__GPU_S": "0",
             "DRUMLINE_AGENT__HOST_S": "0", "DRUMLINE_AGENT__NETWORK_S": "0", "DRUMLINE_AGENT__STACKS": "false",
             "DRUMLINE_AGENT__CONTROL": "false"},
    )  # fmt: skip
    pipeline.sinks.append(agent)  # stopped with the test
    kernel = "gpu.kernel.v1"
    published = of("drumline_agent_published_rows_total", kernel)
    until(lambda: get(port, "/readyz") == (200, '{"ready": true, "reasons": {}}\n'))
    for count, batch in enumerate(batches(3), 1):
        spool.append(Topic.KERNEL, process_id(0), encode(model(Topic.KERNEL), batch), ROWS)
        reported = until(lambda wanted=count * ROWS: (s := samples(port)).get(published) == wanted and s)
        assert reported[of("drumline_agent_published_records_total", kernel)] == count
        assert reported[of("drumline_agent_published_batch_rows_count", kernel)] == count
        assert reported[of("drumline_agent_published_batch_rows_sum", kernel)] == count * ROWS
        assert reported[of("drumline_agent_delay_seconds_count", kernel)] == count
        assert 0 < reported[of("drumline_agent_delay_seconds_sum", kernel)] < 60 * count
        assert get(port, "/healthz")[0] == get(port, "/readyz")[0] == 200
    idle = until(lambda: (s := samples(port))["drumline_agent_unacknowledged_records"] == 0 and s)
    assert idle[of("drumline_agent_processes", "alive")] == 1
    assert idle["drumline_agent_spool_bytes"] > 0
    age = "drumline_agent_last_publication_age_seconds"
    assert until(lambda: samples(port)[age] > idle[age]), "it grows while nothing is published"
    spool.close()
    assert until(lambda: set(os.listdir(root)) == {".agent", ".rings"})
