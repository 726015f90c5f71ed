"""The parts of a pipeline are killed one by one: a real Prometheus, with the files that are shipped, fires for each."""

import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from support.pipeline import Pipeline

from drumline.infra.localstack.ephemeral import free_ports
from drumline.infra.localstack.processes import own_processes
from drumline.infra.runtime.processes import ManagedProcess

SHIPPED = Path(__file__).parents[2] / "infra" / "prometheus"
PROGRAMS = ("stream", "sink", "agent")
#: From a kill to its alert; s.
TARGET_S = 120.0


class Prometheus:
    """A Prometheus server that has the shipped rules and scrapes these ports as the shipped example does."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        [self._port] = free_ports(1)
        example = yaml.safe_load((SHIPPED / "scrape.yml").read_text())
        [job] = example["scrape_configs"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]} for port in ports.values()]
        example["rule_files"] = [str(SHIPPED / "rules.yml")]
        folder.mkdir()
        (folder / "prometheus.yml").write_text(yaml.safe_dump(example))
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                 f"--web.listen-address=127.0.0.1:{self._port}"], stdout=log, stderr=log)  # fmt: skip

    def query(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=5) as answer:
            return json.load(answer)["data"]

    def up(self):
        try:
            targets = self.query("targets?state=active")["activeTargets"]
        except OSError:
            return 0
        return sum(target["health"] == "up" for target in targets)

    def firing(self):
        alerts = [alert for alert in self.query("alerts")["alerts"] if alert["state"] == "firing"]
        return {(alert["labels"]["alertname"], alert["labels"].get("instance", "")) for alert in alerts}

    def close(self):
        self._process.terminate()
        self._process.wait()


def wait_until(condition, seconds):
    """Return the time that it took; s."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "not within the time"
        time.sleep(0.5)
    return time.monotonic() - began


@pytest.mark.long  # minutes: rules hold for one before they fire
@pytest.mark.stack
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not shutil.which("prometheus"), reason="Prometheus (Debian: prometheus) is not there")
def test_every_part_that_is_killed_has_an_alert_within_two_minutes(
    clean_stack, environment_of, kill9, wait_for_stack, tmp_path, capsys
):
    ports = dict(zip(PROGRAMS, free_ports(3), strict=True))
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    pipeline.programs["agent"] = ManagedProcess("agent", ["agent"], tmp_path / "agent.log", pipeline.environment)
    for name, port in ports.items():
        pipeline.programs[name].add_environment({"DRUMLINE_METRICS_PORT": str(port)})
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    prometheus = Prometheus(tmp_path / "prometheus", ports)
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    took = {}

    def fires(name, *wanted):
        took[name] = round(wait_until(lambda: set(wanted) <= prometheus.firing(), TARGET_S))

    @contextmanager
    def killed(server):
        """Its supervisor, which would start it at once, is halted."""
        [supervisor] = own_processes(clean_stack)["supervisor"]
        supervisor.suspend()
        try:
            kill9(server)
            yield
        finally:
            supervisor.resume()

    try:
        with pipeline.running():
            wait_until(lambda: prometheus.up() == len(PROGRAMS), 60)
            wait_until(lambda: not prometheus.query("query?query=drumline_stream_ready==0")["result"], 60)
            time.sleep(30)
            assert prometheus.firing() == set()
            for name in PROGRAMS:
                pipeline.programs[name].kill()
                fires(name, ("DrumlineProgramDown", at[name]))
                pipeline.programs[name].start()
            wait_until(lambda: not prometheus.firing(), 120)
            with killed("engine"):
                fires("engine", ("DrumlineNotReady", at["sink"]))
            wait_for_stack()
            wait_until(lambda: not prometheus.firing(), 180)
            with killed("broker"):
                fires("broker", *(("DrumlineNotReady", at[name]) for name in ("stream", "sink")))
    finally:
        prometheus.close()
        wait_for_stack()
        with capsys.disabled():
            print(f"\nseconds from kill to alert: {took}")
