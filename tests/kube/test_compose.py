"""infra/compose: drumline's own services, started by podman-compose beside this machine's Kafka and ClickHouse engine.

The images of Kafka, ClickHouse and Grafana come from registries that a test does not ask, so these services stay away.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.kube import images, tools
from support.wait_limit import WAIT_S

from drumline.infra.clickhouse.client import connect, rows
from drumline.infra.config.local_credentials import local_password
from drumline.infra.config.settings import Settings
from drumline.infra.localstack.ephemeral import run_audit
from drumline.lab.demo_recording import DEMO_RECORDING

pytestmark = [pytest.mark.kube, pytest.mark.stack, pytest.mark.timeout(3000)]
FOLDER = Path(__file__).parents[2] / "infra" / "compose"
PODMAN_COMPOSE = "podman-compose==1.6.0"
SERVICES = ("init", "stream", "sink", "agent")


def adapted(given: dict[str, str], spool: Path) -> dict[str, Any]:
    """Return the Compose file for this machine.

    What differs: the image of the tests, no init of podman's, this machine's network in place of one of their own, and
    no GPU. The admin who makes the roles is a user of the image of ClickHouse.
    """
    content = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    content["services"] = {name: content["services"][name] for name in SERVICES}
    for service in content["services"].values():
        del service["build"], service["init"]
        service |= {"image": images.DRUMLINE, "pull_policy": "never", "network_mode": "host"}
        service["environment"] |= given
    init, agent = content["services"]["init"], content["services"]["agent"]
    del init["depends_on"], agent["deploy"]
    init["environment"]["DRUMLINE_CLICKHOUSE__USER"] = "writer"
    init["command"] = [init["command"][0].partition("&& drumline roles")[0]]
    agent["volumes"] = [f"{spool}:/dev/shm/drumline"]
    return content


class Compose:
    """The adapted Compose file in a folder, and podman-compose, which knows the tests' store of images."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        images.build()
        program = tools.CACHE / PODMAN_COMPOSE / "bin" / "podman-compose"
        if not program.exists():
            venv.create(program.parents[1], with_pip=True)
            tools.run(program.parent / "pip", "install", "--quiet", PODMAN_COMPOSE)
        podman = folder / "podman"
        podman.write_text(f'#!/bin/sh\nexec {" ".join(images.storage("podman"))} "$@"\n')
        podman.chmod(0o755)
        passwords = {user: local_password(settings, user).get_secret_value() for user in ("writer", "analyst")}
        values = {
            "CLICKHOUSE_ADMIN_PASSWORD": passwords["writer"], "CLICKHOUSE_WRITER_PASSWORD": passwords["writer"],
            "CLICKHOUSE_ANALYST_PASSWORD": passwords["analyst"], "CLICKHOUSE_GRAFANA_PASSWORD": "x",
            "GRAFANA_ADMIN_PASSWORD": "x", "ALERT_WEBHOOK": "http://127.0.0.1:9",
        }  # fmt: skip
        (folder / "env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self.spool = folder / "spool"
        self.spool.mkdir()
        given = {
            "DRUMLINE_KAFKA__BOOTSTRAP": settings.bootstrap, "DRUMLINE_CLICKHOUSE__URL": settings.clickhouse_url,
            "DRUMLINE_CLICKHOUSE__DATABASE": settings.clickhouse.database,
            "DRUMLINE_SINK__GROUP": settings.sink.group, "DRUMLINE_STREAM__APP_ID": settings.stream.app_id,
        }  # fmt: skip
        (folder / "compose.yaml").write_text(yaml.safe_dump(adapted(given, self.spool)))
        self.command = [
            str(program), "--podman-path", str(podman), "--in-pod", "false", "--project-name", "drumline-test",
            "--env-file", str(folder / "env"), "--profile", "agent", "-f", str(folder / "compose.yaml"),
        ]  # fmt: skip

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.command, *arguments], capture_output=True, text=True, env=images.environment(), check=False,
            timeout=WAIT_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}"
        return done.stdout

    def state(self, service: str, field: str) -> str:
        """Return what podman states of the container of a service."""
        return images.podman("inspect", "--format", f"{{{{.State.{field}}}}}", f"drumline-test_{service}_1").strip()

    def is_healthy(self, service: str) -> bool:
        """Run the health check of the image, as systemd's timer would for podman."""
        command = [*images.storage("podman"), "healthcheck", "run", f"drumline-test_{service}_1"]
        return subprocess.run(command, capture_output=True, env=images.environment(), check=False).returncode == 0


@pytest.fixture
def compose(clean_stack: Settings, tmp_path: Path) -> Iterator[Compose]:
    created = Compose(clean_stack, tmp_path)
    try:
        yield created
    finally:
        created("down", "--volumes", "--timeout", "30")


def until(condition: Callable[[], bool], explain: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(1)


def test_our_services_start_in_order_carry_a_job_and_end_cleanly(
    compose: Compose, clean_stack: Settings, environment_of: Callable[[Settings], dict[str, str]]
) -> None:
    compose("up", "--detach")
    assert compose.state("init", "ExitCode") == "0"
    for service in ("stream", "sink", "agent"):
        until(lambda service=service: compose.is_healthy(service), lambda service=service: compose("logs", service))
    variables = environment_of(clean_stack)
    command = [sys.executable, "-m", "drumline.cli.app", "replay", str(DEMO_RECORDING), "--json"]
    options = ["--speed", "max", "--spool", str(compose.spool)]
    done = subprocess.run([*command, *options], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    client = connect(clean_stack, database=clean_stack.clickhouse.database)
    kernels = "SELECT count() AS n FROM kernels"
    until(
        lambda: rows(client, kernels)[0]["n"] == summary["rows"]["gpu.kernel.v1"],
        lambda: compose("logs", "agent", "sink"),
    )
    verdicts = "SELECT count() AS n FROM stragglers"
    until(lambda: rows(client, verdicts)[0]["n"] > 0, lambda: compose("logs", "stream"))
    until(
        lambda: not run_audit(variables, "--run", summary["run"])["findings"], lambda: run_audit(variables)["findings"]
    )
    compose("stop", "--timeout", "30", "stream", "sink", "agent")
    assert {service: compose.state(service, "ExitCode") for service in ("stream", "sink", "agent")} == {
        "stream": "0", "sink": "0", "agent": "0",
    }  # fmt: skip
