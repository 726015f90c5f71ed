"""A database that was backed up, dropped and restored gives the same answers, and a sink fills it up from Kafka."""

from __future__ import annotations

import secrets

import pytest
from support.drumline_program import run
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.infra.clickhouse.client import command
from drumline.schemas.topics import Topic

pytestmark = pytest.mark.stack
TOPICS = [Topic.KERNEL, Topic.PROCESS, Topic.STEP]


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def publish(pipeline, *sequences):
    for sequence in sequences:
        for topic in TOPICS:
            pipeline.publish(any_batch(topic, 1 if topic == Topic.PROCESS else 50, process_id(0), sequence))


def drumline(pipeline, *arguments, code=0):
    done = run(*arguments, environment=pipeline.environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def answers(pipeline):
    return pipeline.query(
        "SELECT (SELECT sum(cityHash64(*)) FROM {db}.kernels) AS kernels, (SELECT count() FROM {db}.ledger) AS ledger, "
        "(SELECT sum(launches) FROM {db}.kernels_per_minute) AS launches, "
        "(SELECT toString(quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations)) FROM {db}.kernels_per_minute) AS median, "
        "(SELECT count() FROM {db}.processes) AS processes, (SELECT count() FROM {db}.alert_limits) AS limits"
    )


def test_a_restored_database_answers_the_same_and_lacks_nothing_that_kafka_has(pipeline):
    name, database = f"nightly-{secrets.token_hex(4)}", pipeline.settings.clickhouse.database
    publish(pipeline, 0, 1, 2)
    pipeline.drain(9, TOPICS)
    drumline(pipeline, "limits", "set", "straggler_share=0.2", "--job", "job")
    drumline(pipeline, "policy", "set", "always", "--job", "job", "--for", "2h")
    before = answers(pipeline)
    assert f"{name}: " in drumline(pipeline, "backup", "create", name)
    assert "ALREADY_EXISTS" in drumline(pipeline, "backup", "create", name, code=1)

    publish(pipeline, 3)
    pipeline.drain(3, TOPICS)
    drumline(pipeline, "policy", "clear", "--all")
    assert "which a restore does not overwrite" in drumline(pipeline, "backup", "restore", name, code=2)
    assert "not found" in drumline(pipeline, "backup", "restore", f"{name}-typo", code=1), "before anything is dropped"
    command(pipeline.kept_client, f"DROP DATABASE {database} SYNC")
    assert "1 policies are in force again" in drumline(pipeline, "backup", "restore", name)
    assert answers(pipeline) == before
    drumline(pipeline, "migrate")
    assert "always" in drumline(pipeline, "policy", "show")

    sink = pipeline.sink(lambda sink: sink.counts.records >= 3, TOPICS, accept_loss=True)
    sink.run()
    publish(pipeline, 4)
    pipeline.drain(3, TOPICS)
    report = pipeline.audit()
    assert report.clean, report.as_json()
    stored = {account.topic: account.rows_stored for account in report.topics}
    assert (stored[Topic.KERNEL], stored[Topic.STEP]) == (250, 250)


def test_a_backup_wants_no_sink_beside_it_and_a_name(pipeline):
    publish(pipeline, 0)
    sink = pipeline.started()
    assert "stop them first" in drumline(pipeline, "backup", "create", "x1", code=2)
    sink.terminate()
    sink.wait(30)
    for target in ("../x", "a b", "x'y", "/etc/x", ""):
        assert "names no backup" in drumline(pipeline, "backup", "create", target, code=2)
