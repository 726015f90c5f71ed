"""The Faust worker's kernel frequency over real windows, against one event a message in a windowed Faust table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from drumline.bench.figures import Report
from drumline.bench.private import private_stack
from drumline.bench.sink import publish
from drumline.bench.stream_child import SINGLE
from drumline.infra.kafka import producer_config
from drumline.infra.private import environment
from drumline.infra.settings import Settings
from drumline.infra.topics_admin import TopicsAdmin, Wanted, plan
from drumline.producers.recorded import recorded_batches
from drumline.schemas.topics import Topic

BAR, RATIO_BAR = 2e6, 300
Progress = Callable[[str], None]


def publish_single(settings: Settings, folder: Path, events: int) -> int:
    """The first `events` kernels of the recording, one JSON message each, with the kernel's start as its time."""
    admin = TopicsAdmin(settings)
    wanted = [Wanted(SINGLE, settings.kafka.partitions, settings.kafka.replication, {})]
    admin.apply(wanted, plan(wanted, {}))
    producer = Producer(producer_config(settings, "bench-single"))
    sent = 0
    for outgoing in recorded_batches(folder, topics=[Topic.KERNEL]):
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


def child(settings: Settings, which: str, wanted: int) -> dict[str, Any]:
    """Run one worker; what it measured. Raises RuntimeError with its last words."""
    command = [sys.executable, "-m", "drumline.bench.stream_child", which, str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(settings), check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"the worker ({which}) ended with {done.returncode}:\n{done.stderr[-1500:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    if result["handled"] < wanted:
        raise RuntimeError(f"the worker ({which}) handled {result['handled']} of {wanted}:\n{done.stderr[-1500:]}")
    return result


def bench_stream(folder: Path, loops: int = 12, events: int = 30_000, progress: Progress = lambda _: None) -> Report:
    """Both workers catch up on what is in Kafka, each alone, from the first record handled to the last."""
    data = f"recorded kernels, {loops} loops; baseline {events:,} of them"
    report = Report("stream", data, "one JSON event a message, counted in a hopping Faust table")
    progress("starting Kafka and ClickHouse")
    with private_stack() as settings:
        progress("publishing")
        rows_by_topic, messages = publish(settings, folder, [Topic.KERNEL], loops)
        rows = rows_by_topic[Topic.KERNEL]
        sent = publish_single(settings, folder, events)
        progress("one event a message")
        theirs = child(settings, "single", sent)
        progress("the worker")
        ours = child(settings, "kernel-frequency", messages)
    done = rows * ours["records"] / messages  # the first records come before the clock starts
    events_done = theirs["records"]
    cpu, cpu_single = done / ours["cpu_s"], events_done / theirs["cpu_s"]
    report.add("kernel frequency, one core", cpu, "kernels/CPU s", cpu_single, bar=BAR)
    report.add("times the baseline, CPU", cpu / cpu_single, "x", bar=RATIO_BAR)
    report.add("wall clock", done / ours["wall_s"], "kernels/s", events_done / theirs["wall_s"])
    report.add("messages", ours["records"] / ours["wall_s"], "1/s", events_done / theirs["wall_s"])
    report.add("CPU per message", ours["cpu_s"] / ours["records"] * 1e6, "us", 1e6 / cpu_single)
    report.add("CPU per million kernels", 1e6 / cpu, "s", 1e6 / cpu_single)
    report.add("memory, most", max(ours["memory"]) / 2**20, "MiB", max(theirs["memory"]) / 2**20, bar=400, most=True)
    quarter = max(1, len(ours["memory"]) // 4)
    for name, part in (("first", ours["memory"][:quarter]), ("last", ours["memory"][-quarter:])):
        report.add(f"memory, mean of the {name} quarter", sum(part) / len(part) / 2**20, "MiB")
    report.notes.append(
        f"{rows / messages:,.0f} kernels a message on average. The worker also keeps GPU time, grid and block sizes "
        "and duration quantiles and writes its windows; the baseline only counts, in memory, with a changelog."
    )
    return report
