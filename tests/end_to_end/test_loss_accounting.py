"""Losses of a job from CUPTI to the audit: the disk is full, its spool cannot be read, the job is killed.

The rows stored and dropped are those that CUPTI delivered, and the job ends as ever.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support.labs.sink import Pipeline
from support.wait_limit import WAIT_S

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.queries import queries
from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.long]
TESTS = Path(__file__).parents[1]
TOPICS = (Topic.KERNEL, Topic.MEMCPY, Topic.STEP, Topic.PROCESS)


@contextlib.contextmanager
def small_disk(folder, megabytes):
    """A file system of its own, else none: mounting needs root."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Lab:
    """One recorded job after the other, and what becomes of it."""

    def __init__(self, settings, environment, root):
        self.pipeline = Pipeline(settings, environment)
        self.root = root
        self.environment = {
            **self.pipeline.environment, "DRUMLINE_SPOOL__ROOT": str(root), "DRUMLINE_METRICS_PORT": "0",
            "DRUMLINE_AGENT__GPU_S": "0", "DRUMLINE_JOB": "losses",
            "PYTHONPATH": str(TESTS),
        }  # fmt: skip

    def job(self, how, repetitions, **extra):
        return subprocess.Popen(
            [sys.executable, str(TESTS / "support/collector_job.py"), how, str(repetitions)],
            env={**self.environment, **extra}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def agent(self, *arguments):
        command = [sys.executable, "-m", "drumline.cli.app", "agent", *arguments]
        agent = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.pipeline.sinks.append(agent)
        return agent

    def folder(self):
        """The job's, once it is there."""
        while not (folders := [path.parent for path in self.root.glob("*/identity.json")]):
            time.sleep(0.05)
        return folders[0]

    def account(self, job, code, messages=()):
        """(delivered, stored, dropped), kernels and copies of each, from a clean audit; and the job's process.
        `messages`: ends of its lines on stderr."""
        output, errors = job.communicate(timeout=90)
        lines = errors.splitlines()
        assert (job.returncode, len(lines)) == (code, len(messages)), errors
        assert all(line.endswith(end) for line, end in zip(lines, messages, strict=True)), errors
        report = json.loads(output.splitlines()[0])
        assert report["dropped"] == 0
        agent = self.agent("--until-empty")
        assert agent.wait(WAIT_S) == 0
        self.pipeline.producer = None
        self.pipeline.start("--instance", "1")
        self.pipeline.published |= dict.fromkeys(map(str, TOPICS), 0)
        self.pipeline.wait_drained(120)
        audited = self.pipeline.audit()
        question = queries()["collecting"]
        client = clickhouse.connect(self.pipeline.settings, database=self.pipeline.settings.clickhouse.database)
        [process] = clickhouse.rows(client, question.sql, question.values({"job": "losses"}))
        self.pipeline.stop()
        assert audited.clean, json.dumps(audited.as_json(), indent=1, default=str)
        stored = {account.topic: account.rows_stored for account in audited.topics}
        lost = Counter()
        for entry in audited.dropped:
            lost[entry["topic"]] += entry["dropped"]
        delivered = report["delivered"]
        given = (delivered["10"], delivered["1"] + delivered["2"])
        kept, lost_rows = ((entry[Topic.KERNEL], entry[Topic.MEMCPY]) for entry in (stored, lost))
        print(f"kernels and copies: {given} delivered, {kept} stored, {lost_rows} dropped")
        assert tuple(a + b for a, b in zip(kept, lost_rows, strict=True)) == given
        assert (process["kernels"], process["problems"]) == (given[0], "")
        assert process["decoder"] > 0 < process["in_job"]
        assert bool(process["dropped"]) == any(lost_rows)
        return given, kept, lost_rows, process


@pytest.fixture
def lab(clean_stack, environment_of, tmp_path):
    started = Lab(clean_stack, environment_of(clean_stack), tmp_path / "spool")
    yield started
    started.pipeline.stop()


def test_a_killed_job_is_reported_and_loses_nothing_that_cupti_had_delivered(lab):
    _, _, lost_rows, process = lab.account(lab.job("kill", 5), -9)
    assert lost_rows == (0, 0)
    assert process["policy"] == "off: the process exited without a shutdown event"


def test_a_full_disk_costs_what_is_counted(lab, tmp_path):
    with small_disk(tmp_path / "disk", 24) as disk:
        lab.root = disk / "spool"
        job = lab.job("paced", 24, DRUMLINE_SPOOL__ROOT=str(lab.root))
        folder = lab.folder()
        time.sleep(3)
        with contextlib.suppress(OSError), (disk / "another-users").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(100_000))
        held = sum(path.stat().st_size for path in folder.iterdir())
        time.sleep(4)
        assert sum(path.stat().st_size for path in folder.iterdir()) < held / 2, "others need it"
        (disk / "another-users").unlink()
        lab.environment["DRUMLINE_SPOOL__ROOT"] = str(lab.root)
        messages = f"nothing is recorded in {lab.root} until it can be written"
        given, kept, lost_rows, _ = lab.account(job, 0, [messages])
        assert 0 < lost_rows[0] < given[0]
        assert kept[0] > 0


def test_a_spool_that_the_agent_cannot_read_fills_and_is_published_when_it_can(lab):
    job = lab.job("paced", 24, DRUMLINE_SPOOL__MAX_MB="2")
    folder = lab.folder()
    (folder / "lock").rename(folder / "away")  # the agent opens plain files only
    os.mkfifo(folder / "lock")
    agent = lab.agent()
    while not (lab.root / ".agent").exists():
        time.sleep(0.1)
    time.sleep(8)
    assert agent.poll() is None
    (folder / "away").replace(folder / "lock")
    time.sleep(2)
    agent.terminate()
    assert agent.wait(20) == 0
    given, kept, lost_rows, _ = lab.account(job, 0)
    assert 0 < lost_rows[0] < given[0]
    assert kept[0] > 0
