"""Runs a job alone, and again beside hostile records; compares its verdicts and their delays."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Message, Producer

from drumline.infra.chaos.hostile.records import HostileRecord, hostile_records
from drumline.infra.chaos.hostile.report import HostileReport
from drumline.infra.chaos.progress import PipelineProgress
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
from drumline.infra.localstack.status import status
from drumline.infra.runtime.processes import ManagedProcess, ProcessFailed, check_all

JOB = "innocent"
#: Hostile records a second, beside the job at its recorded speed.
RATE = 110
#: Seconds that a repetition of the demo's recording takes.
LOOP_S = 18.5
POLL_S, DRAIN_S = 0.3, 600.0
#: Longer than the silence after which the last windows close.
SETTLED_S = 15.0
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

    def __init__(self, settings: Settings, records: Iterator[HostileRecord], report: HostileReport) -> None:
        limits = {"message.max.bytes": 20_000_000, "queue.buffering.max.kbytes": 200_000, "linger.ms": 5}
        self._producer = Producer({**producer_config(settings, "drumline-chaos"), **limits})
        self._records, self._report = records, report
        self._began = time.monotonic()
        self._due = 0
        self.places: dict[tuple[str, int, int], str] = {}

    def send_due(self) -> bool:
        """Send what is due by now; return whether records are left."""
        while self._due < (time.monotonic() - self._began) * RATE:
            record = next(self._records, None)
            if record is None:
                return False
            self._due += 1
            self._send(record)
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


class InnocentJob:
    """Replays the recording at its own speed, and sees when each of its verdicts can be read.

    process_ids: of all its runs so far.
    """

    def __init__(self, settings: Settings, recording: Path, loops: int) -> None:
        self.settings, self._recording, self._loops = settings, recording, loops
        self.process_ids: list[str] = []
        self.client = clickhouse.connect(settings, database=settings.clickhouse.database)

    def run(self, check: Callable[[], object], meanwhile: Callable[[], bool]) -> tuple[dict[str, Any], list[float]]:
        """Replay until the end and until `meanwhile` returns False; return the summary, and the verdicts' delays.

        Raises RuntimeError where the replay fails or nothing drains.
        """
        options = ["--speed", "1", "--loop", str(self._loops), "--keep-time", "--job", JOB, "--json"]
        seen: dict[tuple[str, int], float] = {}

        def poll() -> None:
            check()
            sql = "SELECT DISTINCT run, first_step FROM stragglers WHERE job = {job:String}"
            for row in clickhouse.rows(self.client, sql, {"job": JOB}):
                seen.setdefault((row["run"], int(row["first_step"])), time.time())
            sql = "SELECT DISTINCT process_id FROM processes WHERE job = {job:String}"
            self.process_ids[:] = [row["process_id"] for row in clickhouse.rows(self.client, sql, {"job": JOB})]

        command = [sys.executable, "-m", "drumline.infra.cli.app", "replay", str(self._recording), *options]
        with subprocess.Popen(command, env=environment(self.settings), stdout=subprocess.PIPE, text=True) as replay:
            try:
                polled, busy = 0.0, True
                while busy or replay.poll() is None:
                    busy = busy and meanwhile()
                    if time.monotonic() - polled > POLL_S:
                        polled = time.monotonic()
                        poll()
                    time.sleep(0.02)
            finally:
                replay.kill()
            output = replay.stdout.read() if replay.stdout else ""
        if replay.returncode:
            raise RuntimeError(f"the replay ended with exit code {replay.returncode}")
        self._wait_settled(poll)
        summary = json.loads(output)
        return summary, self._delays(summary["run"], seen)

    def _wait_settled(self, poll: Callable[[], object]) -> None:
        """Wait until nothing is left to read and nothing new has come for SETTLED_S.

        Windows that hostile records leave open do not count: a communicator of one rank waits an hour for a second.
        """
        deadline = since_s = time.monotonic()
        deadline += DRAIN_S
        before: dict[str, int] = {}
        with closing(PipelineProgress(self.settings)) as progress:
            while time.monotonic() - since_s < SETTLED_S:
                poll()
                seen = progress.poll()
                if seen is None or any(seen.lag.values()) or seen.done != before:
                    since_s, before = time.monotonic(), seen.done if seen else {}
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not all is read within {DRAIN_S:.0f} s: {seen and seen.lag}")
                time.sleep(POLL_S)

    def _delays(self, run: str, seen: dict[tuple[str, int], float]) -> list[float]:
        """Return seconds from a window's last step in Kafka to its verdict, of windows whose verdict was not late."""
        sql = (
            "SELECT v.first_step AS first_step, toUnixTimestamp64Milli(max(l.published)) / 1e3 AS complete_s FROM "
            "(SELECT DISTINCT first_step, last_step FROM stragglers WHERE job = {job:String} AND run = {run:String}) v "
            "JOIN steps s ON s.step = v.last_step "
            "JOIN ledger l ON s._topic_partition = concat(l.topic_id, ':', toString(l.partition)) "
            "AND s._offset = l.offset "
            "WHERE s.job = {job:String} AND s.run = {run:String} GROUP BY first_step"
        )
        complete = clickhouse.rows(self.client, sql, {"job": JOB, "run": run})
        stored = {int(row["first_step"]): float(row["complete_s"]) for row in complete}
        return [seen[run, step] - complete_s for step, complete_s in stored.items() if (run, step) in seen]


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

    log("replaying the job alone")
    before, report.delays["alone"] = job.run(check, lambda: False)
    hostilities = Hostilities(settings, islice(hostile_records(report.seed, job.process_ids), count), report)
    log(f"replaying it beside {count:,} hostile records")

    def meanwhile() -> bool:
        if hostilities.send_due():
            return True
        hostilities.flush()
        return False

    summary, report.delays["beside"] = job.run(check, meanwhile)
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
