"""Two servers without a common Keeper: each has a sink group, and commands go over both or to the better one."""

import time

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from support import migrated_database
from support.labs.sink import Pipeline, any_batch, process_id
from support.second_engine import second_engine

from drumline.infra.clickhouse import replicas
from drumline.infra.clickhouse.client import TransientError, command, connect, rows
from drumline.infra.clickhouse.replicas import Lack, TopicState, missing
from drumline.infra.config.clickhouse_settings import ClickHouseSettings, RetentionSettings
from drumline.infra.config.replica_settings import NoSuchReplica, of_each, of_replica
from drumline.infra.config.settings import Settings
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks.audit.audit import audit
from drumline.sinks.audit.compare import contents, differences
from drumline.sinks.audit.kafka_side import KafkaFacts
from drumline.sinks.audit.queries import Queries
from drumline.sinks.backfill import Backfill, run
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.dead_letters import DeadLetterProducer, RejectedRows
from drumline.sinks.sink import Sink
from drumline.sinks.tables.tables import table


def test_a_replica_has_an_address_and_a_sink_group_of_its_own():
    given = Settings(clickhouse=ClickHouseSettings(url="http://a:1", replicas={"b": "http://b:2"}))
    assert {name: (replica.clickhouse_url, replica.sink.group) for name, replica in of_each(given).items()} == {
        "primary": ("http://a:1", "drumline-sink"),
        "b": ("http://b:2", "drumline-sink-b"),
    }
    with pytest.raises(NoSuchReplica, match=r"'c'; there are primary, b \(DRUMLINE_CLICKHOUSE__REPLICAS\)"):
        of_replica(given, "c")


@pytest.mark.parametrize("wrong", [{"primary": "http://b:1"}, {"B": "http://b:1"}, {"b": "b:1"}, {"b": ""}])
def test_names_and_addresses_of_replicas_are_checked(wrong):
    with pytest.raises(ValueError, match="DRUMLINE_CLICKHOUSE__REPLICAS"):
        ClickHouseSettings(replicas=wrong)


@pytest.mark.parametrize(
    ("url", "replicas"),
    [
        ("http://a:1", {"b": "http://a:1/"}),
        ("http://a:1", {"b": "http://b:2", "c": "http://b:2"}),
        ("http://A.x:8123", {"b": " http://a.X./"}),
        ("https://a", {"b": "https://a:8443/x"}),
        ("http://localhost:1", {"b": "http://127.0.0.1:1"}),
    ],
)
def test_no_server_is_filled_by_two_groups_however_its_address_is_spelt(url, replicas):
    with pytest.raises(ValueError, match="REPLICAS names a server twice, or the primary"):
        ClickHouseSettings(url=url, replicas=replicas)
    assert ClickHouseSettings(url="http://a", replicas={"b": "http://a:9000", "c": "https://a"}).replicas


def test_a_replica_lacks_what_the_fullest_one_has_topic_by_topic():
    counted = {
        "primary": {"k": TopicState(10, 500.0), "s": TopicState(2, 100.0)},
        "b": {"k": TopicState(7, 480.0), "s": TopicState(3, 100.0)},
        "c": {"k": TopicState(10, 400.0), "s": TopicState(3, 100.0)},
        "d": {},
    }
    lacks = [Lack(1, 0.0), Lack(3, 0.0), Lack(0, 100.0), Lack(13, 500.0)]
    assert [missing(counted[name], counted) for name in counted] == lacks
    assert sorted(lacks)[0] == Lack(0, 100.0), "late is better than incomplete"


@pytest.fixture(scope="module")
def second(stack, tmp_path_factory):
    with second_engine(stack, tmp_path_factory.mktemp("second")) as engine:
        yield engine


