"""Measures the Faust worker's kernel frequency beside a windowed Faust table fed one event a message."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import Producer

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import producer_config
from drumline.infra.kafka.topic_admin import DeclaredTopic, TopicsAdmin, plan
from drumline.lab.bench.benchmarks.sink import publish
from drumline.lab.bench.processes.child_process import add_common, child
from drumline.lab.bench.processes.ephemeral_stack import private_stack
from drumline.lab.bench.processes.stream_child import SINGLE
from drumline.lab.bench.result import BenchReport, Progress
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.topics import Topic

TARGET, RATIO_TARGET = 2e6, 300


def publish_single(settings: Settings, folder: Path, events: int) -> int:
    """Publish the first `events` kernels of the recording, one JSON message each, timed by the kernel's start."""
    admin = TopicsAdmin(settings)
    wanted = [DeclaredTopic(SINGLE, settings.kafka.partitions, settings.kafka.replication, {})]
    admin.apply(wanted, plan(wanted, {}))
    producer = Producer(producer_config(settings, "bench-single"))
    sent = 0
    for outgoing in RecordedJob(folder, topics=[Topic.KERNEL]).batches():
        batch = outgoing.batch
        names, columns = batch.strings("name", "names").tolist(), batch.columns
        for name, start, duration in zip(
            names, columns["start_ns"].tolist(), columns["duration_ns"].tolist(), strict=True
        ):
            value = json.dumps({"name": name, "start_ns": start, "duration_ns": duration})
            producer.produce(SINGLE, value.encode(), outgoing.key.encode(), timestamp=start // 1_000_000)
            sent += 1
            if sent % 1000 == 0:
                producer.poll(0)
            if sent == events:
                producer.flush(60)
                return sent
    producer.flush(60)
    return sent


def bench_stream(
    folder: Path,
    loops: int = 12,
    events: int = 30_000,
    progress: Progress = lambda _: None,
    profile: Path | None = None,
) -> BenchReport:
    """Let both workers catch up with records in Kafka, one after the other, each with a core of its own.

    With `profile`, a folder, write stream.txt.
    """
    data = f"recorded kernels, {loops} loops; baseline {events:,} of them"
    report = BenchReport("stream", data, "one JSON event a message, counted in a hopping Faust table")
    progress("starting Kafka and ClickHouse")
    with private_stack() as settings:
        progress("publishing")
        rows_by_topic, messages = publish(settings, folder, [Topic.KERNEL], loops)
        rows = rows_by_topic[Topic.KERNEL]
        sent = publish_single(settings, folder, events)
        progress("one event a message")
        baseline = child(settings, "stream_child", "single", sent)
        progress("the worker")
        measured = child(
            settings, "stream_child", "kernel-frequency", messages, profile / "stream.txt" if profile else None
        )
    done = rows * measured["records"] / messages  # the first records come before the clock starts
    events_done = baseline["records"]
    cpu, cpu_single = done / measured["cpu_s"], events_done / baseline["cpu_s"]
    report.add("kernel frequency, one core", cpu, "kernels/CPU s", cpu_single, target=TARGET)
    report.add("times the baseline, CPU", cpu / cpu_single, "x", target=RATIO_TARGET)
    wall, wall_single = done / measured["wall_s"], events_done / baseline["wall_s"]
    report.add("wall clock", wall, "kernels/s", wall_single, target=TARGET)
    report.add("times the baseline, wall clock", wall / wall_single, "x", target=RATIO_TARGET)
    report.add(
        "share of its core used", measured["cpu_s"] / measured["wall_s"], "", baseline["cpu_s"] / baseline["wall_s"]
    )
    report.add("messages", measured["records"] / measured["wall_s"], "1/s", events_done / baseline["wall_s"])
    report.add("CPU per message", measured["cpu_s"] / measured["records"] * 1e6, "us", 1e6 / cpu_single)
    report.add("CPU per million kernels", 1e6 / cpu, "s", 1e6 / cpu_single)
    add_common(report, measured, baseline, "worker", "the baseline ran the same way")
    report.notes.append(
        f"{rows / messages:,.0f} kernels a message on average. The worker also keeps GPU time, grid and block sizes "
        "and duration quantiles and writes its windows; the baseline only counts, in memory, with a changelog."
    )
    return report
