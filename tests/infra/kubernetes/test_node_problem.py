"""The plugin of node-problem-detector: exit code and sentence, against a real server."""

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from drumline.infra.localstack.ephemeral import free_ports
from drumline.infra.telemetry.health import Health, HealthServer

FOLDER = Path(__file__).parents[3] / "infra" / "kubernetes"
PAGES = {
    "/nodes/bad": "problem\njob j, run r: rank 3 on host bad is critical\n",
    "/nodes/good": "ok\nno rank of this node holds a job back\n",
    "/nodes/blind": "unknown\ndrumline's exporter does not read Kafka\n",
}


@pytest.fixture
def port():
    server = HealthServer(0, CollectorRegistry(), Health(), page=PAGES.get)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.close()


def check(port, *node, **variables):
    command = [FOLDER / "node_problem.sh", "127.0.0.1", str(port), *node]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("node", "code", "sentence"),
    [("bad", 1, "job j, run r: rank 3 on host bad is critical\n"),
     ("good", 0, "no rank of this node holds a job back\n"), ("blind", 2, "drumline's exporter does not read Kafka\n"),
     ("other/page", 2, "drumline's exporter answers 404\n")],
)  # fmt: skip
def test_a_node_is(port, node, code, sentence):
    assert check(port, node) == (code, sentence)


def test_the_name_of_the_node_comes_from_the_pods_environment(port):
    assert check(port, NODE_NAME="bad")[0] == 1


def test_without_an_exporter_nothing_is_known():
    [port] = free_ports(1)
    code, sentence = check(port, "bad")
    assert (code, sentence) == (2, f"drumline's exporter does not answer at 127.0.0.1:{port}\n")


def test_the_configuration_runs_the_script_and_its_condition_is_declared():
    monitor = json.loads((FOLDER / "node_problem.json").read_text())
    assert monitor["plugin"] == "custom"
    declared = {condition["type"] for condition in monitor["conditions"]}
    for rule in monitor["rules"]:
        assert (rule["type"], Path(rule["path"]).name) == ("permanent", "node_problem.sh")
        assert rule["condition"] in declared
        assert rule["args"][1] == "19467"
