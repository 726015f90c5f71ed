"""`drumline stream` on a real broker: the whole worker over a recorded job, killed, doubled, drained."""

import json
import os
import re
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.labs.stream_worker import PYTHON, Child, Reader, apply_topics, publish, unique
from support.labs.windows import T0, S, kernels
from support.wait_limit import WAIT_S

from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.kafka.config import client_config, producer_config
from drumline.infra.kafka.drain import wait_drained
from drumline.infra.kafka.signing import signer
from drumline.infra.kafka.topic_admin import TopicsAdmin
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic, dlq

pytestmark = pytest.mark.stack
RECORDING = Path(__file__).parents[3] / "lab" / "demo" / "ddp-gpu-bound"
COMMAND = [PYTHON, "-m", "drumline.cli.app", "stream"]
RAW = {Topic.KERNEL: (Topic.KERNEL_FREQUENCY, "launches"), Topic.MEMCPY: (Topic.MEMCPY_BANDWIDTH, "copies")}
RESULTS = (Topic.KERNEL_FREQUENCY, Topic.MEMCPY_BANDWIDTH, Topic.STRAGGLER)


class Bench:
    """A stack with empty topics, and workers on it."""

    def __init__(self, settings, environment, data):
        self.settings, self.children = settings.model_copy(deep=True), []
        self.settings.stream.data_dir = self.data = data
        self._environment = environment

    def worker(self, instance="one", command=COMMAND):
        self.children.append(Child(self._environment, self.data, command, instance))
        return self.children[-1]

    def statuses(self):
        return [json.loads(path.read_text()) for path in self.data.glob("*/*/status.json")]

    def drain(self):
        result = wait_drained(self.settings, 90)
        assert result, (result.reason, [child.log.read_text()[-2000:] for child in self.children])


@pytest.fixture
def bench(clean_stack, environment_of, tmp_path):
    apply_topics(clean_stack)
    bench = Bench(clean_stack, environment_of(clean_stack), tmp_path)
    yield bench
    for child in bench.children:
        child.kill()


#: Topics are looked at every second instead of every 30.
WATCHFUL = """
import drumline.streams.worker.checks.topic_watch as w
from drumline.cli.main import main
w.POLL_S = 1.0
main()
"""


def job(run):
    """The recorded job as it is published: batches in order with their keys, `run` its own."""
    return list(RecordedJob(RECORDING, job=run).batches(run=run))


def outcome(stack, run):
    """Natural key -> its last revision, of all results of a run."""
    results = {}
    for topic in RESULTS:
        for batch in read(stack, topic, run):
            e = batch.envelope
            key = (topic, e["process_id"], e["window_start_ns"], e.get("first_step", 0))
            results[key] = {name: values.tolist() for name, values in batch.columns.items()} | {
                "words": [e.get("names"), e.get("causes"), e.get("details"), e.get("states")]
            }
    return results


def read(stack, topic, run):
    return [b for b in Reader(stack, topic, beginning=True).everything() if b.envelope["run"] == run]


def feed(bench, outgoing):
    keys = {id(o.batch): o.key for o in outgoing}
    publish(bench.settings, [o.batch for o in outgoing], lambda batch: keys[id(batch)])


