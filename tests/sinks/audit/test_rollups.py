"""Rollups count every row once: under repeated inserts, engines killed in them, and sinks that retry."""

import threading
import time

import pytest
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.infra.clickhouse.client import INSERT_SETTINGS
from drumline.infra.clickhouse.kernel_names import RULES, kernel_name
from drumline.infra.clickhouse.migrate import migrate
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks.inserts.insert import RangeWriter
from drumline.sinks.tables.blocks import rows_block
from drumline.sinks.tables.tables import table

pytestmark = pytest.mark.stack
#: rollup -> (its amount, the table it counts).
ROLLUPS = {
    "kernels_per_minute": ("launches", "kernels"),
    "ranks_per_second": ("launches", "kernels"),
    "steps_per_second": ("steps", "steps"),
    "memcpys_per_minute": ("copies", "memcpys"),
    "devices_per_minute": ("samples", "device_samples"),
    "records_per_minute": ("records", "ledger"),
}


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def counted(pipeline):
    """rollup -> (what it counts, rows of its table)."""
    return {
        rollup: tuple(
            pipeline.query(
                f"SELECT (SELECT sum({amount}) FROM {{db}}.{rollup}) AS a, (SELECT count() FROM {{db}}.{raw}) AS b"
            )[0].values()
        )
        for rollup, (amount, raw) in ROLLUPS.items()
    }


def block(topic, sequence, rows=500):
    codec = Codec()
    batch = codec.decode(topic, codec.encode(any_batch(topic, rows, process_id(0), sequence)))
    return rows_block(table(topic), "id:0", [batch], [sequence], [int(time.time() * 1e3)])


def insert(pipeline, topic, sequence, data, **settings):
    stored = table(topic)
    pipeline.client().raw_insert(
        f"{pipeline.settings.clickhouse.database}.{stored.target}",
        column_names=[column.name for column in stored.columns], insert_block=data, fmt="Native",
        settings={**INSERT_SETTINGS, "insert_deduplication_token": f"token-{sequence}", **settings},
    )  # fmt: skip


@pytest.mark.parametrize("topic", [Topic.KERNEL, Topic.MEMCPY, Topic.DEVICE, Topic.STEP])
def test_an_insert_repeated_later_and_out_of_order_counts_once(pipeline, topic):
    blocks = [block(topic, sequence)[1] for sequence in range(4)]
    for sequence in (0, 1, 1, 0, 2, 3, 2, 0):
        insert(pipeline, topic, sequence, blocks[sequence])
    name = table(topic).name
    rolled = {r: counts for r, counts in counted(pipeline).items() if ROLLUPS[r][1] == name}
    assert rolled
    assert set(rolled.values()) == {(2_000, 2_000)}


def test_without_the_setting_that_the_sink_sends_a_repetition_would_count_twice(pipeline):
    """The trap this design avoids: the rows are dropped as repeated, what the views made of them is not."""
    data = block(Topic.KERNEL, 0)[1]
    for _ in range(2):
        insert(pipeline, Topic.KERNEL, 0, data, deduplicate_blocks_in_dependent_materialized_views=0)
    assert counted(pipeline)["kernels_per_minute"] == (1_000, 500)


def test_rollups_equal_the_rows(pipeline):
    for sequence in range(3):
        insert(pipeline, Topic.KERNEL, sequence, block(Topic.KERNEL, sequence)[1])
    by = "job, run, rank, name"
    of_rows = pipeline.query(
        f"SELECT {by}, count() AS launches, sum(duration_ns) AS gpu, min(duration_ns) AS least, "
        "max(duration_ns) AS most, max(registers) AS registers, max(blocks) AS blocks FROM {db}.kernels "
        f"GROUP BY {by} ORDER BY ALL"
    )
    of_rollup = pipeline.query(
        f"SELECT {by}, sum(k.launches) AS launches, sum(gpu_ns) AS gpu, min(min_ns) AS least, max(max_ns) AS most, "
        "max(k.registers) AS registers, quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(blocks)[3] AS p99 "
        f"FROM {{db}}.kernels_per_minute AS k GROUP BY {by} ORDER BY ALL"
    )
    for row, rolled in zip(of_rows, of_rollup, strict=True):
        assert row.pop("blocks") * 1.01 >= rolled.pop("p99") > 0
        assert row == rolled


