"""A Kafka that loses records which are stored: after a power loss (it does not fsync) or an unclean election."""

import shutil
import threading
import time
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.labs.sink import Pipeline, any_batch, process_id
from support.wait_limit import WAIT_S

from drumline.infra.kafka.config import producer_config
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.infra.localstack.kafka.broker import client_port
from drumline.infra.localstack.processes import own_processes
from drumline.schemas.topics import Topic
from drumline.sinks.errors import LostRecords

pytestmark = pytest.mark.stack
KERNELS = "SELECT process_id, count() AS n FROM {db}.kernels GROUP BY 1 ORDER BY 1"


def batches(count, process=0, first=0):
    return [any_batch(Topic.KERNEL, 10, process_id(process), first + i, process) for i in range(count)]


def stored(pipeline):
    return {row["process_id"]: row["n"] for row in pipeline.query(KERNELS)}


def kinds(pipeline):
    return {finding.kind for finding in pipeline.audit().findings}


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def rewrite_ledger(pipeline, sql):
    """Let the ledger have other records than Kafka, as if Kafka had lost those."""
    pipeline.client().command(
        f"ALTER TABLE {pipeline.settings.clickhouse.database}.ledger {sql}", settings={"mutations_sync": 2}
    )


def test_new_records_at_offsets_of_stored_ones_stop_the_sink_until_the_loss_is_accepted(pipeline):
    pipeline.publish(*batches(8))
    pipeline.drain(8)
    rewrite_ledger(
        pipeline,
        f"UPDATE published = published - INTERVAL 1 HOUR, process_id = '{process_id(9)}' WHERE offset >= 5",
    )
    assert "tail_lost" in kinds(pipeline)
    with pytest.raises(LostRecords, match=r"gpu.kernel.v1 partition \d: .* offset 7, Kafka's log ends at 8 \(the"):
        pipeline.drain(1)
    sink = pipeline.sink(lambda s: s.counts.records >= 3, accept_loss=True)
    sink.run()
    assert (sink.counts.records, sink.counts.rows) == (3, 30)
    logs = pipeline.query(
        "SELECT splitByChar('~', topic_id)[2] AS log, groupArray(offset) AS o FROM {db}.ledger GROUP BY 1"
    )
    assert {row["log"]: sorted(row["o"]) for row in logs} == {"": list(range(8)), "5": [5, 6, 7]}
    pipeline.publish(*batches(2, first=8))
    assert pipeline.drain(2).counts.rows == 20
    assert "tail_lost" not in kinds(pipeline)


def test_a_ledger_beyond_the_end_of_kafkas_log_stops_the_sink(pipeline):
    pipeline.publish(*batches(4))
    pipeline.drain(4)
    pipeline.client().command(
        "INSERT INTO {db}.ledger SELECT * REPLACE (offset + 4 AS offset) FROM {db}.ledger".replace(
            "{db}", pipeline.settings.clickhouse.database
        )
    )
    assert "tail_lost" in kinds(pipeline)
    with pytest.raises(LostRecords, match=r"up to offset 7, Kafka's log ends at 4"):
        pipeline.drain(1)
    with pytest.raises(LostRecords, match=r"up to offset 7, Kafka's log ends at 4"):
        pipeline.drain(1)


def continue_after_loss(pipeline, rows, seconds):
    """The audit names the loss of the stopped sink; with --accept-loss one stores the rows of process 1 beside it."""
    pipeline.sinks.clear()
    assert stored(pipeline) == {process_id(0): 400}
    assert "tail_lost" in kinds(pipeline)
    pipeline.start("--instance", "1", "--topic", Topic.KERNEL, "--accept-loss")
    until = time.monotonic() + seconds
    while stored(pipeline).get(process_id(1)) != rows:
        assert time.monotonic() < until
        time.sleep(0.2)
    pipeline.stop()
    assert stored(pipeline) == {process_id(0): 400, process_id(1): rows}
    assert kinds(pipeline) == set()


@pytest.mark.long  # three starts of a broker
def test_records_after_a_power_loss_are_not_skipped(private, jars, environment_of):
    """The whole of Kafka's folder is an older one, so even its leader epochs are assigned again."""
    local_stack.up(private)
    pipeline = Pipeline(private, environment_of(private))
    kafka, earlier = private.local.state / "kafka", private.local.state / "kafka-earlier"
    pipeline.publish(*batches(20))
    pipeline.drain(20)
    local_stack.down(private)
    shutil.copytree(kafka, earlier)
    local_stack.up(private)
    pipeline = Pipeline(private, environment_of(private))
    pipeline.publish(*batches(20, first=20))
    pipeline.drain(20)
    local_stack.down(private)
    shutil.rmtree(kafka)
    shutil.copytree(earlier, kafka)
    local_stack.up(private)
    pipeline = Pipeline(private, environment_of(private))
    pipeline.publish(*batches(15, process=1), key=process_id(0))
    with pytest.raises(LostRecords, match=r"up to offset 39, Kafka's log ends at 35"):
        pipeline.drain(1)
    pipeline.publish(*batches(15, process=1, first=15), key=process_id(0))
    with pytest.raises(LostRecords, match=r"up to offset 39, Kafka's log ends at 50 \(the record at offset 39"):
        pipeline.drain(1)
    assert pipeline.start("--instance", "1", "--topic", Topic.KERNEL).wait(WAIT_S) == 4
    continue_after_loss(pipeline, 300, 60)


