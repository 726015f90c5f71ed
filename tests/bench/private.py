"""A stack of its own for one benchmark: free ports, temporary state, gone afterwards."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from drumline.infra import clickhouse
from drumline.infra import stack as local_stack
from drumline.infra.migrate import migrate
from drumline.infra.settings import (
    ClickHouseSettings,
    KafkaSettings,
    LocalSettings,
    Settings,
    SinkSettings,
    StreamSettings,
)
from drumline.infra.topics_admin import TopicsAdmin, plan, wanted

PORTS = ("kafka_port", "controller_port", "clickhouse_http_port", "clickhouse_tcp_port")


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextmanager
def private_stack() -> Iterator[Settings]:
    """A running broker and engine with topics and tables; data is deleted at the end. Raises StackError."""
    with tempfile.TemporaryDirectory(prefix="drumline-bench-", ignore_cleanup_errors=True) as folder:
        ports = dict(zip(PORTS, free_ports(4), strict=True))
        settings = Settings(
            kafka=KafkaSettings(),
            clickhouse=ClickHouseSettings(),
            local=LocalSettings(state=Path(folder) / "state", **ports),
            stream=StreamSettings(window_steps=5, instance="bench"),
            sink=SinkSettings(instance="bench"),
            log_level="WARNING",
        )
        try:
            local_stack.up(settings)
            admin, topics = TopicsAdmin(settings), wanted(settings, None)
            admin.apply(topics, plan(topics, admin.found(topic.name for topic in topics)))
            client = clickhouse.connect(settings)
            migrate(client, settings)
            client.close()
            yield settings
        finally:
            local_stack.down(settings)


def environment(settings: Settings) -> dict[str, str]:
    """What a `drumline` subprocess needs to use the same stack in the same way; the caller's DRUMLINE_ is left out."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRUMLINE_")}
    local = {f"DRUMLINE_LOCAL__{name.upper()}": str(getattr(settings.local, name)) for name in ("state", *PORTS)}
    return {
        **kept,
        **local,
        "DRUMLINE_STREAM__WINDOW_STEPS": str(settings.stream.window_steps),
        "DRUMLINE_STREAM__APP_ID": settings.stream.app_id,
        "DRUMLINE_STREAM__INSTANCE": settings.stream.instance,
        "DRUMLINE_SINK__INSTANCE": settings.sink.instance,
    }


def engine_cpu_s(settings: Settings) -> float:
    """CPU seconds that the local ClickHouse engine has used so far."""
    used = [process.cpu_times() for process in local_stack.own_processes(settings)["engine"]]
    return sum(times.user + times.system for times in used)
