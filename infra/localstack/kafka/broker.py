"""The local broker: one JVM with Apache Kafka in KRaft mode, broker and controller combined, on loopback."""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError, State
from drumline.infra.kafka.config import client_config
from drumline.infra.localstack.kafka.jars import ensure_jars
from drumline.infra.localstack.kafka.java import find_java
from drumline.infra.localstack.supervisor import Child

RESOURCES = Path(__file__).parents[1] / "assets" / "kafka"
#: Timeout of a clean stop; s.
STOP_S = 20.0


def marker(state: State) -> str:
    """Return the argument that identifies the JVM of this state directory in a list of processes."""
    return f"-Ddrumline.state={state.root}"


def broker_ports(settings: Settings) -> dict[str, tuple[str, int]]:
    """Return setting -> (server, port)."""
    return {
        "DRUMLINE_LOCAL__KAFKA_PORT": ("Kafka", settings.local.kafka_port),
        "DRUMLINE_LOCAL__CONTROLLER_PORT": ("Kafka's controller", settings.local.controller_port),
    }


def properties(settings: Settings) -> str:
    """Return server.properties: the committed part, then ports and folders.

    Voters are named in the file (a static quorum), so that the ports may change from one start to the next.
    """
    local = settings.local
    listeners = f"PLAINTEXT://127.0.0.1:{local.kafka_port},CONTROLLER://127.0.0.1:{local.controller_port}"
    lines = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{local.controller_port}",
        "log.dirs": str(State.of(settings).kafka / "data"),
    }
    return (RESOURCES / "server.properties").read_text() + "".join(f"{name}={value}\n" for name, value in lines.items())


def jvm(settings: Settings, java: str, jars: Path) -> list[str]:
    """Return the command line up to the main class: a small JVM with C1 only, serial collector, short stacks."""
    state = State.of(settings)
    return [
        java,
        marker(state),
        f"-Ddrumline.logs={state.logs}",
        f"-Dlog4j2.configurationFile={RESOURCES / 'log4j2.properties'}",
        "-Djava.awt.headless=true",
        f"-Xmx{settings.local.kafka_heap_mb}m",
        "-Xms64m",
        "-Xss512k",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:ReservedCodeCacheSize=48m",
        "-XX:MaxDirectMemorySize=64m",
        "-XX:+ExitOnOutOfMemoryError",
        "-cp",
        str(jars / "*"),
    ]


def broker_answers(settings: Settings, timeout_s: float = 2.0) -> bool:
    """Return whether the broker lists its topics to a client."""
    try:
        # The delay that spares a lost broker a long-lived client's attempts would outlast a short probe.
        quick = {**client_config(settings, "drumline-probe"), "reconnect.backoff.ms": 50, "log_level": 0}
        client = AdminClient(quick)
        return bool(client.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def prepare_broker(settings: Settings) -> Child:
    """Fetch the jars, write the configuration, format the storage on first use; return the process to run.

    Raises StackError: no Java, no Maven, no jars, storage cannot be formatted.
    """
    state = State.of(settings)
    java, jars = find_java(), ensure_jars(settings)
    config = state.kafka / "server.properties"
    config.write_text(properties(settings))
    command = jvm(settings, java, jars)
    if not (state.kafka / "data" / "meta.properties").exists():
        format_storage(command, config)
    return Child(
        name="broker",
        argv=[*command, "kafka.Kafka", str(config)],
        cwd=str(state.kafka),
        log=str(state.logs / "broker.log"),
        stop="term",
        stop_s=STOP_S,
    )


def format_storage(command: list[str], config: Path, *options: str) -> None:
    """Format the data folder with a new cluster id; safe after an incomplete run. `options`: more for the tool.

    Raises:
        StackError: the tool failed.
    """
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
    tool = [
        *command,
        "kafka.tools.StorageTool",
        "format",
        "--ignore-formatted",
        "-t",
        cluster,
        "-c",
        str(config),
        *options,
    ]
    answer = subprocess.run(tool, capture_output=True, text=True, timeout=120)
    if answer.returncode != 0:
        raise StackError(f"Kafka could not format {config.parent / 'data'}: {(answer.stderr or answer.stdout).strip()}")