@pytest.mark.long  # three starts of a broker
def test_a_running_sink_notices_that_kafka_lost_stored_records(private, jars, environment_of):
    """Only the topic's log is an older one, as after a power loss: leader epochs go on."""
    local_stack.up(private)
    pipeline = Pipeline(private, environment_of(private))
    data, earlier = private.local.state / "kafka" / "data", private.local.state / "earlier"
    pipeline.publish(*batches(20))
    pipeline.drain(20)
    local_stack.down(private)
    [log] = [folder for folder in data.glob(f"{Topic.KERNEL}-*") if (folder / f"{0:020}.log").stat().st_size]
    shutil.copytree(log, earlier)
    local_stack.up(private)
    raised, until = [], time.monotonic() + 200

    def run():
        try:
            sink.run()
        except LostRecords as error:
            raised.append(str(error))

    pipeline = Pipeline(private, environment_of(private))
    sink = pipeline.sink(lambda _: time.monotonic() > until)
    thread = threading.Thread(target=run)
    thread.start()
    pipeline.publish(*batches(20, first=20))
    while sink.counts.records < 20:
        assert time.monotonic() < until
        time.sleep(0.2)
    local_stack.down(private)
    shutil.rmtree(log)
    shutil.copytree(earlier, log)
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    local_stack.up(private)
    thread.join()
    assert f"{Topic.KERNEL} partition {log.name[-1]}: " in raised[0]
    assert "offset 39, Kafka's log ends at 20" in raised[0]


@pytest.fixture
def three(tmp_path, jars):
    """Three brokers. One that is halted does not hear SIGTERM."""
    settings = ephemeral_settings(tmp_path / "state", jars.parent, brokers=3)
    local_stack.up(settings, wait=False)
    local_stack.wait_for_stack(settings, 300)
    yield settings
    for processes in own_processes(settings).values():
        for process in processes:
            process.resume()
    local_stack.down(settings)


@pytest.mark.long  # three brokers, elections
@pytest.mark.timeout(900)
def test_an_unclean_election_that_loses_stored_records_stops_the_sink_and_the_audit_names_it(three, environment_of):
    """Attack: the follower of two replicas misses 20 acknowledged records and becomes the leader."""
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    places = [[1, 2]] * three.kafka.partitions
    topic = NewTopic(Topic.KERNEL, len(places), replica_assignment=places, config=config)
    admin.create_topics([topic])[Topic.KERNEL].result(60)

    def partitions():
        """As the third broker has them, which is never halted; a new client knows no other."""
        third = AdminClient({"bootstrap.servers": f"127.0.0.1:{client_port(three, 3)}", "log_level": 0})
        with suppress(KafkaException):
            return list(third.list_topics(Topic.KERNEL, 10).topics[Topic.KERNEL].partitions.values())
        return []

    def wait_for(leader, *in_sync):
        until = time.monotonic() + 200
        while {(p.leader, *sorted(p.isrs)) for p in partitions()} != {(leader, *in_sync)}:
            assert time.monotonic() < until, [(p.leader, p.isrs) for p in partitions()]
            time.sleep(0.5)

    def publish(*outgoing):
        for batch in outgoing:
            pipeline.raw(Topic.KERNEL, process_id(0), pipeline.codec.encode(batch), flush=False)
        assert pipeline.producer.flush(200) == 0

    def broker(name):
        [process] = own_processes(three)[name]
        return process

    wait_for(1, 1, 2)
    pipeline = Pipeline(three, environment_of(three))
    pipeline.publish(*batches(20))
    pipeline.drain(20)
    running = pipeline.start("--instance", "1", "--topic", Topic.KERNEL)
    broker("broker2").suspend()
    wait_for(1, 1)
    publish(*batches(20, first=20))
    until = time.monotonic() + 100
    while stored(pipeline) != {process_id(0): 400}:
        assert time.monotonic() < until
        time.sleep(0.5)

    broker("broker").suspend()
    broker("broker2").resume()
    wait_for(2, 2)
    pipeline.producer = Producer(producer_config(three, "another"))  # the log has lost the first one's sequence
    publish(*batches(15, process=1))
    assert running.wait(200) == 4, "the log ends before what is stored"
    publish(*batches(20, process=1, first=15))
    assert pipeline.start("--instance", "1", "--topic", Topic.KERNEL).wait(200) == 4, "and behind it"
    continue_after_loss(pipeline, 350, 200)
