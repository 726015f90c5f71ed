"""Rows of one job are deleted beside another's; the sink goes on, and the audit stays clean."""

from __future__ import annotations

from contextlib import closing

import pytest
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.infra.clickhouse.client import command
from drumline.infra.kafka.tail import read
from drumline.schemas.topics import Topic, dlq
from drumline.sinks.forget.forget import Forgetting, NotStored
from drumline.sinks.forget.job_records import ForgettableRecords
from drumline.sinks.forget.stored_rows import ForgettableRows

pytestmark = pytest.mark.stack
TOPICS = [Topic.KERNEL, Topic.PROCESS, Topic.STEP]


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def publish(pipeline, job, *sequences, number=0):
    for sequence in sequences:
        for topic in TOPICS:
            batch = any_batch(topic, 10 if topic != Topic.PROCESS else 1, process_id(number), sequence)
            batch.envelope.update(job=job, host=f"host-of-{job}")
            pipeline.publish(batch, key=job if topic == Topic.STEP else None)


def forget(pipeline, job, timeout_s=10.0):
    client, settings = pipeline.kept_client, pipeline.settings
    tables = {"primary": ForgettableRows(client, settings.clickhouse.database, job)}
    with closing(ForgettableRecords(settings)) as topics:
        return Forgetting(job, tables, {"primary": settings}, topics, lambda key: "").delete("me@here", timeout_s)


def counted(pipeline, job):
    return pipeline.query(f"SELECT count() AS n FROM {{db}}.kernels WHERE job = '{job}'")[0]["n"]


def test_rows_ledger_and_records_of_a_job_go_and_a_sink_goes_on(pipeline):
    publish(pipeline, "gone", 0, 1)
    publish(pipeline, "stays", 0, number=1)
    publish(pipeline, "gone", 2)
    with pytest.raises(NotStored, match="start `drumline sink`"):
        forget(pipeline, "gone", timeout_s=0)
    pipeline.drain(12, TOPICS)
    done = forget(pipeline, "gone")
    assert done.stored["primary"].records == {"gpu.kernel.v1": 3, "gpu.process.v1": 3, "gpu.step.v1": 3}
    assert done.hosts == ["host-of-gone"]
    assert (counted(pipeline, "gone"), counted(pipeline, "stays")) == (0, 10)
    ledger = pipeline.query(
        "SELECT disposition, job, host, process_id, key, uniqExact(offset, partition) AS n FROM {db}.ledger "
        "WHERE topic = 'gpu.kernel.v1' GROUP BY ALL ORDER BY disposition"
    )
    of_jobs = [(row["disposition"], row["job"], row["n"]) for row in ledger]
    assert of_jobs == [("forgotten", "", 3), ("stored", "stays", 1)]
    assert not any(ledger[0][name] for name in ("host", "process_id", "key"))
    pipeline.drain(1, TOPICS)  # the tombstone
    report = pipeline.audit()
    assert report.clean, report.as_json()
    assert {account.topic: account.forgotten for account in report.topics if account.forgotten} == dict.fromkeys(
        map(str, TOPICS), 3
    )
    [unknown] = pipeline.audit(job="stayz").findings
    assert unknown.text.endswith("; did you mean stays?")
    again = forget(pipeline, "gone")
    assert again.is_empty
    assert pipeline.query("SELECT count() AS n FROM {db}.forgotten_jobs") == [{"n": 1}], "twice is once"

    publish(pipeline, "gone", 0, 3)
    publish(pipeline, "stays", 1, number=1)
    pipeline.drain(9, TOPICS)
    assert (counted(pipeline, "gone"), counted(pipeline, "stays")) == (20, 20), "what comes again is stored again"
    findings = pipeline.audit().findings
    assert {(f.kind, "gpu" in f.where) for f in findings} == {("sequence_gap", True)}, "1 and 2 did not come again"


