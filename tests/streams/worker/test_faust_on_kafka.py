"""Faust and aiokafka, as pinned, on the real broker: what streams/worker/ relies on, with a trivial stage."""

import time

import numpy as np
import pytest
from confluent_kafka import Producer
from support.labs.stream_worker import PYTHON, TESTS, Child, Reader, apply_topics, publish, unique
from support.labs.windows import T0
from support.wait_limit import WAIT_S

from drumline.infra.kafka.config import producer_config
from drumline.schemas.batch import Batch
from drumline.schemas.epochs import write_epoch
from drumline.schemas.topics import Topic

pytestmark = pytest.mark.stack
PROCESSES = 12
EVERYTHING = [0, 1, 2, 3]
CHECKPOINTS = "checkpoints"


@pytest.fixture
def lab(clean_stack, environment_of, tmp_path):
    apply_topics(clean_stack)
    reader, children = Reader(clean_stack, Topic.KERNEL_FREQUENCY), []

    def worker(instance="", *arguments):
        data = tmp_path / unique("worker")
        command = [PYTHON, str(TESTS / "support/faust_probe.py"), *arguments]
        children.append(Child(environment_of(clean_stack), data, command, instance))
        return children[-1]

    yield Lab(clean_stack, reader, worker, children)
    for child in children:
        child.kill()
    reader.close()


class Lab:
    def __init__(self, stack, reader, worker, children):
        self.stack, self.reader, self.worker, self.children = stack, reader, worker, children
        self.run, self.sent = unique("run"), dict.fromkeys(range(PROCESSES), 0)

    def publish(self, rounds):
        batches = []
        for _ in range(rounds):
            for n in self.sent:
                rows = n + 1
                envelope = {"process_id": f"{self.run}/{n}", "rows": rows, "names": ["a"]}
                batches.append(Batch(Topic.KERNEL, envelope, {"start_ns": T0 + np.arange(rows)}))
                self.sent[n] += rows
        publish(self.stack, batches, lambda batch: batch.envelope["process_id"])

    def sums(self, batches):
        of_run = [b.envelope for b in batches if b.envelope["process_id"].startswith(self.run)]
        return {int(e["process_id"].split("/")[1]): e["late_rows"] for e in of_run}

    def wait_for_changelog(self, records):
        changelog = Reader(self.stack, f"{self.stack.stream.app_id}-probe-changelog")
        deadline = time.monotonic() + WAIT_S
        while changelog.end() < records:
            assert time.monotonic() < deadline, f"{changelog.topic} does not grow"
            time.sleep(0.05)
        changelog.close()

    def write_as_a_halted_worker(self):
        """Old state of every process, as a worker writes it that lost its partitions while it was halted."""
        topic = f"{self.stack.stream.app_id}-probe-changelog"
        reader, states = Reader(self.stack, topic, beginning=True), set()
        while (message := reader.consumer.poll(2.0)) is not None:
            if self.run.encode() in message.key():
                states.add((message.partition(), message.key()))
        reader.close()
        producer = Producer(producer_config(self.stack, "test"))
        for partition, key in states:
            old = b'{"offset": -1, "rows": 0}'
            producer.produce(topic, partition=partition, key=key, value=old, headers=[write_epoch(1)])
        assert producer.flush(30) == 0
        return len(states)

    def is_at_work(self):
        return any(child.process.poll() is None for child in self.children)

    def wait_for_exact_sums(self):
        """While a worker runs and results come."""
        try:
            self.reader.until(lambda batches: not self.is_at_work() or self.sums(batches) == self.sent)
            assert self.is_at_work(), "no worker runs"
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *(child.state() for child in self.children)])) from None
        time.sleep(1.5)  # anything counted twice would come after it
        assert self.sums(self.reader.until(lambda _: True)) == self.sent


def has(partitions):
    return lambda line: line["owned"] == partitions


def test_state_survives_kill_9_from_the_changelog_alone(lab):
    first = lab.worker()
    first.wait_for(has(EVERYTHING))
    lab.publish(20)
    lab.wait_for_changelog(20 * PROCESSES)  # results overtake it
    lab.publish(20)
    first.kill()  # some were applied and not committed, some are in flight
    lab.publish(5)
    second = lab.worker()
    # A first, empty recovery may be reported before the one that reads the changelog.
    second.wait_for(lambda line: line["owned"] == EVERYTHING and line["restored"] > 3)
    lab.publish(5)
    lab.wait_for_exact_sums()
    assert second.stop() == 0


@pytest.mark.long
def test_a_worker_joins_and_leaves_and_nothing_is_lost_or_doubled(lab):
    first = lab.worker("", CHECKPOINTS)
    first.wait_for(has(EVERYTHING))
    lab.publish(10)
    second = lab.worker("", CHECKPOINTS)
    owned = second.wait_for(lambda line: len(line["owned"]) == 2)["owned"]
    assert first.wait_for(lambda line: len(line["owned"]) == 2)["owned"] == [p for p in EVERYTHING if p not in owned]
    lab.publish(10)
    lab.wait_for_exact_sums()
    assert lab.write_as_a_halted_worker() == PROCESSES
    assert second.stop() == 0
    first.wait_for(lambda line: line["owned"] == EVERYTHING and line["fenced"] == PROCESSES)
    lab.publish(10)
    lab.wait_for_exact_sums()


def test_a_named_worker_that_was_killed_between_checkpoints_gets_its_partitions_back(lab):
    first = lab.worker("one", CHECKPOINTS)
    first.wait_for(has(EVERYTHING))
    lab.publish(10)
    lab.reader.until(lambda batches: len(lab.sums(batches)) > 3)
    first.kill()
    lab.publish(10)
    lab.worker("one", CHECKPOINTS).wait_for(has(EVERYTHING))
    lab.wait_for_exact_sums()
