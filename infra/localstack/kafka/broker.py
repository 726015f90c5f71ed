"""The local brokers: JVMs with Apache Kafka in KRaft mode, broker and controller combined, on loopback.

There is one, unless `local.brokers` says otherwise. They are numbered from 1, which is also their node id.
"""

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
#: Heap of the only broker, and of each of several, which share the load; MB.
HEAP_MB, SMALL_HEAP_MB = 320, 224


def marker(state: State) -> str:
    """Return the argument that identifies the JVM of this state directory in a list of processes."""
    return f"-Ddrumline.state={state.root}"


def numbers(settings: Settings) -> range:
    """Return the numbers of all brokers."""
    return range(1, settings.local.brokers + 1)


def broker_name(number: int) -> str:
    """Return the name of a broker in the plan, in the status and of its log: broker, broker2, ..."""
    return "broker" if number == 1 else f"broker{number}"


def broker_folder(state: State, number: int) -> Path:
    """Return the folder of a broker's configuration and data."""
    return state.kafka if number == 1 else state.kafka / broker_name(number)


def client_port(settings: Settings, number: int) -> int:
    """Return the port of a broker's listener for clients."""
    return settings.local.kafka_port + 2 * (number - 1)


def controller_port(settings: Settings, number: int) -> int:
    """Return the port of a broker's KRaft controller."""
    return client_port(settings, number) + 1


def broker_ports(settings: Settings) -> dict[str, tuple[str, int]]:
    """Return setting -> (server, port); for the further brokers, "setting + 2" and so on."""
    ports: dict[str, tuple[str, int]] = {}
    for number in numbers(settings):
        offset = f" + {2 * (number - 1)}" if number > 1 else ""
        ports[f"DRUMLINE_LOCAL__KAFKA_PORT{offset}"] = ("Kafka", client_port(settings, number))
        ports[f"DRUMLINE_LOCAL__KAFKA_PORT + {2 * number - 1}"] = (
            "Kafka's controller",
            controller_port(settings, number),
        )
    return ports


def properties(settings: Settings, number: int = 1) -> str:
    """Return server.properties of a broker: the committed part, then what replaces or completes it.

    Voters are named in the file (a static quorum), so that the ports may change from one start to the next.
    """
    state, brokers = State.of(settings), settings.local.brokers
    listeners = (
        f"PLAINTEXT://127.0.0.1:{client_port(settings, number)},"
        f"CONTROLLER://127.0.0.1:{controller_port(settings, number)}"
    )
    voters = (f"{voter}@127.0.0.1:{controller_port(settings, voter)}" for voter in numbers(settings))
    lines = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.quorum.voters": ",".join(voters),
        "log.dirs": str(broker_folder(state, number) / "data"),
    }
    if brokers > 1:
        lines |= {"node.id": str(number), "broker.rack": f"rack{number}", **replication(brokers)}
    return (RESOURCES / "server.properties").read_text() + "".join(f"{name}={value}\n" for name, value in lines.items())


def replication(brokers: int) -> dict[str, str]:
    """Return the properties of several brokers: copies of topics, elections that wait for a slow voter, near reads."""
    copies, in_sync = str(min(brokers, 3)), str(max(1, min(brokers, 3) - 1))
    internal = ("transaction.state.log", "share.coordinator.state.topic")
    return {
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        **{f"{name}.replication.factor": copies for name in internal},
        **{f"{name}.min.isr": in_sync for name in internal},
        "unclean.leader.election.enable": "false",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "replica.lag.time.max.ms": "5000",
        "controller.quorum.election.timeout.ms": "1000",
        "controller.quorum.election.backoff.max.ms": "1000",
    }


def jvm(settings: Settings, java: str, jars: Path, logs: Path | None = None) -> list[str]:
    """Return the command line up to the main class: a small JVM with C1 only, serial collector, short stacks."""
    state = State.of(settings)
    return [
        java,
        marker(state),
        f"-Ddrumline.logs={logs or state.logs}",
        f"-Dlog4j2.configurationFile={RESOURCES / 'log4j2.properties'}",
        "-Djava.awt.headless=true",
        f"-Xmx{HEAP_MB if settings.local.brokers == 1 else SMALL_HEAP_MB}m",
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


def broker_answers(settings: Settings, timeout_s: float = 2.0, number: int = 0) -> bool:
    """Return whether a broker lists its topics to a client: the local one of that number, or any of the settings'."""
    try:
        # The delay that spares a lost broker a long-lived client's attempts would outlast a short probe.
        quick = {**client_config(settings, "drumline-probe"), "reconnect.backoff.ms": 50, "log_level": 0}
        if number and not settings.kafka.bootstrap:
            quick["bootstrap.servers"] = f"127.0.0.1:{client_port(settings, number)}"
        client = AdminClient(quick)
        return bool(client.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def prepare_brokers(settings: Settings) -> list[Child]:
    """Fetch the jars, write the configuration, format the storage on first use; return the processes to run.

    Raises:
        StackError: no Java, no jars, storage cannot be formatted, or it is that of another number of brokers.
    """
    state = State.of(settings)
    java, jars = find_java(), ensure_jars(settings)
    formatted = len(list(state.kafka.glob("broker?/data/meta.properties"))) + meta_properties(state, 1).exists()
    if formatted not in (0, settings.local.brokers):
        raise StackError(
            f"{state.kafka} has the data of {formatted} brokers, and DRUMLINE_LOCAL__BROKERS is "
            f"{settings.local.brokers}: set it back, or set DRUMLINE_LOCAL__STATE to a new folder"
        )
    return [_prepare(settings, java, jars, number) for number in numbers(settings)]


def meta_properties(state: State, number: int) -> Path:
    """Return the file that a broker's formatted storage has."""
    return broker_folder(state, number) / "data" / "meta.properties"


def _prepare(settings: Settings, java: str, jars: Path, number: int) -> Child:
    state, name = State.of(settings), broker_name(number)
    folder, logs = broker_folder(state, number), state.logs if number == 1 else state.logs / name
    for path in (folder, logs):
        path.mkdir(exist_ok=True)
    config = folder / "server.properties"
    config.write_text(properties(settings, number))
    command = jvm(settings, java, jars, logs)
    if not meta_properties(state, number).exists():
        format_storage(command, config, cluster=cluster_id(state) if number > 1 else "")
    return Child(
        name=name,
        argv=[*command, "kafka.Kafka", str(config)],
        cwd=str(folder),
        log=str(state.logs / f"{name}.log"),
        stop="term",
        stop_s=STOP_S,
    )


def cluster_id(state: State) -> str:
    """Return the cluster id that the first broker's storage was formatted with."""
    lines = dict(line.partition("=")[::2] for line in meta_properties(state, 1).read_text().splitlines())
    return lines["cluster.id"]


def format_storage(command: list[str], config: Path, *options: str, cluster: str = "") -> None:
    """Format the data folder, with a new cluster id unless `cluster` is one; safe after an incomplete run.

    `options`: more for the tool.

    Raises:
        StackError: the tool failed.
    """
    cluster = cluster or base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
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