def test_what_interrupts_it_is_made_good_by_a_repetition(pipeline, monkeypatch):
    publish(pipeline, "gone", 0)
    publish(pipeline, "stays", 0, number=1)
    pipeline.drain(6, TOPICS)
    with monkeypatch.context() as broken:
        broken.setattr(ForgettableRows, "scrub_ledger", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            forget(pipeline, "gone")
    assert counted(pipeline, "gone") == 0
    assert not pipeline.audit().clean, "the ledger still has what the tables lack"
    pipeline.drain(1, TOPICS)  # the tombstone
    forget(pipeline, "gone")
    pipeline.drain(1, TOPICS)
    assert pipeline.audit().clean


def test_a_batch_of_dead_letters_is_forgotten_by_its_key(pipeline):
    pipeline.raw(Topic.STEP, "gone", b"no batch")
    pipeline.raw(Topic.STEP, "gone2", b"no batch")
    publish(pipeline, "gone", 0)
    pipeline.drain(5, TOPICS)
    forget(pipeline, "gone")
    kept = pipeline.query("SELECT key FROM {db}.ledger WHERE key != '' AND topic = 'gpu.step.v1'")
    assert kept == [{"key": "gone2"}]
    keys = [message.key() for message in read(pipeline.settings, dlq(Topic.STEP), "beginning", follow=False)]
    assert [key for key in keys if key != b"gone"] == [b"gone2"]
    pipeline.drain(1, TOPICS)
    assert pipeline.audit().clean, pipeline.audit().as_json()


def test_only_the_parts_of_a_forgotten_job_are_forgotten_dead_letters(pipeline):
    client, database = pipeline.kept_client, pipeline.settings.clickhouse.database
    for topic_id, offset, part, disposition in [
        ("new", 7, 0, "forgotten"),
        *(("new", 8, 1, "forgotten"), ("new", 8, 2, "stored")),
        *(("new", 9, 1, "forgotten"), ("new", 9, 2, "forgotten")),
    ]:
        command(
            client,
            f"INSERT INTO {database}.ledger (topic, topic_id, partition, offset, part, disposition, published) "
            f"SELECT 'gpu.step.v1', '{topic_id}', 0, {offset}, {part}, '{disposition}', now64(3)",
        )
    rows = ForgettableRows(client, database, "gone")
    origins = [("old", 0, 7, 0), *(("new", 0, offset, part) for offset in (7, 8, 9) for part in (0, 1, 2))]
    assert rows.are_forgotten("gpu.step.v1", origins) == {
        ("new", 0, 7, 0),
        ("new", 0, 8, 1),
        *(("new", 0, 9, part) for part in (0, 1, 2)),
    }


def test_a_sent_notice_keeps_the_faults_of_other_jobs(pipeline):
    client, database = pipeline.kept_client, pipeline.settings.clickhouse.database
    deleted, stays = 'run ["gone", "r"]', 'run ["stays", "r"]'
    for host, faults, sent in [
        ("a", [deleted], 1),
        ("b", [deleted, stays], 1),
        ("b", [deleted, stays], 0),
        ("c", [stays], 1),
    ]:
        command(
            client,
            f"INSERT INTO {database}.offender_notices_versions (host, id, faults, body, made, sent, changed) "
            "SELECT {host:String}, generateUUIDv4(), {faults:Array(String)}, 'gone', now64(3), {sent:UInt8}, now64(3)",
            {"host": host, "faults": faults, "sent": sent},
        )
    rows = ForgettableRows(client, database, "gone")
    rows.delete(rows.find().rows)
    assert pipeline.query("SELECT host, faults, body, sent FROM {db}.offender_notices_versions ORDER BY host") == [
        {"host": "b", "faults": [stays], "body": "", "sent": 1},
        {"host": "c", "faults": [stays], "body": "gone", "sent": 1},
    ], "what was sent of another job is not sent again"
    assert not rows.find().rows
