"""The audit must be able to fail: every way in which a row can be lost or doubled is tried on it."""

import json
import re
import time

import pytest
from support import drumline_program, migrated_database
from support.labs.sink import NOW_NS, Pipeline, any_batch, process_id

from drumline.schemas.epochs import write_epoch
from drumline.schemas.topics import Topic
from drumline.sinks.audit.kafka_side import KafkaFacts, KafkaUnreachable
from drumline.sinks.tables.blocks import DAY_NS

pytestmark = pytest.mark.stack
WINDOW_NS = 10**10


@pytest.fixture
def pipeline(clean_stack, environment_of):
    """Four kernel batches, stored, with a window that counts them all."""
    created = Pipeline(clean_stack, environment_of(clean_stack))
    for sequence in range(4):
        created.publish(any_batch(Topic.KERNEL, 100, process_id(0), sequence))
    created.publish(window(0, 400))
    drain(created, 5)
    yield created
    created.stop()


def window(sequence, launches, late=0, topic=Topic.KERNEL_FREQUENCY):
    batch = any_batch(topic, 1, process_id(0), sequence)
    batch.envelope |= {"window_start_ns": NOW_NS, "window_end_ns": NOW_NS + 2 * WINDOW_NS, "late_rows": late}
    batch.columns["name"][:] = 0
    batch.columns["launches"][:] = launches
    return batch


def kinds(pipeline):
    return {finding.kind for finding in pipeline.audit().findings}


def drain(pipeline, records):
    pipeline.drain(records, [Topic.KERNEL, Topic.KERNEL_FREQUENCY, Topic.MEMCPY, Topic.DEVICE, Topic.STEP])


def alter(pipeline, sql):
    pipeline.kept_client.command(
        sql.replace("{db}", pipeline.settings.clickhouse.database),
        settings={"mutations_sync": 2, "async_insert": 0, "insert_deduplicate": 0},
    )


DAMAGE = {
    "a row is gone": ("ALTER TABLE {db}.kernels DELETE WHERE _offset = 1 AND _row = 7", "rows_differ"),
    "a batch is gone": ("ALTER TABLE {db}.kernels DELETE WHERE _offset = 1", "rows_differ"),
    "a row is there twice": (
        "INSERT INTO {db}.kernels SELECT * FROM {db}.kernels WHERE _offset = 1 AND _row = 7", "doubled",
    ),
    "a row is there twice and another is gone": (
        "ALTER TABLE {db}.kernels UPDATE _row = 6 WHERE _offset = 1 AND _row = 7", "rows_differ",
    ),
    "a batch from nowhere": (
        "INSERT INTO {db}.kernels (job, run, process_id, start, _offset) SELECT 'j', 'r', 'p', now64(9), 99", "doubled",
    ),
    "a batch of a topic that has no records": (
        "INSERT INTO {db}.memcpys (job, run, process_id, start, _offset) SELECT 'j', 'r', 'p', now64(9), 9", "doubled",
    ),
    "a result of a topic that has no records": (
        "INSERT INTO {db}.memcpy_bandwidth_versions (job, run, window_start, published) "
        "SELECT 'j', 'r', now64(9), now64(3)", "rows_differ",
    ),
    "the ledger lost a record": ("ALTER TABLE {db}.ledger DELETE WHERE topic = 'gpu.kernel.v1' AND offset = 2", "lost"),
    "the ledger has a record twice": ("INSERT INTO {db}.ledger SELECT * FROM {db}.ledger WHERE offset = 2", "doubled"),
    "a sequence is missing": (
        "ALTER TABLE {db}.ledger UPDATE sequence = 9 WHERE topic = 'gpu.kernel.v1' AND offset = 2", "sequence_gap",
    ),
    "a sequence is stored twice": (
        "ALTER TABLE {db}.ledger UPDATE sequence = 1, content = 7 WHERE topic = 'gpu.kernel.v1' AND offset IN (1, 2)",
        "doubled",
    ),
    "the original of a duplicate is missing": (
        "ALTER TABLE {db}.ledger UPDATE disposition = 'duplicate' WHERE topic = 'gpu.kernel.v1' AND offset = 2", "lost",
    ),
    "rows of a record that came too old are there": (
        "ALTER TABLE {db}.ledger UPDATE disposition = 'expired' WHERE topic = 'gpu.kernel.v1' AND offset = 2",
        "doubled",
    ),
    "a window counts too few": (
        "ALTER TABLE {db}.kernel_frequency_versions UPDATE launches = 399 WHERE 1", "windows_differ",
    ),
    "a result is fenced without a successor": (
        "ALTER TABLE {db}.ledger UPDATE disposition = 'fenced', source = 's:0' WHERE topic = 'gpu.kernel-frequency.v1'",
        "rows_differ",
    ),
    "a result left no row": ("ALTER TABLE {db}.kernel_frequency_versions DELETE WHERE 1", "lost"),
}  # fmt: skip


