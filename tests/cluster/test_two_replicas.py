"""Two ClickHouse servers, each filled from Kafka: the one that readers ask is killed, wiped and refilled under load."""

import json
import math
import shutil
import subprocess
import sys
import threading
import time

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from support.second_engine import second_engine

from drumline.infra.clickhouse.client import ClickHouseFailed, connect, rows
from drumline.infra.config.replica_settings import of_replica
from drumline.infra.kafka.drain import wait_stored
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.infra.runtime.processes import ManagedProcess
from drumline.lab.demo_recording import DEMO_RECORDING

pytestmark = [pytest.mark.stack, pytest.mark.cluster, pytest.mark.timeout(2_400)]
#: How long the replica is away, and the bar for reads; s.
AWAY_S, UNANSWERED_S = 60.0, 5.0


class Reader(threading.Thread):
    """Reads as `drumline top` does, with a new connection each time.

    `longest_s`: without an answer, since it was last set, as is `fewest`: kernels of an answer.
    """

    def __init__(self, settings):
        super().__init__(daemon=True)
        self.settings, self.longest_s, self.answers, self.fewest, self.ending = settings, 0.0, 0, math.inf, False

    def run(self):
        answered = time.monotonic()
        while not self.ending:
            try:
                client = connect(self.settings, reader=True, timeout_s=5, database=self.settings.clickhouse.database)
                [answer] = rows(client, "SELECT count() AS n FROM kernels")
                client.close()
                self.fewest = min(self.fewest, answer["n"])
                self.answers += 1
                self.longest_s, answered = max(self.longest_s, time.monotonic() - answered), time.monotonic()
            except ClickHouseFailed:
                pass
            time.sleep(0.25)
        self.longest_s = max(self.longest_s, time.monotonic() - answered)


