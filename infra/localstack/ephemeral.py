"""A private local stack beside the user's: free ports, a state directory, settings that ignore the environment.

Benchmarks, chaos runs and tests use such stacks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import Any

from pydantic import BaseModel

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.migrate import migrate
from drumline.infra.config.clickhouse_settings import ClickHouseSettings
from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.settings import LocalSettings, Settings, SinkSettings, SpoolSettings
from drumline.infra.config.validation import JsonSetting, is_setting
from drumline.infra.kafka.topic_admin import TopicsAdmin, declared_topics, plan
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.ports import is_free

#: Linux gives none of these to an outgoing connection (net.ipv4.ip_local_port_range): a free one stays so until its
#: server listens.
SERVER_PORTS = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return different free loopback ports of SERVER_PORTS; all are held open until the last one is known."""
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            port = SystemRandom().choice(SERVER_PORTS)  # programs started together choose different ones
            listener = stack.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def free_block(count: int, taken: Collection[int] = ()) -> int:
    """Return the first of `count` loopback ports of SERVER_PORTS in a row that are free and not `taken`."""
    while True:
        [first] = free_ports(1)
        block = range(first, first + count)
        if block.stop <= SERVER_PORTS.stop and not any(port in taken or not is_free(port) for port in block):
            return first


def ephemeral_settings(state: Path, cache: Path | None = None, brokers: int = 1, **sections: Any) -> Settings:
    """Return the settings of a private stack; its programs serve no metrics. `sections` replace whole sections.

    Several brokers get small heaps, and topics have a replica on up to three. Clients read from the second rack's.
    """
    engine = free_block(2)
    local = LocalSettings(
        state=state,
        cache=cache or LocalSettings().cache,
        brokers=brokers,
        kafka_port=free_block(2 * brokers, [engine, engine + 1]),
        clickhouse_http_port=engine,
    )
    plain: dict[str, Any] = {
        "kafka": KafkaSettings(replication=min(brokers, 3), rack="rack2" if brokers > 1 else ""),
        "clickhouse": ClickHouseSettings(),
        "local": local,
        "metrics_port": 0,
        "sink": SinkSettings(bulk_flush_s=0.05),  # bulk topics wait no longer than others
        "spool": SpoolSettings(root=state / "spool"),
    }
    return Settings(**(plain | sections))


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a `drumline` subprocess with these settings, without the caller's DRUMLINE_ variables.

    Secrets are not passed on.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRUMLINE_")}
    return {**kept, **_variables("DRUMLINE", settings)}


def run_audit(variables: Mapping[str, str], *options: str) -> dict[str, Any]:
    """Run `drumline audit --json` in this environment and return its result. Raises RuntimeError if it is undecided."""
    command = [sys.executable, "-m", "drumline.cli.app", "audit", "--json", *options]
    done = subprocess.run(command, env=dict(variables), capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"drumline audit: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _variables(prefix: str, section: BaseModel) -> dict[str, str]:
    variables: dict[str, str] = {}
    for name in section.model_dump(exclude_defaults=True):
        if not is_setting(type(section).model_fields[name]):
            continue
        value = getattr(section, name)
        below = f"{prefix}_{name.upper()}" if prefix == "DRUMLINE" else f"{prefix}__{name.upper()}"
        if isinstance(value, JsonSetting):
            variables[below] = value.model_dump_json(exclude_defaults=True)
        elif isinstance(value, BaseModel):
            variables |= _variables(below, value)
        elif isinstance(value, Mapping):
            variables[below] = json.dumps(value)
        elif value is not None and not hasattr(value, "get_secret_value"):
            variables[below] = str(value)
    return variables


@contextmanager
def running_stack(settings: Settings) -> Iterator[None]:
    """Run broker and engine with topics and tables inside the block; data stays. Raises StackError."""
    try:
        local_stack.up(settings)
        admin, topics = TopicsAdmin(settings), declared_topics(settings)
        admin.apply(topics, plan(topics, admin.existing(topic.name for topic in topics)))
        client = clickhouse.connect(settings)
        migrate(client, settings)
        client.close()
        yield
    finally:
        local_stack.down(settings)