#: Tables that the damage is done to -> those that they fill.
COPIED = {
    "kernels": ("kernels_per_minute", "ranks_per_second"),
    "ledger": ("records_per_minute",),
    "kernel_frequency_versions": (),
    "memcpys": ("memcpys_per_minute",),
    "memcpy_bandwidth_versions": (),
}


def test_damage_is_found(pipeline):
    """Each kind on a fresh copy of its table; that copies are clean is asked of the first."""
    whole = pipeline.settings.clickhouse.database
    pipeline.settings.clickhouse.database = copy = f"{whole}_copy"
    migrated_database.create(pipeline.settings)
    spoiled = list(COPIED)
    for number, (damage, (sql, kind)) in enumerate(DAMAGE.items()):
        for name in spoiled:
            for table in (name, *COPIED[name]):
                alter(pipeline, f"TRUNCATE TABLE {copy}.{table}")
            alter(pipeline, f"INSERT INTO {copy}.{name} SELECT * FROM {whole}.{name}")
        assert number or pipeline.audit().clean
        alter(pipeline, sql)
        assert kind in kinds(pipeline), damage
        spoiled = re.findall(r"(?:ALTER TABLE|INSERT INTO) {db}\.(\w+)", sql)
    alter(pipeline, f"DROP DATABASE {copy} SYNC")
    pipeline.settings.clickhouse.database = whole


def test_the_id_of_a_slurm_job_stands_for_all_its_attempts(pipeline):
    process, again = any_batch(Topic.PROCESS, 1, process_id(1), 0, 1), any_batch(Topic.KERNEL, 50, process_id(1), 0, 1)
    process.envelope |= {"run": "run-1", "slurm_job": "run"}
    again.envelope["run"] = "run-1"
    pipeline.publish(process, again)
    pipeline.drain(2, [Topic.KERNEL, Topic.PROCESS])

    def kernels(run):
        report = pipeline.audit(run=run)
        return [account.rows_stored for account in report.topics if account.topic == Topic.KERNEL]

    assert (kernels("run"), kernels("run-1")) == ([450], [50])


def test_a_rollup_that_counts_rows_twice_or_not_at_all_is_found(pipeline):
    for topic in (Topic.MEMCPY, Topic.DEVICE, Topic.STEP):
        pipeline.publish(any_batch(topic, 100, process_id(0), 0))
    drain(pipeline, 3)
    report = pipeline.audit()
    assert report.clean, report.findings
    counted = {"kernels_per_minute": 400, "ranks_per_second": 400, "memcpys_per_minute": 100, "devices_per_minute": 100}
    assert report.rollups == counted | {"records_per_minute": 8, "steps_per_second": 100}
    for damage in ("INSERT INTO {db}.%s SELECT * FROM {db}.%s", "TRUNCATE TABLE {db}.%s"):
        for name in report.rollups:
            alter(pipeline, damage.replace("%s", name))
        findings = [(finding.kind, finding.where.split()[0]) for finding in pipeline.audit().findings]
        assert sorted(findings) == sorted(("rollup_differs", name) for name in report.rollups)


def test_rows_that_a_rollup_gives_to_another_rank_are_found(pipeline):
    pipeline.publish(any_batch(Topic.KERNEL, 100, process_id(1), 0, 1))
    drain(pipeline, 1)
    before = kinds(pipeline)  # its window was not published
    assert "rollup_differs" not in before
    alter(pipeline, "INSERT INTO {db}.ranks_per_second SELECT * REPLACE (0 AS rank) FROM {db}.ranks_per_second"
          " WHERE rank = 1")  # fmt: skip
    alter(pipeline, "ALTER TABLE {db}.ranks_per_second DELETE WHERE rank = 1")
    assert kinds(pipeline) == before | {"rollup_differs"}


def test_a_run_whose_beginning_a_rollup_has_forgotten_is_audited_by_the_rest(pipeline):
    hour = 3_600 * 10**9
    kept_ns = (time.time_ns() - 24 * hour) // hour * hour + 2 * hour
    for sequence, start in enumerate((kept_ns - hour, kept_ns - 5 * 10**8, kept_ns + 2 * hour), 4):
        batch = any_batch(Topic.KERNEL, 100, process_id(0), sequence)
        batch.envelope["base_time_ns"] += start - NOW_NS
        batch.columns["start_ns"] += start - NOW_NS
        pipeline.publish(batch)
    drain(pipeline, 3)
    alter(pipeline, "ALTER TABLE {db}.ledger UPDATE published = time_min WHERE sequence IN (4, 5)")
    alter(pipeline, "ALTER TABLE {db}.ranks_per_second UPDATE last_published = second WHERE 1")
    pipeline.settings.clickhouse.retention.ranks_per_second = 1
    alter(pipeline, f"ALTER TABLE {{db}}.ranks_per_second DELETE WHERE second < toDateTime({kept_ns // 10**9})")
    assert kinds(pipeline) == {"windows_differ"}, "the window of these rows was not published"
    alter(pipeline, "INSERT INTO {db}.ranks_per_second SELECT * FROM {db}.ranks_per_second")
    assert kinds(pipeline) == {"windows_differ", "rollup_differs"}
    pipeline.settings.clickhouse.retention.ranks_per_second = 30