class Replicas:
    """The stack's engine and the second one, with topics and tables of one test, and their sinks in this process."""

    def __init__(self, settings):
        self.settings, self.replicas = settings, of_each(settings)
        self.pipeline = Pipeline(self.replicas["primary"], {})
        migrated_database.create(self.replicas["b"])
        self.clients = {name: connect(config) for name, config in self.replicas.items()}

    def drain(self, name, records):
        """Run a replica's sink until it has dealt with so many records."""
        config = self.replicas[name]
        config.sink.flush_s = config.sink.bulk_flush_s = 0.05
        sender = DeadLetterProducer(lambda: self.pipeline.producer)
        dead_letters = sender if name == "primary" else RejectedRows(sender)
        sink = Sink(
            config, SinkConsumer(config, [Topic.KERNEL, Topic.DEVICE]), dead_letters, lambda: connect(config), Codec(),
            stopping=lambda: sink.counts.records >= records,
        )  # fmt: skip
        sink.run()

    def rows(self, name, sql):
        return rows(self.clients[name], sql.replace("{db}", self.settings.clickhouse.database))

    def command(self, name, sql):
        sql = sql.replace("{db}", self.settings.clickhouse.database)
        command(self.clients[name], sql, settings={"mutations_sync": 2})

    def audit(self, name):
        facts = KafkaFacts(self.replicas[name])
        try:
            return audit(facts, Queries(self.clients[name], self.replicas[name]))
        finally:
            facts.close()

    def differences(self):
        server, now_s = self.settings.clickhouse, time.time()
        of_each = {name: contents(c, server.database, server.retention, now_s) for name, c in self.clients.items()}
        return differences(of_each)

    def backfill(self):
        """From the primary to b."""
        facts = KafkaFacts(self.replicas["b"])
        try:
            partitions = facts.partitions([Topic.KERNEL, Topic.DEVICE])
        finally:
            facts.close()
        server = self.settings.clickhouse
        return Backfill(
            self.clients["primary"], self.clients["b"], server.database, partitions, server.retention, time.time()
        )


@pytest.fixture
def two(clean_stack, second, monkeypatch):
    monkeypatch.setattr(replicas, "_compared", {})
    server = second.both.clickhouse.model_copy(update={"database": clean_stack.clickhouse.database})
    settings = clean_stack.model_copy(update={"clickhouse": server})
    created = Replicas(settings)
    yield created
    created.pipeline.stop()
    created.command("b", "DROP DATABASE IF EXISTS {db} SYNC")


def batches(count, first=0):
    return [any_batch(topic, 10, process_id(0), first + i, 0) for topic in (Topic.KERNEL, Topic.DEVICE)
            for i in range(count)]  # fmt: skip


@pytest.mark.stack
def test_both_have_equal_rows_and_dead_letters_are_sent_once_and_a_difference_is_named(two):
    two.pipeline.publish(*batches(4))
    two.pipeline.raw(Topic.KERNEL, "k", b"garbage")
    for name in two.replicas:
        two.drain(name, 9)
    assert [two.audit(name).clean for name in two.replicas] == [True, True]
    assert two.differences() == []
    assert len(two.pipeline.dead_letters(Topic.KERNEL, 2, timeout_s=3)) == 1
    two.command("b", "ALTER TABLE {db}.device_samples UPDATE power_mw = NULL WHERE _row = 3")
    assert [difference.text() for difference in two.differences()] == [
        "device_samples job run: primary 40, b 40 rows of other content"
    ]


@pytest.mark.stack
def test_rows_that_only_a_replica_rejects_become_its_dead_letter(two):
    two.command("b", "ALTER TABLE {db}.device_samples ADD CONSTRAINT none CHECK _row < 3")
    two.pipeline.publish(any_batch(Topic.DEVICE, 10, process_id(0), 0, 0))
    for name in two.replicas:
        two.drain(name, 1)
    assert len(two.pipeline.dead_letters(Topic.DEVICE, 1)) == 1
    assert [difference.table for difference in two.differences()].count("device_samples") == 1


@pytest.mark.stack
def test_rows_that_retention_may_have_removed_are_not_compared(two):
    insert = (
        "INSERT INTO {db}.steps_per_second (job, run, second, steps) "
        "SELECT 'j', 'r', now() - toIntervalDay(365) + {s}, 1"
    )
    two.command("b", insert.replace("{s}", "5400"))
    assert two.differences() == []
    two.command("b", insert.replace("{s}", "3 * 3600 + 60"))
    assert [difference.table for difference in two.differences()] == ["steps_per_second"]


@pytest.mark.stack
def test_readers_ask_the_one_that_answers_and_lacks_nothing(two, caplog):
    """Both databases are empty at first; `b` then has more."""
    two.command(
        "b",
        "INSERT INTO {db}.records_per_minute (job, run, topic, minute, records, last_published) "
        "SELECT 'j', 'r', 't', toStartOfMinute(now() - 600), 5, now64(3) - 600",
    )
    newest = "SELECT sum(records) AS n FROM {db}.records_per_minute".replace("{db}", two.settings.clickhouse.database)

    def read(**moved):
        server = two.settings.clickhouse.model_copy(update=moved)
        config = two.settings.model_copy(update={"clickhouse": server})
        return rows(connect(config, reader=True, database=server.database), newest)[0]["n"]

    states = [
        replicas._state(two.clients["b"], two.settings.clickhouse.database, int(time.time()) - s) for s in (0, 600)
    ]
    assert [state["t"].records for state in states] == [5, 0], "by the reader's clock"
    assert read() == 5
    assert "replica primary at" in caplog.text
    assert "it lacks 5 records" in caplog.text
    assert read(replicas={"b": "http://127.0.0.1:1"}) == 0, "the one that answers"
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:2"):
        read(url="http://127.0.0.1:2", replicas={"b": "http://127.0.0.1:1"})


