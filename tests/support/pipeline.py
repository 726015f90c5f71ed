"""The whole pipeline as subprocesses of a test: worker, sink, replay; and what it left in ClickHouse, comparable."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.wait_limit import WAIT_S

from drumline.infra.clickhouse.client import connect, rows
from drumline.infra.config.clickhouse_settings import RetentionSettings
from drumline.infra.config.settings import Settings
from drumline.infra.kafka.drain import wait_stored
from drumline.infra.localstack.ephemeral import run_audit
from drumline.infra.runtime.processes import ManagedProcess, check_all
from drumline.lab.demo_recording import DEMO_RECORDING

#: What may differ between two runs of the same recording: ids, Kafka places, how often a window was emitted.
VOLATILE = {"run", "process_id", "revision", "published", "_topic_partition", "_offset", "_row"}
#: Tables keep rows of recorded time too.
KEPT_FOR_EVER = {
    "DRUMLINE_CLICKHOUSE__RETENTION": json.dumps(dict.fromkeys(RetentionSettings.model_fields, 0)),
}
RESULTS = ("kernel_frequency", "memcpy_bandwidth", "lateness", "stragglers")


class Pipeline:
    """Programs against one stack. `environment`: that of its subprocesses."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], logs: Path) -> None:
        stream = settings.stream.model_copy(update={"data_dir": logs / "stream"})
        self.settings, self.logs = settings.model_copy(update={"stream": stream}), logs
        self.environment = {
            **environment,
            "DRUMLINE_STREAM__WINDOW_STEPS": "5",
            "DRUMLINE_STREAM__IDLE_S": "2",
            "DRUMLINE_STREAM__DATA_DIR": str(logs / "stream"),
            "DRUMLINE_SINK__FLUSH_ROWS": "20000",
        }
        self.programs = {
            name: ManagedProcess(name, [name], logs / f"{name}.log", self.environment) for name in ("stream", "sink")
        }

    def drumline(self, *args: str, ok: tuple[int, ...] = (0,)) -> str:
        """Run a command to its end. Fails the test with its output."""
        command = [sys.executable, "-m", "drumline.cli.app", *args]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, timeout=WAIT_S, check=False
        )
        assert done.returncode in ok, f"{args}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def start_replay(self, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "drumline.cli.app", "replay", str(DEMO_RECORDING), "--json", *args]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Worker and sink, restarted when they die (as systemd or Kubernetes would), stopped at the end."""
        try:
            for program in self.programs.values():
                program.start()
            yield
        finally:
            for program in self.programs.values():
                program.stop()

    def kill(self, name: str) -> None:
        """kill -9 of a program; it is started again at once."""
        self.programs[name].kill()
        self.programs[name].start()

    def audit(self, run: str) -> dict[str, Any]:
        return run_audit(self.environment, "--run", run)

    def wait_stored(self) -> None:
        waited = wait_stored(self.settings, 240, lambda: check_all(self.programs.values()))
        assert waited, waited.reason

    def query(self, sql: str) -> list[dict[str, Any]]:
        client = connect(self.settings, reader=True, database=self.settings.clickhouse.database)
        try:
            return rows(client, sql)
        finally:
            client.close()

    def results(self, run: str) -> dict[str, list[str]]:
        """Every window result of a run, without what is of this run only."""
        tables = {}
        for table in RESULTS:
            lines = self.query(f"SELECT * FROM {table} WHERE run = '{run}'")
            tables[table] = sorted(repr(sorted((k, v) for k, v in line.items() if k not in VOLATILE)) for line in lines)
        return tables