class Site:
    """Kafka, a worker, two engines and their sinks; the primary is the second engine, which can be killed alone."""

    def __init__(self, first, second, folder):
        server = second.both.clickhouse.model_copy(
            update={"url": second.settings.clickhouse_url, "replicas": {"b": first.clickhouse_url}}
        )
        stream = second.both.stream.model_copy(update={"data_dir": folder / "stream"})
        self.settings = second.both.model_copy(update={"clickhouse": server, "stream": stream})
        self.environment = {
            **second.environment,
            "DRUMLINE_CLICKHOUSE__URL": server.url,
            "DRUMLINE_CLICKHOUSE__REPLICAS": json.dumps(server.replicas),
            "DRUMLINE_STREAM__WINDOW_STEPS": "5",
            "DRUMLINE_STREAM__DATA_DIR": str(folder / "stream"),
            "DRUMLINE_LOCAL__STATE": str(first.local.state),
        }
        self.folder = folder
        self.programs = {
            "stream": self.program("stream", "stream"),
            "b": self.program("sink", "sink", "--replica", "b"),
        }
        self.primary = self.program("sink", "sink")

    def program(self, name, *arguments):
        return ManagedProcess(name, list(arguments), self.folder / f"{'-'.join(arguments)}.log", self.environment)

    def drumline(self, *arguments, ok=(0,)):
        done = subprocess.run(
            [sys.executable, "-m", "drumline.cli.app", *arguments],
            env=self.environment, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert done.returncode in ok, (
            f"{arguments}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout + done.stderr

    def wait_stored(self):
        for name in ("primary", "b"):
            waited = wait_stored(of_replica(self.settings, name), 400)
            assert waited, f"{name}: {waited.reason}"

    def records(self):
        """Records in the ledger of the primary."""
        return rows(connect(self.settings), "SELECT count() AS n FROM gpu.ledger")[0]["n"]

    def wait_for_more(self, sink, records):
        """Until then the sink has moved the commits of its group back, which say before that all is stored."""
        until = time.monotonic() + 400
        while self.records() <= records:
            sink.check()
            assert time.monotonic() < until, sink.log.read_text()[-3000:]
            time.sleep(0.5)

    def rejected(self):
        """The primary's sink ends, since its server lacks what it has stored."""
        assert "the ledger at" in self.drumline("sink", ok=(4,))
        return self.records()

    def compare(self):
        """Compare once all is stored in both: the worker may close a window after the sinks had nothing left.

        The servers are asked one after the other, so such a window may be a difference too, which does not last.
        """
        until = time.monotonic() + 400
        while True:
            report = json.loads(self.drumline("audit", "--compare", "--json", ok=(0, 1)))
            kinds = {finding["kind"] for part in report["replicas"].values() for finding in part["findings"]}
            is_equal = "not_drained" not in kinds and not report["differences"]
            if is_equal or time.monotonic() > until:
                return report
            time.sleep(1)

    def stop(self):
        for program in (*self.programs.values(), self.primary):
            program.stop()


@pytest.fixture
def site(jars, tmp_path):
    first = ephemeral_settings(tmp_path / "first", jars.parent)
    local_stack.up(first)
    try:
        with second_engine(first, tmp_path / "second") as second:
            created = Site(first, second, tmp_path)
            try:
                created.second = second
                yield created
            finally:
                created.stop()
    finally:
        local_stack.down(first)


def forget(settings, until):
    """Remove from Kafka the older half of what is stored, as retention does."""
    ends = [TopicPartition(row["topic"], row["partition"], row["o"] // 2) for row in until]
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    for done in admin.delete_records(ends).values():
        done.result(60)


def test_a_replica_and_its_sink_that_are_killed_and_wiped_come_back_equal_while_reads_go_on(site):
    site.drumline("topics", "apply")
    site.drumline("migrate")
    for program in (*site.programs.values(), site.primary):
        program.start()
    reader = Reader(site.settings)
    replay = [sys.executable, "-m", "drumline.cli.app", "replay", str(DEMO_RECORDING)]
    loops = str(int(AWAY_S / 19) + 2)  # the recording takes 19 s
    with subprocess.Popen([*replay, "--speed", "1", "--loop", loops, "--job", "replicas", "--json"],
                          env=site.environment, stdout=subprocess.PIPE, text=True) as load:  # fmt: skip
        reader.start()
        time.sleep(10)
        baseline_s, reader.longest_s = reader.longest_s, 0.0  # on a busy machine each answer takes its time
        site.second.kill()
        site.primary.kill()
        away_until = time.monotonic() + AWAY_S
        while time.monotonic() < away_until:
            time.sleep(1)
        site.second.up()
        site.primary.start()
        published = json.loads(load.communicate(timeout=900)[0])
    assert load.returncode == 0
    site.wait_stored()
    report = site.compare()
    assert (report["clean"], report["differences"]) == (True, []), json.dumps(report["replicas"])

    stored = rows(connect(site.settings), "SELECT topic, partition, max(offset) AS o FROM gpu.ledger "
                  "WHERE topic != 'gpu.process.v1' GROUP BY topic, partition")  # fmt: skip
    site.primary.stop()
    site.second.down()
    site.second.wipe()
    reader.fewest = math.inf
    site.second.up()
    forget(site.settings, stored)
    site.drumline("migrate")
    left = site.rejected()
    again = site.program("sink", "sink", "--accept-loss")
    again.start()
    try:
        site.wait_for_more(again, left)
        site.drumline("backfill", "--from", "b")
        site.wait_stored()
        report = site.compare()
    finally:
        again.stop()
    reader.ending = True
    reader.join()
    assert (report["clean"], report["differences"]) == (True, []), json.dumps(
        report["findings"] + report["differences"]
    )
    kernels = {name: next(t["rows_stored"] for t in part["topics"] if t["topic"] == "gpu.kernel.v1")
               for name, part in report["replicas"].items()}  # fmt: skip
    assert kernels["primary"] == kernels["b"] == published["rows"]["gpu.kernel.v1"]
    print(
        f"{kernels['b']:,} kernels in both; {reader.answers} reads, {reader.longest_s:.1f} s without an answer, "
        f"{baseline_s:.1f} s while both were up"
    )
    assert reader.longest_s <= UNANSWERED_S + baseline_s
    assert reader.fewest > 0, "the emptied server was asked"


def test_a_restored_copy_of_a_servers_data_becomes_equal_again(site, tmp_path):
    site.drumline("topics", "apply")
    site.drumline("migrate")
    for program in (*site.programs.values(), site.primary):
        program.start()
    data, copy = site.second.settings.local.state / "clickhouse" / "data", tmp_path / "copy"
    for job in ("before", "after"):
        site.drumline("replay", str(DEMO_RECORDING), "--speed", "max", "--job", job)
        site.wait_stored()
        site.primary.stop()
        site.second.down()
        if job == "before":
            shutil.copytree(data, copy, symlinks=True)
            site.second.up()
            site.primary.start()
    shutil.rmtree(data)
    copy.rename(data)
    site.second.up()
    left = site.rejected()
    again = site.program("sink", "sink", "--accept-loss")
    again.start()
    try:
        site.wait_for_more(again, left)
        site.wait_stored()
        report = site.compare()
    finally:
        again.stop()
    assert (report["clean"], report["differences"]) == (True, []), json.dumps(
        [report["differences"], report["replicas"]]
    )
    jobs = {row["job"] for row in rows(connect(site.settings), "SELECT DISTINCT job FROM gpu.processes")}
    assert jobs == {"before", "after"}
