"""`drumline agent`: publish the spool of this host to Kafka."""

from __future__ import annotations

import errno
import resource
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import structlog
import typer

from drumline.cli.console import exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, INSTANCE_IN_USE, NOT_ARCHIVED
from drumline.infra.runtime.signals import ShutdownSignal
from drumline.infra.telemetry.logging import configure

if TYPE_CHECKING:
    from drumline.infra.config.settings import Settings
    from drumline.infra.telemetry.health import Health
    from drumline.producers.agent.archiver import Archiver
    from drumline.producers.rollup.host_windows import MakeStages

#: State of the windows of rows that stay on this host, above which no new process is counted; bytes.
STATE_BYTES = 256 << 20
#: Descriptors that the agent may use where the system allows it: up to four segments of each folder are open.
MOST_FILES = 1 << 16

app = typer.Typer(add_completion=False)
log = structlog.get_logger()


@app.command()
def agent(
    spool: Annotated[Path | None, typer.Option(help="The spool's root; default: DRUMLINE_SPOOL__ROOT.")] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End once all writers have exited and all is published and archived.")
    ] = False,
) -> None:
    """Publish the spool of this host's GPU processes to Kafka; one agent per host.

    A batch stays in the spool until Kafka acknowledged it. Kafka may be down for any time: the spool fills, then its
    oldest batches are evicted and counted. A killed agent resumes where it was; sinks detect batches published twice.
    Rows that are older than their tables keep rows, after an outage or out of an archive, are kept as long as new ones.
    They are counted and logged, with --until-empty before the first is published.

    It also samples this host's GPUs (NVML, gpu.device.v1, DRUMLINE_AGENT__GPU_S) and publishes XID events at once. It
    samples the host's links (sysfs, gpu.network.v1, DRUMLINE_AGENT__NETWORK_S), and the recorded processes (/proc,
    gpu.host.v1, DRUMLINE_AGENT__HOST_S), where their user is its own or it is root. When
    a verdict names one of them, it samples the Python stacks of it and of a peer without stopping them (gpu.stack.v1,
    DRUMLINE_AGENT__STACKS), and when a job stands still, it reads what NCCL's RAS knows. It makes these processes
    follow `drumline policy` and `drumline capture`
    (drumline.control.v1, DRUMLINE_AGENT__CONTROL). With
    DRUMLINE_ARCHIVE__URL=s3://bucket/prefix it archives published segments, compressed.

    Runs until SIGTERM (exit 0) or Ctrl-C (exit 130). The first signal waits for Kafka, a second one does not.

    Metrics and health: http://127.0.0.1:19466/metrics, /healthz, /readyz (DRUMLINE_METRICS_PORT, 0 = none).

    Exit codes: 0 stopped, or the spool is empty (and archived). 2 the spool's root or a setting cannot be used.
    6 another agent serves this spool. 8 (--until-empty) everything is in Kafka, but not in the archive. 130 Ctrl-C.
    """
    config = settings()
    if spool is not None:
        config.spool.root = spool
    configure(config, "agent")
    _run(config, until_empty)


