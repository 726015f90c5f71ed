"""Measures the exactly-once sink beside plain at-least-once inserts of the same blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import Client
from drumline.infra.config.settings import Settings
from drumline.lab.bench.processes.child_process import add_common, child
from drumline.lab.bench.processes.ephemeral_stack import private_stack, server_cpu_s
from drumline.lab.bench.processes.sink_child import PLAIN
from drumline.lab.bench.result import BenchReport, Progress
from drumline.producers.replay.publisher import Publisher
from drumline.producers.replay.recording import RecordedJob
from drumline.producers.replay.replay import replay
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic

TARGET, DISK_TARGET = 500e3, 6.0


def publish(settings: Settings, folder: Path, topics: list[Topic] | None, loops: int) -> tuple[dict[str, int], int]:
    """Replay as fast as possible and return (rows by topic, messages). Raises RuntimeError if not all arrived."""
    publisher = Publisher(settings, Codec(), "drumline-bench")
    summary = replay(RecordedJob(folder, topics=topics, loop=loops), publisher)
    if summary.problem or summary.interrupted:
        raise RuntimeError(f"the recording was not published: {summary.problem or 'interrupted'}")
    return summary.rows, sum(summary.batches.values())


def bytes_a_row(client: Client, database: str, table: str) -> float:
    """Return the bytes a row of all files of a table's active parts."""
    sizes = clickhouse.rows(
        client,
        "SELECT sum(bytes_on_disk) / sum(rows) AS each FROM system.parts "
        f"WHERE active AND database = '{database}' AND table = '{table}'",
    )
    return float(sizes[0]["each"])


def bench_sink(
    folder: Path, loops: int = 6, progress: Progress = lambda _: None, profile: Path | None = None
) -> BenchReport:
    """Measure kernels only. CPU is that of the sink's process with librdkafka's threads; the engine's is separate.

    With `profile`, a folder, write sink.txt.

    Raises:
        RuntimeError: published, inserted and stored rows differ.
    """
    report = BenchReport("sink", f"recorded kernels, {loops} loops", "the same blocks without intent, token and ledger")
    progress("starting Kafka and ClickHouse")
    with private_stack() as settings:
        database = settings.clickhouse.database
        client = clickhouse.connect(settings)
        clickhouse.command(client, f"CREATE TABLE {database}.{PLAIN} AS {database}.kernels")
        progress("publishing")
        rows_by_topic, messages = publish(settings, folder, [Topic.KERNEL], loops)
        wanted = rows_by_topic[Topic.KERNEL]
        progress("plain inserts")
        before = server_cpu_s(settings, "engine")
        plain = child(settings, "sink_child", "plain", messages)
        plain_engine = server_cpu_s(settings, "engine") - before
        progress("the sink")
        before = server_cpu_s(settings, "engine")
        into = profile / "sink.txt" if profile else None
        measured = child(settings, "sink_child", Topic.KERNEL.value, messages, into)
        engine = server_cpu_s(settings, "engine") - before
        stored = clickhouse.rows(client, f"SELECT count() AS n FROM {database}.kernels")[0]["n"]
        left = bytes_a_row(client, database, "kernels")
        progress("merging")
        clickhouse.command(client, f"OPTIMIZE TABLE {database}.kernels FINAL")
        merged = bytes_a_row(client, database, "kernels")
        client.close()
    if not wanted == measured["rows"] == plain["rows"] == stored:
        raise RuntimeError(
            f"{wanted} rows published, {measured['rows']} by the sink, {stored} stored, {plain['rows']} plain"
        )
    _add(report, measured, plain, wanted, messages)
    million = wanted / 1e6
    report.add("engine CPU per million rows", engine / million, "s", plain_engine / million)
    report.add("bytes a row on disk, kernels, as the sink left them", left, "B", target=DISK_TARGET, at_most=True)
    report.add("bytes a row on disk, kernels, merged", merged, "B", target=DISK_TARGET, at_most=True)
    report.notes.append(
        f"{wanted:,} rows in {messages:,} messages; all stored once. The clock starts with the first record. Bytes on "
        "disk are all files of the table's active parts, indexes too. The engine also keeps rollups of the sink's rows."
    )
    return report


def _add(report: BenchReport, measured: dict[str, Any], plain: dict[str, Any], wanted: int, messages: int) -> None:
    rows, rows_plain = (wanted * done["records"] / messages for done in (measured, plain))
    report.add("sink, one core", rows / measured["cpu_s"], "rows/CPU s", rows_plain / plain["cpu_s"], target=TARGET)
    report.add("wall clock", rows / measured["wall_s"], "rows/s", rows_plain / plain["wall_s"], target=TARGET)
    report.add("messages", measured["records"] / measured["wall_s"], "1/s", plain["records"] / plain["wall_s"])
    report.add("sink CPU per million rows", measured["cpu_s"] / rows * 1e6, "s", plain["cpu_s"] / rows_plain * 1e6)
    report.add("share of its core used", measured["cpu_s"] / measured["wall_s"], "", plain["cpu_s"] / plain["wall_s"])
    add_common(report, measured, plain, "sink", "the plain inserts ran the same way, and first")