def test_kill_9_in_the_middle_and_doubled_batches_change_no_result(bench):
    reference, rough = unique("calm"), unique("rough")
    worker = bench.worker()
    feed(bench, job(reference))
    bench.drain()

    outgoing = job(rough)
    thirds = len(outgoing) // 3
    feed(bench, outgoing[:thirds])
    time.sleep(0.3)
    worker.kill()
    feed(bench, outgoing[thirds // 2 : 2 * thirds])  # the first half of it came before
    bench.worker()
    time.sleep(2.5)
    bench.children[-1].kill()
    feed(bench, outgoing[2 * thirds :])
    bench.worker()
    bench.drain()

    expected, batches = outcome(bench.settings, reference), outcome(bench.settings, rough)
    assert comparable(expected) == comparable(batches)
    assert len(batches) > 30
    for topic, (result, label) in RAW.items():
        rows, late, windows = Counter(), Counter(), {}
        for o in outgoing:
            if o.batch.topic == topic:
                rows[o.batch.envelope["process_id"]] += o.batch.rows
        for batch in read(bench.settings, result, rough):
            e = batch.envelope
            windows[(e["process_id"], e["window_start_ns"])] = int(batch.columns[label].sum())
            late[e["process_id"]] = max(late[e["process_id"]], e["late_rows"])
        for (process, start), count in windows.items():
            if start % round(bench.settings.stream.window_s * S) == 0:
                rows[process] -= count
        assert rows == late


def comparable(results):
    """Process ids derive from the run, so results are compared without them."""
    return sorted(((str(topic), start, step), str(value)) for (topic, _, start, step), value in results.items())


def test_a_poisoned_record_becomes_a_dead_letter_and_the_worker_goes_on(bench):
    run = unique("poison")
    dead_letters = Reader(bench.settings, dlq(Topic.KERNEL))
    producer = Producer(producer_config(bench.settings, "test"))
    producer.produce(Topic.KERNEL, key=b"poisoned", value=b"\x00not a batch")
    assert producer.flush(10) == 0
    bench.worker()
    # Twice the same, and another one under the same process and sequence, which counts too.
    same, end = [kernels([(1, 1, name)], run=run) for name in ("k", "k", "other")], kernels([], watermark=11, run=run)
    end.envelope["sequence"] = 1
    publish(bench.settings, [*same, end], lambda batch: b"p")

    def launches(batches):
        first = [b for b in batches if b.envelope["run"] == run and b.envelope["window_start_ns"] == T0]
        return [dict(zip(b.envelope["names"], b.columns["launches"].tolist(), strict=True)) for b in first]

    windows = Reader(bench.settings, Topic.KERNEL_FREQUENCY, beginning=True)
    windows.until(lambda batches: launches(batches) == [{"k": 1, "other": 1}])
    headers = dead_letters.raw(
        lambda message: message.key() == b"poisoned" and by(message) == bench.settings.stream.app_id
    )
    assert headers["drumline.origin.topic"] == b"gpu.kernel.v1"
    assert headers["drumline.error.code"] == b"UnknownSchema"
    assert b"not a batch" not in b"".join(headers.values())


def test_poison_larger_than_any_record_of_drumline_is_buried_and_the_worker_goes_on(bench):
    """Compressed it fits where it came from; its bytes as they were are many times larger."""
    dead_letters = Reader(bench.settings, dlq(Topic.KERNEL))
    producer = Producer({**producer_config(bench.settings, "test"), "message.max.bytes": 20_000_000})
    producer.produce(Topic.KERNEL, key=b"poisoned", value=bytes([1]) * 10_000_000)
    assert producer.flush(20) == 0
    worker = bench.worker()
    headers = dead_letters.raw(lambda message: message.key() == b"poisoned" and len(message.value()) == 10_000_000)
    assert headers["drumline.error.code"] == b"BadFrame"
    bomb = Producer({
        "bootstrap.servers": bench.settings.bootstrap, "compression.type": "lz4", "linger.ms": 5_000,
        "message.max.bytes": 900_000_000, "batch.size": 900_000_000, "queue.buffering.max.kbytes": 900_000,
    })  # fmt: skip
    for _ in range(20):
        bomb.produce(Topic.KERNEL, key=b"poisoned", value=bytes(10_000_000), partition=0)
    assert bomb.flush(60) == 0
    headers = dead_letters.raw(lambda message: not message.key() and message.value() is None)
    assert headers["drumline.origin.topic"] == b"gpu.kernel.v1"
    assert worker.process.poll() is None
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{worker.process.pid}/status").read_text())
    assert int(peak) < 350_000
    bench.drain()


@pytest.mark.long
def test_rows_of_a_job_come_from_its_tenant_only_and_dead_letters_keep_their_signature(bench, environment_of, tmp_path):
    run, key = unique("signed"), "ab" * 32
    tenants = tmp_path / "tenants.json"
    tenants.write_text(json.dumps({"a": {"keys": [key], "jobs": ["a/*"], "hosts": ["*"]}}))
    bench.settings.kafka.tenants_file = tenants
    bench._environment = environment_of(bench.settings)
    sign = signer(KafkaSettings(tenant="a", tenant_key=key))
    dead_letters = Reader(bench.settings, dlq(Topic.KERNEL))
    producer = Producer(producer_config(bench.settings, "test"))
    for name, signed in (("a/train", True), ("b/train", True), ("a/train", False)):
        batch = kernels([(1, 1, "k")], watermark=11, run=f"{run} {name} {signed}")
        batch.envelope["job"] = name
        key_bytes, value = f"{name} {signed}".encode(), Codec().encode(batch)
        more = sign(Topic.KERNEL, key_bytes, value) if signed else {}
        producer.produce(Topic.KERNEL, key=key_bytes, value=value, **more)
    assert producer.flush(10) == 0
    bench.worker()
    rejected = {}
    for _ in range(2):
        headers = dead_letters.raw(lambda message: message.key().decode() not in rejected)
        rejected[headers["drumline.error.code"].decode()] = headers
    assert set(rejected) == {"ForeignJob", "Unsigned"}
    assert rejected["ForeignJob"]["tenant.name"] == b"a"
    windows = Reader(bench.settings, Topic.KERNEL_FREQUENCY, beginning=True)
    seen = windows.until(lambda batches: any(run in b.envelope["run"] for b in batches))
    assert {b.envelope["run"] for b in seen} == {f"{run} a/train True"}


def by(message):
    return dict(message.headers())["drumline.error.by"].decode()


def test_it_goes_on_beside_a_namesake_and_while_its_disk_is_full_and_ends_cleanly(bench):
    worker = bench.worker()
    bench.drain()
    namesake = bench.worker()
    assert namesake.process.wait(WAIT_S) == 6
    assert "a worker named 'one' runs on this machine already" in namesake.log.read_text()
    draft = bench.data / bench.settings.stream.app_id / "one" / "status.new"
    draft.symlink_to("/dev/full")
    while "status file cannot be written" not in worker.log.read_text():
        assert worker.process.poll() is None
        time.sleep(0.1)
    time.sleep(2)
    draft.unlink()
    bench.drain()
    assert worker.log.read_text().count("status file cannot be written") == 1
    assert worker.stop() == 0, "an unclean stop, after 20 s, is a failure"
    assert "Traceback" not in worker.log.read_text()


def test_without_a_broker_it_gives_a_remedy():
    environment = {**os.environ, "DRUMLINE_KAFKA__BOOTSTRAP": "127.0.0.1:9"}
    ended = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode == 1
    assert "drumline up" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_topics_it_gives_a_remedy(clean_stack, environment_of):
    ended = subprocess.run(COMMAND, env=environment_of(clean_stack), capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode == 2
    assert "drumline topics apply" in ended.stderr
    assert "gpu.kernel.v1" in ended.stderr


def test_state_of_another_version_ends_the_worker_with_a_message(bench):
    topic = f"{bench.settings.stream.app_id}-kernel-frequency-changelog"
    worker = bench.worker()
    bench.drain()  # the changelog topics exist now
    worker.kill()
    producer = Producer(producer_config(bench.settings, "test"))
    producer.produce(topic, key=b"0000|p|process|run", value=b"of another version", partition=0)
    assert producer.flush(30) == 0
    worker = bench.worker()
    assert worker.process.wait(WAIT_S) == 1
    assert "DRUMLINE_STREAM__APP_ID" in worker.log.read_text()


def test_a_recreated_topic_ends_the_worker_and_the_next_one_counts_all_of_it(bench):
    settings, run, topic = bench.settings, unique("anew"), Topic.KERNEL.value
    worker = bench.worker("", [PYTHON, "-c", WATCHFUL, "stream"])
    batches = [kernels([(second, 1, "k")], watermark=20 if second == 8 else 0, run=run) for second in range(1, 9)]
    for sequence, batch in enumerate(batches):
        batch.envelope["sequence"] = sequence
    publish(settings, batches[:5], lambda batch: b"p")
    until(lambda: [s for s in bench.statuses() if s["handled"] == 5 and s["unsettled"] == 0])
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    admin.delete_topics([topic])[topic].result()
    time.sleep(1)
    apply_topics(settings)
    assert worker.process.wait(WAIT_S) == 1
    assert "topic gpu.kernel.v1 was recreated" in worker.log.read_text()
    assert "Traceback" not in worker.log.read_text()
    publish(settings, batches[5:], lambda batch: b"p")  # offsets that the state has seen, of the other topic
    late = [TopicPartition(topic, number, 2) for number in range(settings.kafka.partitions)]
    consumer = Consumer(client_config(settings, "test") | {"group.id": settings.stream.app_id})
    consumer.commit(offsets=late, asynchronous=False)  # as by a worker that commits late what it had read of the other
    consumer.close()
    bench.worker()
    windows = Reader(settings, Topic.KERNEL_FREQUENCY, beginning=True)
    windows.until(lambda batches: [8] in [b.columns["launches"].tolist() for b in batches if b.envelope["run"] == run])


#: The worker's wall clock is wrong by {} hours.
SKEWED = """
import time
wall, wall_ns = time.time, time.time_ns
time.time = lambda: wall() + {0} * 3600
time.time_ns = lambda: wall_ns() + {0} * 3600 * 10**9
from drumline.cli.main import main
main()
"""


@pytest.mark.long
@pytest.mark.parametrize("hours", [-2, 2])
def test_a_worker_whose_clock_is_hours_wrong_counts_every_row_and_reports_it(bench, hours):
    run, settings = unique("skewed"), bench.settings
    log = f"{settings.stream.app_id}-kernel-frequency-changelog"
    create_changelog(settings, log)  # as a person may
    worker = bench.worker(command=[PYTHON, "-c", SKEWED.format(hours), "stream"])
    batches = []
    for sequence in range(6):
        batch = kernels([(0, 1, "k")], run=run)
        now = time.time_ns()
        batch.columns["start_ns"][:] = now - (60 - 10 * sequence) * S
        batch.envelope |= {"sequence": sequence, "sent_ns": now, "watermark_ns": int(batch.columns["start_ns"][0])}
        batches.append(batch)
    publish(settings, batches, lambda batch: b"p")
    windows = Reader(settings, Topic.KERNEL_FREQUENCY, beginning=True)
    of_run = windows.until(lambda read: len([b for b in read if b.envelope["run"] == run]) > 8)
    assert {b.envelope["late_rows"] for b in of_run if b.envelope["run"] == run} == {0}
    assert worker.process.poll() is None
    assert "this host's clock is wrong, or the broker's" in worker.log.read_text()
    until(lambda: [round((s["clock_skew_s"] or 0) / 3600) for s in bench.statuses()] == [hours])
    assert TopicsAdmin(settings).existing([log])[log].config["message.timestamp.type"] == "LogAppendTime"


def create_changelog(settings, name):
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    topic = NewTopic(name, settings.kafka.partitions, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([topic])[name].result()


def until(true, timeout_s=WAIT_S):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)