def _run(config: Settings, until_empty: bool) -> NoReturn:
    """Publish the spool of `config`. Raises typer.Exit with the command's exit code."""
    from drumline.infra.kafka.registry import codec
    from drumline.infra.telemetry.health import Health, serve_health
    from drumline.producers.agent.agent import Agent, AgentOptions, deleted
    from drumline.producers.agent.cursor import Cursor, OtherAgent
    from drumline.producers.agent.kept_rows import KeptRows
    from drumline.producers.agent.old_rows import OLD_ROWS, old_rows
    from drumline.producers.agent.own_samples import OwnSamples
    from drumline.producers.agent.producer import KafkaSender
    from drumline.producers.ipc.plain_file import real_folder
    from drumline.producers.spool.folder_layout import IDENTITY
    from drumline.producers.spool.location import make_root
    from drumline.schemas.topics import RAW_TOPICS

    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most_files, MOST_FILES), most_files))
    stopping = ShutdownSignal()
    root = config.spool.root
    try:
        if (root / IDENTITY).exists():
            exit_with("agent", BAD_INPUT, f"{root} is the folder of one process: name the one that it lies in")
        if until_empty and not root.exists():
            exit_with("agent", BAD_INPUT, f"{root}: no such folder: nothing to publish")
        make_root(root)
        config.spool.root = root = real_folder(root)  # no link in its place is followed later
        cursor = Cursor(root)
    except OtherAgent as error:
        exit_with("agent", INSTANCE_IN_USE, str(error))
    except OSError as error:
        exit_with(
            "agent", BAD_INPUT, f"{root}: {error.strerror}: name another folder with --spool or DRUMLINE_SPOOL__ROOT"
        )
    health = Health()
    serve_health("agent", config, health)
    topics = [str(topic) for topic in RAW_TOPICS]
    try:
        kept = KeptRows(config, _stages(config)) if config.agent.kept_folder is not None else None
    except OSError as error:
        cursor.close()
        reason = (
            f"DRUMLINE_AGENT__KEPT_FOLDER={config.agent.kept_folder}: {error.filename or ''} {error.strerror or error}"
        )
        exit_with("agent", INSTANCE_IN_USE if error.errno == errno.EBUSY else BAD_INPUT, reason)
    archiver = _archiver(config, health) if config.archive.url else None
    program = Agent(
        config, cursor, KafkaSender(config, topics), codec(config), health,
        AgentOptions(stopping=stopping, until_empty=until_empty, done=archiver.take if archiver else deleted,
                     kept=kept),
    )  # fmt: skip
    samples = None
    chosen = config.agent
    if not until_empty and (chosen.gpu_s or chosen.host_s or chosen.network_s or chosen.stacks or chosen.control):
        samples = OwnSamples(config, program, codec(config), kept)

    def go_on() -> bool:
        health.heartbeat()
        return not stopping()

    waiting = 0
    try:
        retention, now_ns = config.clickhouse.retention, time.time_ns()
        with suppress(OSError):  # of the root: the agent states it
            if until_empty and (old := old_rows(root, cursor.positions, retention, now_ns, go_on)):
                log.warning(OLD_ROWS, rows=sum(old.values()), topics=dict(old))
        program.run(last=samples.stop if samples is not None else lambda: None)
        if archiver is not None and until_empty:
            waiting = archiver.drain(go_on)
    except OtherAgent as error:  # the spool was removed and another agent came first
        exit_with("agent", INSTANCE_IN_USE, str(error))
    finally:
        if archiver is not None:
            archiver.stop()
        cursor.close()
    if archiver is not None and until_empty and not stopping() and (waiting or archiver.left_out):
        exit_with("agent", NOT_ARCHIVED, _unarchived(waiting, archiver))
    raise typer.Exit(stopping.code)


def _stages(config: Settings) -> MakeStages:
    """Return what makes the stream worker's window stages, which count the rows that stay on this host."""
    from drumline.streams.core.state_budget import StateBudget, StateLimits
    from drumline.streams.windows.config import WindowConfig
    from drumline.streams.windows.kernel_frequency import KernelFrequency
    from drumline.streams.windows.memcpy_bandwidth import MemcpyBandwidth
    from drumline.streams.windows.stage import ProcessWindows

    windows, budget = WindowConfig.of(config.stream), StateBudget(StateLimits(worker_bytes=STATE_BYTES))
    return {
        reducer.source: partial(ProcessWindows, config=windows, reducer=reducer, budget=budget)
        for reducer in (KernelFrequency(), MemcpyBandwidth())
    }


def _unarchived(waiting: int, archiver: Archiver) -> str:
    reasons = (
        [f"{waiting} segments wait for it ({archiver.problem or 'it is slow'}): run this again"] if waiting else []
    )
    reasons += [f"{archiver.left_out} were left out, the log has the reason"] if archiver.left_out else []
    return f"everything is in Kafka, but not in the archive: {'; '.join(reasons)}"


def _archiver(config: Settings, health: Health) -> Archiver:
    from drumline.producers.agent.archiver import Archiver
    from drumline.producers.agent.object_store import ArchiveMissing, s3, zstd
    from drumline.producers.identity import host_name

    try:
        store, compress = s3(config.archive), zstd()
    except (ArchiveMissing, ValueError) as error:
        exit_with("agent", BAD_INPUT, str(error))
    archiver = Archiver(config.spool.root, host_name(config.host), config.archive.backlog_mb << 20, store, compress)
    health.probe("archive", lambda: archiver.problem)
    archiver.start()
    return archiver
