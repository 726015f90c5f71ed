"""A second ClickHouse engine beside that of a stack, as its replica `b`."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from drumline.infra.config.local_credentials import local_password, password_file
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import State
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings
from drumline.infra.localstack.processes import own_processes


class SecondEngine:
    """The engine: `settings` of its own stack, `both` with the first one's engine as primary and this one as `b`."""

    def __init__(self, first: Settings, folder: Path) -> None:
        private = ephemeral_settings(folder, first.local.cache)
        kafka = first.kafka.model_copy(update={"bootstrap": first.bootstrap})
        self.settings = private.model_copy(update={"kafka": kafka, "clickhouse": first.clickhouse})
        State.of(self.settings).create()
        for user in ("writer", "analyst"):
            local_password(first, user)  # made where it is missing
        shutil.copytree(State.of(first).secrets, State.of(self.settings).secrets, dirs_exist_ok=True)
        server = first.clickhouse.model_copy(
            update={
                "url": first.clickhouse_url,
                "replicas": {"b": self.settings.clickhouse_url},
                "password": local_password(first, "writer"),
                "reader_password": local_password(first, "analyst"),
            }
        )
        self.both = first.model_copy(update={"kafka": kafka, "clickhouse": server})

    @property
    def environment(self) -> dict[str, str]:
        """Environment of programs that have both."""
        return {
            **environment(self.both),
            "DRUMLINE_CLICKHOUSE__PASSWORD_FILE": str(password_file(self.settings, "writer")),
            "DRUMLINE_CLICKHOUSE__READER_PASSWORD_FILE": str(password_file(self.settings, "analyst")),
        }

    def up(self) -> None:
        local_stack.up(self.settings)

    def kill(self) -> None:
        """SIGKILL, without a supervisor that would start it again."""
        processes = own_processes(self.settings)
        for name in ("supervisor", "engine"):
            for process in processes[name]:
                os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs([*processes["supervisor"], *processes["engine"]], timeout=10)

    def wipe(self) -> None:
        """Its disk is replaced by an empty one, while it is down."""
        data = self.settings.local.state / "clickhouse" / "data"
        shutil.rmtree(data)
        data.mkdir()

    def down(self) -> None:
        local_stack.down(self.settings)


@contextmanager
def second_engine(first: Settings, folder: Path) -> Iterator[SecondEngine]:
    """Run it inside the block."""
    engine = SecondEngine(first, folder)
    try:
        engine.up()
        yield engine
    finally:
        engine.down()