def test_without_ranks_the_server_reads_the_projection_and_gets_the_same_before_and_after_merges(pipeline):
    for sequence in (0, 1, 1, 2, 0):
        insert(pipeline, Topic.KERNEL, sequence, block(Topic.KERNEL, sequence)[1])
    q = "quantilesDDMerge(0.01, 0.5, 0.95, 0.99)"
    query = (
        "SELECT name, sum(k.launches) AS launches, sum(k.gpu_ns) AS gpu, max(k.max_ns) AS longest, "
        "sum(k.graph_launches) AS graphs, max(k.registers) AS registers, max(k.shared_bytes) AS shared, "
        f"{q}(durations) AS d, {q}(blocks) AS g, {q}(threads_per_block) AS t "
        "FROM {db}.kernels_per_minute AS k WHERE job != '' AND minute > 0 GROUP BY name ORDER BY name"
    )
    for _ in range(2):
        assert "all_ranks" in str(pipeline.query(f"EXPLAIN {query}"))
        counts = pipeline.query(query)
        assert counts == pipeline.query(f"{query} SETTINGS optimize_use_projections = 0")
        assert sum(row["launches"] for row in counts) == 1_500
        pipeline.query("OPTIMIZE TABLE {db}.kernels_per_minute FINAL")


@pytest.mark.long
def test_an_engine_killed_in_an_insert_and_the_insert_repeated(pipeline, kill9, wait_for_stack):
    """Killed at any moment of it, so also when the rows are there and what the views make of them is not."""
    blocks = [block(Topic.KERNEL, sequence, 20_000)[1] for sequence in range(5)]
    for sequence, data in enumerate(blocks):
        threading.Timer(0.004 + 0.015 * sequence, kill9, ["engine"]).start()
        for _ in range(40):
            try:
                insert(pipeline, Topic.KERNEL, sequence, data)
                break
            except Exception:  # it died of the insert
                wait_for_stack()
        time.sleep(0.2)
        wait_for_stack()
        insert(pipeline, Topic.KERNEL, sequence, data)
    counts = counted(pipeline)
    assert counts["kernels_per_minute"] == counts["ranks_per_second"] == (100_000, 100_000)


@pytest.mark.long
def test_a_sink_killed_again_and_again(pipeline):
    for life in range(4):
        for topic in (Topic.KERNEL, Topic.MEMCPY, Topic.DEVICE):
            pipeline.publish(*(any_batch(topic, 300, process_id(0), life * 5 + i) for i in range(5)))
        sink = pipeline.started("--instance", "1", flush_rows=300, flush_s=0.05)
        time.sleep(0.05 * life)
        sink.kill()
    pipeline.start("--instance", "1")
    pipeline.wait_drained()
    pipeline.assert_exactly_once()
    assert all(rolled == rows for rolled, rows in counted(pipeline).values()), counted(pipeline)
    assert counted(pipeline)["kernels_per_minute"] == (6_000, 6_000)
    unnamed = pipeline.query(
        "SELECT count() AS n FROM {db}.kernels WHERE name NOT IN (SELECT name FROM {db}.kernel_names)"
    )
    assert unnamed == [{"n": 0}]


@pytest.mark.parametrize("fed", [False, True])
def test_an_engine_that_died_between_the_ledger_and_its_rollup(pipeline, monkeypatch, fed):
    """The sink died with it: the next one finds the range in the ledger, as if only its commit was missing."""

    class Killed(BaseException):
        pass

    insert = RangeWriter.insert_ledger

    def dies(self, pending):
        insert(self, pending)
        raise Killed

    pipeline.publish(*(any_batch(Topic.KERNEL, 100, process_id(p), i) for p in (0, 1, 5) for i in range(4)))
    view = f"{pipeline.settings.clickhouse.database}.records_per_minute_from_ledger"
    if not fed:
        pipeline.client().command(f"DETACH TABLE {view}")
    monkeypatch.setattr(RangeWriter, "insert_ledger", dies)
    with pytest.raises(Killed):
        pipeline.drain(99)
    monkeypatch.undo()
    if not fed:
        pipeline.client().command(f"ATTACH TABLE {view}")
    stored = pipeline.query("SELECT count() AS n FROM {db}.ledger")[0]["n"]
    assert stored
    assert pipeline.query("SELECT sum(records) AS n FROM {db}.records_per_minute")[0]["n"] == (stored if fed else 0)
    pipeline.drain(12 - stored)
    if stored == 12:
        pipeline.publish(any_batch(Topic.KERNEL, 100, process_id(0), 4))
        pipeline.drain(1)
    report = pipeline.assert_exactly_once()
    assert report.rollups["records_per_minute"] == 12 + (stored == 12)


def test_names_of_older_rules_are_rebuilt_by_migrate(pipeline):
    pipeline.query("SELECT 1 AS x")
    pipeline.client().command(
        f"INSERT INTO {pipeline.settings.clickhouse.database}.kernel_names_versions (name, short, family, rules) "
        f"VALUES ('_Z4gemmv', 'old', 'old', {RULES - 1})"
    )
    assert migrate(pipeline.client(), pipeline.settings) == ["1 kernel names by the current rules"]
    name = kernel_name("_Z4gemmv")
    assert pipeline.query("SELECT short, family, demangled FROM {db}.kernel_names") == [
        {"short": name.short, "family": name.family, "demangled": "gemm()"}
    ]
    assert migrate(pipeline.client(), pipeline.settings) == []
