"""A deep window from one place: fake processes under two agents, real Kafka, sink and ClickHouse.

DRUMLINE_TEST_RANKS, DRUMLINE_TEST_CAPTURES, DRUMLINE_TEST_LEAD: numbers of ranks and captures, and seconds until the
first step. The bar is measured with 64, 20 and 5 on a machine that does nothing else.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from support import migrated_database
from support.fakes.cupti import RawBuffer
from support.labs.verdicts import verdict
from support.wait_limit import WAIT_S

from drumline.infra.clickhouse.client import connect, rows
from drumline.infra.kafka.config import producer_config
from drumline.infra.localstack.stack import wait_until
from drumline.infra.runtime.processes import ManagedProcess
from drumline.producers.spool.location import make_rings
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.views.control.control_topic import in_force

TESTS = Path(__file__).parents[1]
RANKS, CAPTURES, LEAD = (int(os.environ.get(f"DRUMLINE_TEST_{name}", least)) for name, least in
                         (("RANKS", "4"), ("CAPTURES", "2"), ("LEAD", "30")))  # fmt: skip
pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(450 + 60 * CAPTURES)]
STEP_S, STEPS = 0.2, 5
#: Time from the end of a window, or a kill, to the old state; s.
BACK_S = 5.0


class Job:
    """Ranks under two agents, each with a spool of its own."""

    def __init__(self, folder, environment):
        self.environment, self.folder = environment, folder
        self.roots = [folder / "spool-a", folder / "spool-b"]
        (folder / "ddp_steps").write_bytes(RawBuffer("ddp_steps").data.tobytes())
        self.programs = [self.program("sink", ["sink"], DRUMLINE_SINK__BULK_FLUSH_S="10")]
        self.agents = [self.program(f"agent-{root.name}", ["agent", "--spool", str(root)]) for root in self.roots]
        for program in (*self.programs, *self.agents):
            program.start()
        self.ranks = [self.rank(number) for number in range(RANKS)]

    def program(self, name, arguments, **more):
        return ManagedProcess(name, arguments, self.folder / f"{name}.log", self.environment | more, restarts=0)

    def rank(self, number):
        root = self.roots[number % 2]
        environment = self.environment | {
            "DRUMLINE_SPOOL__ROOT": str(root), "DRUMLINE_RINGS__FOLDER": str(root / ".rings"),
            "DRUMLINE_COLLECT__POLICY": "auto", "DRUMLINE_JOB": "deep", "DRUMLINE_RUN": "r1", "RANK": str(number),
            "DRUMLINE_COLLECT__BUFFER_MB": "4", "WORLD_SIZE": str(RANKS), "PYTHONPATH": str(TESTS),
            "RAW_CUPTI_PLAIN": str(self.folder),
        }  # fmt: skip
        make_rings(environment)  # as `drumline run` does
        with (self.folder / f"rank-{number}.log").open("wb") as log:
            command = [sys.executable, str(TESTS / "support/deep_job.py"), str(STEP_S)]
            return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def switched(self, number):
        """Times at which CUPTI was switched on and off in a rank."""
        lines = (self.folder / f"rank-{number}.log").read_text().splitlines()
        parts = [line.split() for line in lines if line.startswith(("on ", "off "))]  # others are warnings
        return [(how, float(at)) for how, at in parts]

    def is_on(self, number):
        return [how for how, _ in self.switched(number)][-1:] == ["on"]

    def last_off(self, ranks):
        """Time at which CUPTI was switched off for good in the last of these ranks, which it is."""
        return max(at for rank in ranks for _, at in self.switched(rank)[-1:])

    def kill_decoders(self, number):
        for process in psutil.process_iter(["cmdline"]):
            if "drumline.producers.decoder.main" in (process.info["cmdline"] or ()):
                with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
                    wanted = {"DRUMLINE_SPOOL__ROOT": str(self.roots[number % 2]), "RANK": str(number)}
                    if wanted.items() <= process.environ().items():
                        process.kill()

    def stop(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        for program in (*self.agents, *self.programs):
            program.stop()


@pytest.fixture
def job(clean_stack, environment_of, tmp_path):
    migrated_database.create(clean_stack)
    environment = environment_of(clean_stack) | {"DRUMLINE_AGENT__ON_VERDICT": "record"}
    command = [sys.executable, "-m", "drumline.cli.app"]
    subprocess.run([*command, "topics", "apply"], env=environment, check=True, capture_output=True)
    started = Job(tmp_path, environment)
    started.command = command
    yield started
    started.stop()


def test_a_capture_gets_the_same_steps_of_all_ranks_and_leaves_nothing_on_whatever_is_killed(job, clean_stack):
    client = connect(clean_stack, database=clean_stack.clickhouse.database)

    def drumline(*arguments):
        return subprocess.run([*job.command, *arguments], env=job.environment, capture_output=True, text=True)

    def logs():
        return "\n".join(f"{path.name}: {path.read_text()[-400:]}" for path in sorted(job.folder.glob("*.log")))

    def windows_since(when):
        return [control for control in in_force(clean_stack, time.time_ns()) if control.requested_ns / 1e9 > when]

    def ranks_with_steps(seconds=30):
        sql = "SELECT uniqExact(rank) AS n FROM steps WHERE start > now64(3) - {s:UInt32}"
        return rows(client, sql, {"s": seconds})[0]["n"]

    assert wait_until(lambda: ranks_with_steps() == RANKS, 60 + 2 * RANKS), f"no steps; {logs()}"
    if RANKS > 8:  # a process's first window starts its decoder, half a second of CPU each, here on one machine
        assert drumline("policy", "set", "always", "--job", "deep", "--for", "10m").returncode == 0
        assert wait_until(lambda: all(map(job.is_on, range(RANKS))), 60 + 3 * RANKS)
        (shown,) = map(json.loads, drumline("policy", "show", "--json").stdout.splitlines())
        assert drumline("policy", "clear", shown["key"]).returncode == 0
        assert wait_until(lambda: not any(map(job.is_on, range(RANKS))), 60 + RANKS)
        assert wait_until(lambda: ranks_with_steps(4) == RANKS, 120), "the machine is too slow for so many"
    before, delays = len(job.switched(0)), []
    for _ in range(CAPTURES):
        done = drumline("capture", "--job", "deep", "--steps", str(STEPS), "--lead", str(LEAD), "--json")
        assert done.returncode == 0, f"{done.stderr}\n{logs()}"
        answer = json.loads(done.stdout)
        assert [row["rank"] for row in answer["ranks"]] == list(range(RANKS))
        assert {(row["answer"], row["steps"]) for row in answer["ranks"]} == {("done", STEPS)}, done.stderr
        delays.append(answer["first_row_s"])
        assert wait_until(lambda: not any(map(job.is_on, range(RANKS))), BACK_S)
        # Each of the steps has its kernel, on every rank.
        sql = """SELECT s.rank AS rank, uniqExact(s.step) AS n FROM steps AS s
            INNER JOIN kernels AS k ON k.rank = s.rank AND k.job = s.job
            WHERE s.step BETWEEN {a:Int64} AND {b:Int64} AND k.start BETWEEN s.start AND s.end_time GROUP BY rank"""
        steps = {"a": answer["first_step"], "b": answer["last_step"]}
        ended = "SELECT toUnixTimestamp64Nano(max(end_time)) / 1e9 AS at FROM steps WHERE step = {b:Int64}"
        assert job.last_off(range(RANKS)) - rows(client, ended, steps)[0]["at"] < BACK_S
        assert {row["n"] for row in rows(client, sql, steps)} == {STEPS}
        assert len(rows(client, sql, steps)) == RANKS
        time.sleep(11 if CAPTURES > 2 else 0)  # the sink's pause, as between captures of people
    load = os.getloadavg()[0]
    print(f"capture to first row, {RANKS} ranks, {CAPTURES} captures in order: {delays} s, load {load:.1f}")
    single = drumline("capture", "--job", "deep", "--ranks", "1", "--seconds", "1", "--json")
    assert [row["rank"] for row in json.loads(single.stdout)["ranks"]] == [1], single.stderr
    assert len(job.switched(0)) - before == 2 * CAPTURES

    assert drumline("policy", "set", "always", "--job", "de*", "--for", "5m", "--yes").returncode == 0
    assert wait_until(lambda: all(map(job.is_on, range(RANKS))), 10 + RANKS)
    controls = map(json.loads, drumline("policy", "show", "--json").stdout.splitlines())
    [shown] = [control for control in controls if control["kind"] == "policy"]  # a window's time may not be over
    assert (shown["policy"], shown["job"]) == ("always", "de*")
    killed = time.time()
    os.kill(job.agents[0].pid, signal.SIGKILL)
    assert wait_until(lambda: not any(map(job.is_on, range(0, RANKS, 2))), BACK_S + 5)
    assert job.last_off(range(0, RANKS, 2)) - killed < BACK_S
    assert all(map(job.is_on, range(1, RANKS, 2))), "another agent's"
    job.agents[0].start()
    assert wait_until(lambda: all(map(job.is_on, range(RANKS))), 20), "what is in force is obeyed again"

    assert drumline("policy", "clear", shown["key"]).returncode == 0
    job.kill_decoders(1)
    cleared = time.time()
    assert wait_until(lambda: not any(map(job.is_on, range(RANKS))), BACK_S + 5)
    assert job.last_off(range(RANKS)) - cleared < BACK_S

    command = [*job.command, "capture", "--job", "deep", "--ranks", "1", "--seconds", "8"]
    with subprocess.Popen(command, env=job.environment, stderr=subprocess.DEVNULL) as window:
        assert wait_until(lambda: windows_since(cleared), 60)
        [request] = windows_since(cleared)
        assert wait_until(lambda: job.is_on(1), 20)
        job.kill_decoders(1)
    assert window.returncode in (0, 1), "rows that the decoder held may be lost"
    assert wait_until(lambda: not any(map(job.is_on, range(RANKS))), BACK_S + 5)
    assert job.last_off([1]) - request.until_ns / 1e9 < BACK_S
    assert wait_until(lambda: drumline("policy", "show").stdout.startswith("nothing is asked"), WAIT_S)
    client.close()


def test_a_verdict_gets_a_window_of_the_late_rank_and_a_healthy_one_from_two_agents(job, clean_stack):
    client = connect(clean_stack, database=clean_stack.clickhouse.database)

    def drumline(*arguments):
        done = subprocess.run([*job.command, *arguments], env=job.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def switched():
        return [len(job.switched(rank)) for rank in range(RANKS)]

    # Both agents follow both topics, and all decoders have started.
    drumline("policy", "set", "always", "--job", "deep")
    assert wait_until(lambda: all(map(job.is_on, range(RANKS))), WAIT_S)
    drumline("policy", "clear", "--all")
    assert wait_until(lambda: not any(map(job.is_on, range(RANKS))), WAIT_S)

    before, begun = switched(), time.time()
    # The verdict's steps lie 20 s ahead of the job's, so that a busy machine has begun the window when they come.
    first = int((begun + 20) / STEP_S) % 1_000_000
    producer = Producer(producer_config(clean_stack, "test"))
    batch = verdict("deep", first, "r1", RANKS, round(STEP_S * 1e9))
    producer.produce(Topic.STRAGGLER, value=Codec().encode(batch), key="deep")
    assert producer.flush(10) == 0

    answers = "SELECT rank, collector['control'] AS answer FROM processes WHERE job = 'deep' AND rank >= 0 AND pid > 0"
    done = f"done verdict-{first}-{first + 19}"

    def done_ranks():
        return sorted(row["rank"] for row in rows(client, answers) if row["answer"] == done)

    assert wait_until(lambda: done_ranks() == [0, 1], WAIT_S), f"{rows(client, answers)}, {switched()}"
    assert [now - then for now, then in zip(switched(), before, strict=True)] == [2, 2, *[0] * (RANKS - 2)]
    sql = "SELECT rank, count() AS n FROM kernels WHERE start > fromUnixTimestamp64Milli({ms:Int64}) GROUP BY rank"
    since = {"ms": round(begun * 1e3)}
    assert wait_until(lambda: sorted(row["rank"] for row in rows(client, sql, since)) == [0, 1], WAIT_S)
    # The row of the verdict leads to the window: what the late rank did, beside one peer.
    question = ("sql", "verdict-window", "--job", "deep", "--json")
    assert wait_until(lambda: {(row["rank"], row["peers"]) for row in drumline(*question)} == {(1, 1)}, WAIT_S)
    client.close()
