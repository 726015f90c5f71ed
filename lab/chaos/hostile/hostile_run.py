"""Runs a job alone and beside hostile records, in turn; compares its verdicts and their delays."""

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

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.settings import Settings, SinkSettings, StreamSettings
from drumline.infra.config.state_dir import StackError
from drumline.infra.kafka.config import producer_config
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack.clickhouse.engine import START_S, wait_until
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, run_audit, running_stack
from drumline.infra.localstack.processes import own_processes
from drumline.infra.localstack.status import status
from drumline.infra.runtime.processes import ManagedProcess, ProcessFailed, check_all
from drumline.lab.chaos.hostile.cpu_use import CpuUse
from drumline.lab.chaos.hostile.innocent_job import InnocentJob
from drumline.lab.chaos.hostile.records import HostileRecord, hostile_records
from drumline.lab.chaos.hostile.report import HostileReport
from drumline.lab.chaos.reference import RESULTS, compare_rows, result_rows
from drumline.lab.row_counts import counts

#: Hostile records a second, beside the job at its recorded speed.
RATE = 110
#: Seconds that a repetition of the demo's recording takes.
LOOP_S = 18.5
#: Times that the job runs alone and then beside hostile records. What else the machine does changes by the minute.
ROUNDS = 3
Log = Callable[[str], None]


def settings_in(folder: Path) -> Settings:
    """Return the settings of a private stack in `folder`: those of production, but small windows."""
    return ephemeral_settings(
        folder / "state",
        stream=StreamSettings(window_steps=5),
        sink=SinkSettings(),
        instance="hostile",
        log_level="WARNING",
    )


class Hostilities:
    """Sends hostile records at a steady rate and remembers where Kafka put them.

    Call `send_due` often, from a call of `begin` until it returns False.
    """

    def __init__(self, settings: Settings, records: Iterator[HostileRecord], report: HostileReport) -> None:
        limits = {"message.max.bytes": 20_000_000, "queue.buffering.max.kbytes": 200_000, "linger.ms": 5}
        self._producer = Producer({**producer_config(settings, "drumline-chaos"), **limits})
        self._records, self._report = records, report
        self._began, self._due, self._sent, self._count = 0.0, 0, 0, 0
        self.places: dict[tuple[str, int, int], str] = {}

    def begin(self, count: int) -> None:
        """Have Kafka take more, from now on, until it took `count` in all."""
        self._began, self._due, self._count = time.monotonic(), 0, count

    def send_due(self) -> bool:
        """Send what is due by now; return False once Kafka took `count`, or may still take them."""
        while self._due < (time.monotonic() - self._began) * RATE:
            if self._sent - self._report.rejected >= self._count:
                return False
            self._due, self._sent = self._due + 1, self._sent + 1
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
    loops = max(1, round(count / ROUNDS / RATE / LOOP_S))
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
                _in_rounds(settings, programs, InnocentJob(settings, recording, loops), count, report, log)
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


def _in_rounds(
    settings: Settings,
    programs: dict[str, ManagedProcess],
    job: InnocentJob,
    count: int,
    report: HostileReport,
    log: Log,
) -> None:
    hostilities = Hostilities(settings, hostile_records(report.seed, job.process_ids), report)

    def timed(name: str, meanwhile: Callable[[], bool]) -> dict[str, Any]:
        running = {program.name: [psutil.Process(program.pid)] for program in programs.values() if program.pid}
        use = CpuUse({**running, **own_processes(settings)})
        summary, delays = job.run(lambda: check_all(programs.values()), meanwhile)
        report.cores.setdefault(name, []).append(use.cores())
        report.delays.setdefault(name, []).append([stored_s for stored_s, _ in delays])
        report.worker_delays.setdefault(name, []).append([in_kafka_s for _, in_kafka_s in delays])
        return summary

    def meanwhile() -> bool:
        if hostilities.send_due():
            return True
        hostilities.flush()
        return hostilities.send_due()  # Kafka rejected some of the last ones

    runs = []
    for number in range(1, ROUNDS + 1):
        log(f"round {number} of {ROUNDS}: replaying the job alone")
        before = timed("alone", lambda: False)
        until = count * number // ROUNDS
        log(f"round {number} of {ROUNDS}: replaying it beside {until - report.sent:,} hostile records")
        hostilities.begin(until)
        runs.append((before, timed("beside", meanwhile)))
    log("comparing")
    for pair in runs:
        _compare(settings, job.client, pair, report)
    _account(job.client, hostilities.places, report)


def _compare(
    settings: Settings, client: clickhouse.Client, pair: tuple[dict[str, Any], dict[str, Any]], report: HostileReport
) -> None:
    """Compare the results of a run beside hostile records with those of one alone, and audit both."""
    runs, beside = [summary["run"] for summary in pair], pair[1]
    for topic in RESULTS:
        expected, stored = (result_rows(client, settings.clickhouse.database, topic, run) for run in runs)
        report.results.append(compare_rows(topic, expected, stored))
    for counted in counts(partial(clickhouse.rows, client), beside["run"], beside["rows"]):
        if counted.published != counted.stored:
            report.problems.append(f"raw rows of the job differ: {counted}")
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
