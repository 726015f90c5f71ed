"""Runs a job alone, and again beside hostile records; compares its verdicts and their delays."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import KafkaException, Message, Producer

from drumline.infra.chaos.hostile.cpu_use import CpuUse
from drumline.infra.chaos.hostile.innocent_job import InnocentJob
from drumline.infra.chaos.hostile.records import HostileRecord, hostile_records
from drumline.infra.chaos.hostile.report import HostileReport
from drumline.infra.chaos.reference import RESULTS, compare_rows, result_rows
from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.row_counts import counts
from drumline.infra.config.servers import ClickHouseSettings, RetentionSettings
from drumline.infra.config.settings import Settings, SinkSettings, StreamSettings
from drumline.infra.config.state_dir import StackError
from drumline.infra.kafka.config import producer_config
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack.clickhouse.engine import START_S, wait_until
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, run_audit, running_stack
from drumline.infra.localstack.processes import own_processes
from drumline.infra.localstack.status import status
from drumline.infra.runtime.processes import ManagedProcess, ProcessFailed, check_all

#: Hostile records a second, beside the job at its recorded speed.
RATE = 110
#: Seconds that a repetition of the demo's recording takes.
LOOP_S = 18.5
Log = Callable[[str], None]


def settings_in(folder: Path) -> Settings:
    """Return the settings of a private stack in `folder`: those of production, but small windows and no retention."""
    for_ever = RetentionSettings(**dict.fromkeys(RetentionSettings.model_fields, 0))
    return ephemeral_settings(
        folder / "state",
        clickhouse=ClickHouseSettings(retention=for_ever),
        stream=StreamSettings(window_steps=5, instance="hostile", metrics_port=0),
        sink=SinkSettings(instance="hostile", metrics_port=0),
        log_level="WARNING",
    )


class Hostilities:
    """Sends hostile records at a steady rate and remembers where Kafka put them. Call `send_due` often."""

    def __init__(self, settings: Settings, records: Iterator[HostileRecord], count: int, report: HostileReport) -> None:
        limits = {"message.max.bytes": 20_000_000, "queue.buffering.max.kbytes": 200_000, "linger.ms": 5}
        self._producer = Producer({**producer_config(settings, "drumline-chaos"), **limits})
        self._records, self._count, self._report = records, count, report
        self._began = time.monotonic()
        self._due = 0
        self.places: dict[tuple[str, int, int], str] = {}

    def send_due(self) -> bool:
        """Send what is due by now; return False once Kafka took `count`, or may still take them."""
        while self._due < (time.monotonic() - self._began) * RATE:
            if self._due - self._report.rejected >= self._count:
                return False
            self._due += 1
            self._send(next(self._records))
        self._producer.poll(0)
        return True

    def _send(self, record: HostileRecord) -> None:
        def delivered(error: Any, message: Message) -> None:
            if error is not None:
                self._report.rejected += 1
            else:
                self._report.sent += 1
                place = str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)
                self.places[place] = record.attack

        try:
            while True:
                try:
                    self._producer.produce(record.topic.value, record.value, record.key, on_delivery=delivered)
                    break
                except BufferError:  # Kafka takes them more slowly than they are due
                    self._producer.poll(0.1)
        except KafkaException:
            self._report.rejected += 1

    def flush(self) -> None:
        """Wait until Kafka has all records."""
        self._producer.flush(60)


def run_hostile(count: int, recording: Path, report: HostileReport, log: Log) -> None:
    """Fill `report`. State is kept where it is not clean. Raises KeyboardInterrupt."""
    folder, began = Path(tempfile.mkdtemp(prefix="drumline-hostile-")), time.monotonic()
    loops = max(1, round(count / RATE / LOOP_S))
    settings = settings_in(folder)
    logs = settings.local.state / "logs"
    programs: dict[str, ManagedProcess] = {}
    try:
        log("starting Kafka and ClickHouse")
        with running_stack(settings):
            try:
                for name, command in {"sink": "sink", "worker": "stream"}.items():
                    log_file = logs / f"{name}.log"
                    programs[name] = ManagedProcess(name, [command], log_file, environment(settings), restarts=20)
                    programs[name].start()
                if not wait_until(lambda: bool(read_statuses(settings, 0)), START_S):
                    raise RuntimeError(f"the worker has no partition within {START_S:.0f} s")
                _two_runs(settings, programs, InnocentJob(settings, recording, loops), count, report, log)
            finally:
                processes = status(settings)["processes"]
                report.exits = {name: list(program.exits) for name, program in programs.items()}
                report.exits |= {name: [-1] * processes[name]["restarts"] for name in ("broker", "engine")}
                for program in programs.values():
                    program.stop()
    except (ProcessFailed, StackError, clickhouse.ClickHouseFailed, KafkaException, RuntimeError) as error:
        report.problems.append(str(error))
    finally:
        report.seconds = time.monotonic() - began
        if report.clean or report.was_interrupted:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            report.kept = str(folder)


def _two_runs(
    settings: Settings,
    programs: dict[str, ManagedProcess],
    job: InnocentJob,
    count: int,
    report: HostileReport,
    log: Log,
) -> None:
    def check() -> None:
        check_all(programs.values())

    def timed(name: str, meanwhile: Callable[[], bool]) -> dict[str, Any]:
        running = {program.name: [psutil.Process(program.pid)] for program in programs.values() if program.pid}
        use = CpuUse({**running, **own_processes(settings)})
        summary, delays = job.run(check, meanwhile)
        report.cores[name] = use.cores()
        report.delays[name], report.worker_delays[name] = ([pair[at] for pair in delays] for at in (0, 1))
        return summary

    log("replaying the job alone")
    before = timed("alone", lambda: False)
    hostilities = Hostilities(settings, hostile_records(report.seed, job.process_ids), count, report)
    log(f"replaying it beside {count:,} hostile records")

    def meanwhile() -> bool:
        if hostilities.send_due():
            return True
        hostilities.flush()
        return hostilities.send_due()  # Kafka rejected some of the last ones

    summary = timed("beside", meanwhile)
    runs = before["run"], summary["run"]
    log("comparing")
    database = settings.clickhouse.database
    for topic in RESULTS:
        expected, stored = (result_rows(job.client, database, topic, run) for run in runs)
        report.results.append(compare_rows(topic, expected, stored))
    for counted in counts(partial(clickhouse.rows, job.client), summary["run"], summary["rows"]):
        if counted.published != counted.stored:
            report.problems.append(f"raw rows of the job differ: {counted}")
    _account(job.client, hostilities.places, report)
    for run in runs:
        findings = run_audit(environment(settings), "--run", run)["findings"]
        report.findings += [f"{finding['kind']} {finding['where']}: {finding['text']}" for finding in findings]


def _account(client: clickhouse.Client, places: dict[tuple[str, int, int], str], report: HostileReport) -> None:
    """Look every hostile record up in the ledger."""
    ledger = {
        (row["topic"], row["partition"], row["offset"]): row["disposition"]
        for row in clickhouse.rows(client, "SELECT topic, partition, offset, disposition FROM ledger", {})
    }
    for place, attack in places.items():
        disposition = ledger.get(place)
        if disposition is None:
            report.unaccounted.append(f"{place[0]}:{place[1]}:{place[2]}: {attack}")
        else:
            report.dispositions[disposition] = report.dispositions.get(disposition, 0) + 1
