"""Faust's configuration: credentials, one directory per worker, and the version that the recovery fix is for."""

import asyncio
import stat
from types import SimpleNamespace

import pytest
from aiokafka.errors import KafkaTimeoutError
from faust.types import TP
from pydantic import SecretStr

from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.settings import LocalSettings, Settings, StreamSettings
from drumline.schemas.topics import Topic
from drumline.streams.worker.faust_config import credentials, faust_settings
from drumline.streams.worker.faust_patches import recovery
from drumline.streams.worker.workdir import NameTaken, lock_working_directory


def settings(tmp_path, **kafka):
    return Settings(kafka=KafkaSettings(**kafka), local=LocalSettings(state=tmp_path), instance="w1")


def test_sasl_over_tls_reaches_faust_and_the_password_is_not_shown(tmp_path):
    secret = {"sasl_username": "me", "sasl_password": SecretStr("hush")}
    result = credentials(settings(tmp_path, security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-256", **secret))
    assert (result.protocol.value, result.mechanism.value) == ("SASL_SSL", "SCRAM-SHA-256")
    assert (result.username, result.password) == ("me", "hush")
    assert result.ssl_context.check_hostname
    assert "hush" not in repr(result)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT"])
def test_each_protocol_is_one_that_faust_uses(tmp_path, protocol):
    secret = {"sasl_username": "me", "sasl_password": SecretStr("hush")}
    assert credentials(settings(tmp_path, security_protocol=protocol, **secret)).protocol.value == protocol


def test_a_named_worker_is_a_static_member_with_a_private_directory(tmp_path):
    plain = settings(tmp_path, bootstrap="a:1, b:2")
    directory = lock_working_directory(plain)
    options = faust_settings(plain, directory.path, 6)
    assert options["broker"] == ["kafka://a:1", "kafka://b:2"]
    assert (options["consumer_group_instance_id"], options["topic_partitions"]) == ("w1", 6)
    assert options["broker_credentials"] is None
    assert options["datadir"] == str(directory.path)
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700


def test_two_workers_of_a_machine_with_one_name_are_refused_as_long_as_the_first_lives(tmp_path):
    plain = settings(tmp_path)
    first = lock_working_directory(plain)
    with pytest.raises(NameTaken, match="'w1' runs on this machine already; give each its own name"):
        lock_working_directory(plain)
    first.unlock()
    lock_working_directory(plain).unlock()


def test_a_name_may_be_taken_once_in_each_app(tmp_path):
    plain = settings(tmp_path)
    other = plain.model_copy(update={"stream": StreamSettings(app_id="other")})
    assert lock_working_directory(plain).path != lock_working_directory(other).path


def test_workers_without_a_name_have_a_directory_each(tmp_path):
    plain = Settings(local=LocalSettings(state=tmp_path))
    directories = [lock_working_directory(plain) for _ in range(3)]
    assert [directory.path.name for directory in directories] == ["unnamed@1", "unnamed@2", "unnamed@3"]
    directories[1].unlock()
    assert lock_working_directory(plain).path == directories[1].path


def test_another_faust_is_refused(monkeypatch):
    monkeypatch.setattr(recovery, "version", lambda name: "0.16.0")
    with pytest.raises(recovery.UnsupportedFaust, match=r"0\.15\.3 is needed"):
        recovery.check_faust_version()


class Consumer:
    """Faust's, with offsets committed."""

    def __init__(self):
        self.log = []
        self.committed = {TP("a", 0): 7, TP("a", 1): None, TP("b", 0): 0, TP("b", 1): -1, TP("s-changelog", 0): None}
        self.sought, self.stored, self.requested = {}, {}, []

    async def seek_to_committed(self):
        return self.committed

    async def earliest_offsets(self, *partitions):
        self.requested.append(set(partitions))
        if TP("leaderless", 0) in partitions:
            raise KafkaTimeoutError
        return {tp: 0 if tp.topic == "a" else 3 for tp in partitions}

    async def seek(self, partition, offset):
        self.sought[partition] = offset

    async def _commit(self, offsets):
        self.stored.update(offsets)
        self.committed.update(offsets)

    def stop_flow(self):
        self.log.append("stopped")

    def assignment(self):
        return set(self.committed)


def test_a_partition_without_a_committed_offset_is_read_from_its_beginning():
    """Faust seeks to committed offsets only; what a worker had fetched before its recovery was over was skipped."""
    consumer = Consumer()
    asyncio.run(recovery.seek_uncommitted(consumer, {"s-changelog"}, lambda tp: False, lambda *_: None))
    assert consumer.sought == {TP("a", 1): 0, TP("b", 0): 3, TP("b", 1): 3}
    assert consumer.stored == {}


def test_a_partition_of_another_topic_than_before_is_read_from_its_beginning():
    """Faust seeks once more, to what is committed: an offset of the former topic, which is committed over."""
    consumer = Consumer()
    asyncio.run(recovery.seek_uncommitted(consumer, {"s-changelog"}, lambda tp: tp.topic == "a", lambda *_: None))
    assert consumer.sought == {TP("a", 0): 0, TP("a", 1): 0, TP("b", 0): 3, TP("b", 1): 3}
    assert consumer.stored == {TP("a", 0): 0}


def seek(consumer, expired=lambda tp, offsets: None):
    asyncio.run(recovery.seek_uncommitted(consumer, {"s-changelog"}, lambda tp: False, expired))


def test_records_that_expired_behind_a_commit_are_reported_once():
    consumer, reported = Consumer(), []
    consumer.committed = {TP("c", 0): 1, TP("c", 1): 3, TP(Topic.TICK, 0): 1}
    seek(consumer, lambda *place: reported.append(place))
    seek(consumer, lambda *place: reported.append(place))
    assert reported == [(TP("c", 0), range(1, 3))]
    assert (consumer.stored, consumer.sought) == ({TP("c", 0): 3}, {})


def test_a_partition_without_a_leader_keeps_no_worker_from_the_others():
    consumer = Consumer()
    consumer.committed = {TP("leaderless", 0): 1, TP("a", 0): None}
    seek(consumer)
    assert consumer.sought == {TP("a", 0): 0}
    assert consumer.requested == [{TP("a", 0)}, {TP("leaderless", 0)}]


class Client:
    """aiokafka's consumer in Faust's thread, with one fetch to return."""

    def __init__(self):
        record = SimpleNamespace(offset=30), SimpleNamespace(offset=31)
        self.records = {
            TP("s-changelog", 0): list(record),
            TP("a", 0): [SimpleNamespace(offset=7)],
            TP("b", 9): list(record),
        }
        self.sought, self.called = {}, []

    async def call_thread(self, method, *arguments):
        self.called.append(method.__name__)
        return method(*arguments)

    async def _fetch_records(self, client, active, *, timeout):
        assert (client, active, timeout) == (self, set(), 1.0)
        return self.records

    def assignment(self):
        return {TP("s-changelog", 0), TP("s-changelog", 1), TP("a", 0)}

    def seek(self, partition, offset):
        self.sought[partition] = offset


@pytest.fixture
def guarded():
    """An app whose recovery is guarded; its consumer's thread is the client."""
    consumer = Consumer()
    consumer._thread = Client()

    async def completed(generation):
        consumer.log.append(f"resumed {generation}")

    async def seek(*arguments):
        consumer.log.append(f"sought {arguments}")

    steps = SimpleNamespace(on_recovery_completed=completed, _seek_offsets=seek)
    tables = SimpleNamespace(recovery=steps, changelog_topics={"s-changelog"}, changelog_queue=asyncio.Queue())
    app = SimpleNamespace(consumer=consumer, tables=tables, consumer_generation_id=5)

    async def holds_all():
        return app.holds_all

    app.holds_all = True
    recovery.guard_recovery(app, lambda tp: False, holds_all, lambda *_: None)
    return app


def test_nothing_flows_from_recoverys_seek_on(guarded):
    """A worker without partitions was never stopped when it is given some."""
    asyncio.run(guarded.tables.recovery._seek_offsets(guarded.consumer, set(), {}, "active"))
    assert [entry.split()[0] for entry in guarded.consumer.log] == ["stopped", "sought"]


def test_after_every_recovery_the_flow_is_stopped_before_anything_is_resumed(guarded):
    consumer = guarded.consumer
    for generation in 1, 2:
        consumer.sought.clear()
        asyncio.run(guarded.tables.recovery.on_recovery_completed(generation))
        assert consumer.sought == {TP("a", 1): 0, TP("b", 0): 3, TP("b", 1): 3}
    consumer.committed.clear()  # a worker that was given nothing
    asyncio.run(guarded.tables.recovery.on_recovery_completed(3))
    assert consumer.log == ["stopped", "resumed 1", "stopped", "resumed 2", "stopped", "resumed 3"]


def test_no_record_flows_while_another_writer_has_a_changelog(guarded):
    guarded.holds_all = False
    asyncio.run(guarded.tables.recovery.on_recovery_completed(1))
    assert guarded.consumer.log == ["stopped"]


def test_what_a_fetch_took_while_records_flow_is_passed_on(guarded):
    client = guarded.consumer._thread
    guarded.consumer.flow_active = True
    assert asyncio.run(client._fetch_records(client, set(), timeout=1.0)) is client.records
    assert client.sought == {}
