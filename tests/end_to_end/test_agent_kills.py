"""The node agent against a real broker while things die: published + dropped = written, and the audit is clean."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import encode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.long]
KERNEL = str(Topic.KERNEL)


class Job:
    """Training processes that spool batches of 50 kernels, and the agents that come and go."""

    def __init__(self, pipeline: Pipeline, root, processes=2, **limits):
        self.pipeline, self.root = pipeline, root
        envelopes = [any_batch(Topic.PROCESS, 1, process_id(i), 0, i).envelope for i in range(processes)]
        self.spools = [SpoolWriter(root, envelope, SpoolLimits(**limits)) for envelope in envelopes]
        self.written = self._sequence = 0

    def write(self, batches):
        for sequence in range(self._sequence, self._sequence + batches):
            for i, spool in enumerate(self.spools):
                batch = any_batch(Topic.KERNEL, 50, process_id(i), sequence, i)
                spool.append(KERNEL, process_id(i), encode(model(Topic.KERNEL), batch), 50)
                self.written += 50
        self._sequence += batches

    def agent(self, *arguments):
        agent = subprocess.Popen(
            [sys.executable, "-m", "drumline.cli.app", "agent", "--spool", str(self.root), *arguments],
            env={**self.pipeline.environment, "DRUMLINE_METRICS_PORT": "0"},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.pipeline.sinks.append(agent)  # stopped with the test
        return agent

    def wait_for_progress(self, agent):
        """Until the agent has saved its cursor again: it publishes."""
        cursor = self.root / ".agent" / "cursor.json"
        before = cursor.read_text() if cursor.exists() else ""
        while not cursor.exists() or cursor.read_text() == before:
            assert agent.poll() is None, agent.stderr.read().decode()[-2_000:]
            time.sleep(0.02)

    def end(self):
        """Processes end; an agent publishes what is left."""
        for spool in self.spools:
            spool.close()
        agent = self.agent("--until-empty")
        _, errors = agent.communicate(timeout=60)
        assert agent.returncode == 0, errors.decode()[-2_000:]
        assert all(name.startswith(".") for name in os.listdir(self.root))

    def stored(self):
        """(kernels stored, dropped, records recognised as published twice), from a clean audit."""
        self.pipeline.start("--instance", "1")
        self.pipeline.published |= {KERNEL: self.written, Topic.PROCESS.value: len(self.spools)}
        self.pipeline.wait_drained()
        report = self.pipeline.audit()
        assert report.clean, json.dumps(report.as_json(), indent=1, default=str)
        [kernels] = [account for account in report.topics if account.topic == KERNEL]
        dropped = sum(entry["dropped"] for entry in report.dropped if entry["topic"] == KERNEL)
        return kernels.rows_stored, dropped, kernels.duplicate


@pytest.fixture
def pipeline(clean_stack, environment_of):
    started = Pipeline(clean_stack, environment_of(clean_stack))
    yield started
    started.stop()


def test_killed_again_and_again_it_loses_nothing_and_what_it_repeats_is_known(pipeline, tmp_path):
    job = Job(pipeline, tmp_path, segment_bytes=100_000)
    done = threading.Event()

    def write():
        while not done.is_set():
            job.write(1)
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    for life in (0.3, 0.6):
        agent = job.agent()
        job.wait_for_progress(agent)
        time.sleep(life)
        agent.kill()
        agent.wait()
    done.set()
    writer.join()
    job.end()
    stored, dropped, twice = job.stored()
    assert (stored, dropped) == (job.written, 0)
    assert twice > 0, "no kill fell between an acknowledgement and the cursor"


def test_what_a_full_spool_lost_is_counted_to_the_row(pipeline, tmp_path):
    job = Job(pipeline, tmp_path, max_bytes=400_000, segment_bytes=50_000)
    job.write(200)
    agent = job.agent()
    job.wait_for_progress(agent)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(20) == 0
    job.write(200)
    lost = sum(spool.dropped[KERNEL] for spool in job.spools)
    job.end()
    assert job.stored() == (job.written - lost, lost, 0)
    assert 0 < lost < job.written


def test_kafka_may_go_away_while_it_publishes(pipeline, tmp_path, kill9, wait_for_stack):
    job = Job(pipeline, tmp_path)
    agent = job.agent()
    job.write(100)
    job.wait_for_progress(agent)
    kill9("broker")
    job.write(200)
    wait_for_stack()
    job.write(50)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(30) == 0
    job.end()
    assert job.stored()[:2] == (job.written, 0)
