"""Starts a private, temporary stack for one benchmark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drumline.infra.config.settings import Settings, SinkSettings, StreamSettings
from drumline.infra.localstack.ephemeral import ephemeral_settings, running_stack
from drumline.infra.localstack.processes import own_processes


@contextmanager
def private_stack() -> Iterator[Settings]:
    """Yield the settings of a running broker and engine with topics and tables; delete all data at the end. Raises
    StackError.
    """
    with tempfile.TemporaryDirectory(prefix="drumline-bench-", ignore_cleanup_errors=True) as folder:
        settings = ephemeral_settings(
            Path(folder) / "state",
            stream=StreamSettings(window_steps=5),
            sink=SinkSettings(bulk_flush_s=1.0),
            instance="bench",
            log_level="WARNING",
        )
        with running_stack(settings):
            yield settings


def server_cpu_s(settings: Settings, name: str) -> float:
    """Return the CPU seconds that a server of the local stack has used so far: "broker" or "engine"."""
    used = [process.cpu_times() for process in own_processes(settings)[name]]
    return sum(times.user + times.system for times in used)
