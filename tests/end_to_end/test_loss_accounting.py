"""What a job loses, followed from CUPTI to the audit: the disk is full, its spool cannot be read, the job is killed.
What is stored and what is told as lost are what CUPTI delivered, and the job ends as ever."""

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

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.queries import queries
from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(400)]
HERE = Path(__file__).parents[2] / "tests"
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
            **self.pipeline.environment, "DRUMLINE_SPOOL__ROOT": str(root), "DRUMLINE_AGENT__METRICS_PORT": "0",
            "DRUMLINE_AGENT__GPU_S": "0", "DRUMLINE_SPOOL__SEGMENT_S": "1", "DRUMLINE_JOB": "losses",
            "PYTHONPATH": str(HERE),
        }  # fmt: skip

    def job(self, how, repetitions, **extra):
        return subprocess.Popen(
            [sys.executable, str(HERE / "support/collector_job.py"), how, str(repetitions)],
            env={**self.environment, **extra}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def agent(self, *arguments):
        command = [sys.executable, "-m", "drumline.infra.cli.app", "agent", *arguments]
        agent = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.pipeline.sinks.append(agent)
        return agent

    def folder(self):
        """The job's, once it is there."""
        while not (found := [path.parent for path in self.root.glob("*/identity.json")]):
            time.sleep(0.05)
        return found[0]

    def account(self, job, code, said=()):
        """(delivered, stored, told as lost), kernels and copies of each, from a clean audit; and who the job was.
        `said`: what its lines on stderr end with."""
        output, errors = job.communicate(timeout=90)
        lines = errors.splitlines()
        assert (job.returncode, len(lines)) == (code, len(said)), errors
        assert all(line.endswith(end) for line, end in zip(lines, said, strict=True)), errors
        report = json.loads(output.splitlines()[0])
        assert report["dropped"] == 0
        agent = self.agent("--until-empty")
        assert agent.wait(60) == 0
        self.pipeline.producer = None
        self.pipeline.start("--instance", "1")
        self.pipeline.published |= dict.fromkeys(map(str, TOPICS), 0)
        self.pipeline.wait_drained(120)
        found = self.pipeline.audit()
        question = queries()["collecting"]
        client = clickhouse.connect(self.pipeline.settings, database=self.pipeline.settings.clickhouse.database)
        [who] = clickhouse.rows(client, question.sql, question.values({"job": "losses"}))
        self.pipeline.stop()
        assert found.clean, json.dumps(found.as_json(), indent=1, default=str)
        stored = {account.topic: account.rows_stored for account in found.topics}
        lost = Counter()
        for each in found.dropped:
            lost[each["topic"]] += each["dropped"]
        delivered = report["delivered"]
        given = (delivered["10"], delivered["1"] + delivered["2"])
        kept, gone = ((each[Topic.KERNEL], each[Topic.MEMCPY]) for each in (stored, lost))
        print(f"kernels and copies: {given} delivered, {kept} stored, {gone} told as lost")
        assert tuple(a + b for a, b in zip(kept, gone, strict=True)) == given
        assert (who["kernels"], who["problems"]) == (given[0], "")
        assert who["decoder"] > 0 < who["in_job"]
        assert bool(who["dropped"]) == any(gone)
        return given, kept, gone, who


@pytest.fixture
def lab(clean_stack, environment_of, tmp_path):
    made = Lab(clean_stack, environment_of(clean_stack), tmp_path / "spool")
    yield made
    made.pipeline.stop()


def test_a_killed_job_says_so_and_loses_nothing_that_cupti_had_handed_over(lab):
    _, _, gone, who = lab.account(lab.job("kill", 5), -9)
    assert gone == (0, 0)
    assert who["policy"] == "off: the process ended without a word"


def test_a_full_disk_costs_what_is_told(lab, tmp_path):
    with small_disk(tmp_path / "disk", 24) as disk:
        lab.root = disk / "spool"
        job = lab.job("paced", 24, DRUMLINE_SPOOL__ROOT=str(lab.root))
        folder = lab.folder()
        time.sleep(3)
        with contextlib.suppress(OSError), (disk / "somebody-elses").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(100_000))
        held = sum(path.stat().st_size for path in folder.iterdir())
        time.sleep(4)
        assert sum(path.stat().st_size for path in folder.iterdir()) < held / 2, "others need it"
        (disk / "somebody-elses").unlink()
        lab.environment["DRUMLINE_SPOOL__ROOT"] = str(lab.root)
        said = f"nothing is recorded in {lab.root} until it can be written"
        given, kept, gone, _ = lab.account(job, 0, [said])
        assert 0 < gone[0] < given[0]
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
    given, kept, gone, _ = lab.account(job, 0)
    assert 0 < gone[0] < given[0]
    assert kept[0] > 0