def test_late_rows_and_duplicates_and_open_windows_are_no_loss(pipeline):
    pipeline.publish(window(1, 390, late=10), any_batch(Topic.KERNEL, 100, process_id(0), 3), again=True)
    drain(pipeline, 2)
    assert pipeline.audit().clean
    later = any_batch(Topic.KERNEL, 50, process_id(0), 4)
    later.envelope["base_time_ns"] += 10**11
    later.columns["start_ns"] += 10**11
    pipeline.publish(later)
    assert kinds(pipeline) == {"not_drained"}
    drain(pipeline, 1)
    assert kinds(pipeline) == {"windows_open"}


def test_results_of_a_halted_worker_change_nothing_also_after_a_restart_of_the_sink(pipeline):
    for sequence, (epoch, launches, late) in enumerate([(6, 400, 0), (5, 7, 99)], start=1):  # the second one is old
        batch = window(sequence, launches, late)
        headers = [write_epoch(epoch, "kernel-frequency:0")]
        value = pipeline.codec.encode(batch)
        pipeline.producer.produce(batch.topic, key=process_id(0), value=value, headers=headers)
        pipeline.producer.flush(20)
        drain(pipeline, 1)
    report = pipeline.audit()
    assert report.clean, report.findings
    assert [account.fenced for account in report.topics if account.topic == Topic.KERNEL_FREQUENCY] == [1]
    assert pipeline.query("SELECT launches FROM {db}.kernel_frequency") == [{"launches": 400}]
    again = "SELECT * REPLACE (offset + 1 AS offset, published + INTERVAL 61 SECOND AS published) FROM {db}.ledger"
    alter(pipeline, f"INSERT INTO {{db}}.ledger {again} WHERE disposition = 'fenced'")
    (text,) = [f.text for f in pipeline.audit().findings if f.kind == "rows_differ"]
    assert text.startswith("the newest results of kernel-frequency:0 are all fenced")


def test_rows_of_a_batch_that_no_table_can_hold_may_be_counted_by_windows_and_no_others(pipeline):
    far = any_batch(Topic.KERNEL, 5, process_id(0), 4)
    far.columns["start_ns"][-1] -= 40 * DAY_NS  # over MAX_DAYS before the others, but within the bounds of records
    pipeline.publish(far, window(1, 404, late=1), again=True)
    drain(pipeline, 2)
    report = pipeline.audit()
    assert report.clean, report.findings
    assert [(w["closed"], w["in_windows"], w["late_rows"], w["dead_rows"]) for w in report.windows] == [
        (400, 404, 1, 5)
    ]
    pipeline.publish(window(2, 398, late=1), again=True)  # a good row is missing
    drain(pipeline, 1)
    assert kinds(pipeline) == {"windows_differ"}


def test_a_dead_letter_that_cannot_be_read_excuses_one_batch_of_its_own_key(pipeline):
    def kernels(process, *sequences):
        pipeline.publish(*(any_batch(Topic.KERNEL, 100, process_id(process), s) for s in sequences))

    def gaps():
        return [f.text.split(" (")[0] for f in pipeline.audit().findings if f.kind == "sequence_gap"]

    pipeline.raw(Topic.KERNEL, process_id(0), b"no batch")  # what was number 4
    kernels(0, 5)
    drain(pipeline, 2)
    assert gaps() == []
    kernels(1, 0, 2)
    drain(pipeline, 2)
    assert gaps() == ["1 of 3 batches are missing"]  # of another process: not excused
    kernels(0, 7)
    drain(pipeline, 1)
    assert sorted(gaps()) == ["1 of 3 batches are missing", "1 of 8 batches are missing"]


def test_exit_codes_and_json(pipeline):
    def run(*arguments, **environment):
        return drumline_program.run("audit", *arguments, environment=pipeline.environment | environment)

    clean = run("--json", "--job", "job", "--run", "run")
    assert (clean.returncode, json.loads(clean.stdout)["clean"]) == (0, True)
    alter(pipeline, "ALTER TABLE {db}.kernels DELETE WHERE _offset = 1 AND _row = 7")
    damaged = run()
    assert damaged.returncode == 1
    assert "rows_differ kernels" in damaged.stdout
    assert damaged.stdout.splitlines()[-1].endswith("findings"), "and not: clean"
    wrong = run("--job", "job", "--run", "rnu", "--json")
    findings = [finding for finding in json.loads(wrong.stdout)["findings"] if finding["kind"] == "unknown"]
    assert (wrong.returncode, [finding["where"] for finding in findings]) == (1, ["job job run rnu"])
    brokers_down = run(DRUMLINE_CLICKHOUSE__DATABASE="gpu_nowhere")
    assert brokers_down.returncode == 10
    assert "Traceback" not in brokers_down.stderr


def test_a_kafka_that_has_none_of_the_topics_is_another_one(clean_stack):
    facts = KafkaFacts(clean_stack)
    with pytest.raises(KafkaUnreachable, match="none of drumline's topics"):
        facts.partitions([Topic.KERNEL])
    facts.close()