@pytest.mark.stack
def test_what_kafka_has_no_more_is_copied_once_and_both_are_equal(two):
    two.pipeline.publish(*batches(6))
    two.drain("primary", 12)
    places = two.rows("primary", "SELECT topic, partition, max(offset) AS o FROM {db}.ledger GROUP BY topic, partition")
    removed = [TopicPartition(row["topic"], row["partition"], row["o"]) for row in places]
    admin = AdminClient({"bootstrap.servers": two.settings.bootstrap})
    for done in admin.delete_records(removed).values():
        done.result(30)
    two.pipeline.publish(*batches(1, first=6))
    two.drain("primary", 2)
    left = len(places) + 2  # of each partition the last record before, and the new ones
    two.drain("b", left)
    assert {difference.table for difference in two.differences()} >= {"kernels", "ledger", "kernels_per_minute"}
    copied = run(two.backfill())
    assert (copied.records, copied.rows) == (14 - left, 10 * (14 - left))
    assert [two.audit(name).findings for name in two.replicas] == [[], []]
    assert two.differences() == []
    assert list(two.backfill().missing()) == []


@pytest.mark.stack
def test_late_rows_are_copied_and_rollups_of_expired_ones(two):
    """Two ranks of one run: both happened 20 days ago, rank 1 arrived now, rank 0 then. Others came a little late."""
    hour = 3_600 * 10**9
    for number, ago in enumerate((480 * hour, 480 * hour, 175 * hour)):
        batch = any_batch(Topic.KERNEL, 50, process_id(number), 0, number)
        batch.envelope["base_time_ns"] -= ago
        batch.columns["start_ns"] = batch.columns["start_ns"] - ago
        two.pipeline.publish(batch)
    two.drain("primary", 3)
    for name in ("kernels", "kernels_per_minute", "ranks_per_second"):
        clock = "published" if name == "kernels" else "last_published"
        two.command("primary", f"ALTER TABLE {{db}}.{name} UPDATE {clock} = {clock} - INTERVAL 20 DAY WHERE rank = 0")
    two.command("primary", "ALTER TABLE {db}.ledger UPDATE published = published - INTERVAL 20 DAY WHERE rank = 0")
    two.command("primary", "ALTER TABLE {db}.kernels DELETE WHERE rank = 0")
    places = two.rows("primary", "SELECT topic, partition, max(offset) AS o FROM {db}.ledger GROUP BY topic, partition")
    admin = AdminClient({"bootstrap.servers": two.settings.bootstrap})
    for done in admin.delete_records([TopicPartition(p["topic"], p["partition"], p["o"] + 1) for p in places]).values():
        done.result(30)
    run(two.backfill())
    for _ in range(2):  # a repetition changes nothing
        for name in ("kernels_per_minute", "ranks_per_second"):
            counted = f"SELECT rank, sum(launches) AS n FROM {{db}}.{name} GROUP BY rank ORDER BY rank"
            assert two.rows("b", counted) == two.rows("primary", counted) == [{"rank": r, "n": 50} for r in range(3)]
        kept = "SELECT rank, count() AS n FROM {db}.kernels GROUP BY rank ORDER BY rank"
        assert two.rows("b", kept) == [{"rank": rank, "n": 50} for rank in (1, 2)]
        assert two.differences() == []
        run(two.backfill())


@pytest.mark.stack
def test_rows_without_their_ledger_are_not_doubled_by_a_copy_that_goes_on(two):
    two.pipeline.publish(*batches(3))
    two.drain("primary", 6)
    admin = AdminClient({"bootstrap.servers": two.settings.bootstrap})
    places = two.rows("primary", "SELECT topic, partition, max(offset) AS o FROM {db}.ledger GROUP BY topic, partition")
    for done in admin.delete_records([TopicPartition(p["topic"], p["partition"], p["o"] + 1) for p in places]).values():
        done.result(30)
    broken = two.backfill()
    for topic, offsets in list(broken.missing()):
        broken._copy_rows(table(topic), offsets)  # it was killed before the ledger, each time
    run(two.backfill())
    assert two.differences() == []


def test_rows_that_retention_removes_soon_are_not_copied():
    copying = Backfill(None, None, "gpu", [], RetentionSettings(kernels=1, steps=0), now_s=100 * 86_400 + 1_800)
    assert copying.kept_since("kernels") == 99 * 86_400 + 2 * 3_600
    assert copying.kept_since("steps") == 0
