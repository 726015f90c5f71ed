"""`drumline forget` on a running platform: nothing names the job any more, and all else is as it was and goes on."""

from __future__ import annotations

import json
import shutil

import pytest
from support.drumline_program import run
from support.pipeline import Pipeline

from drumline.infra.kafka.tail import read
from drumline.schemas.topics import RAW_TOPICS, Topic, dlq
from drumline.streams.core.records import job_of_key

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(600)]
DELETED, STAYS = "gone-8c1f", "stays-27ab"
#: Columns of text, whatever they are packed into.
TEXT = "(type LIKE '%String%' OR type LIKE '%Map%') AND default_kind != 'ALIAS'"


@pytest.fixture
def pipeline(clean_stack, environment_of, tmp_path):
    environment = {
        **environment_of(clean_stack),
        "DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"),
        "DRUMLINE_AGENT__KEPT_FOLDER": str(tmp_path / "kept"),
    }
    created = Pipeline(clean_stack, environment, tmp_path)
    created.drumline("topics", "apply")
    created.drumline("migrate")
    with created.running():
        yield created


def replayed(pipeline, *jobs):
    for job in jobs:
        _, errors = pipeline.start_replay("--speed", "max", "--job", job).communicate(timeout=120)
        assert not errors
    pipeline.wait_stored()


def forget(pipeline, *arguments, code=0):
    done = run("forget", *arguments, "--json", environment=pipeline.environment)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


def tables(pipeline):
    """Table -> its columns of text, of all that are stored."""
    columns = pipeline.query(
        "SELECT table, groupArray(name) AS names FROM system.columns WHERE database = currentDatabase() AND table IN "
        f"(SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree') AND {TEXT} "
        "GROUP BY table"
    )
    return {row["table"]: row["names"] for row in columns}


def naming(pipeline, job):
    """Tables of which any row has the name in any column."""
    matched = set()
    for table, names in tables(pipeline).items():
        has = " OR ".join(f"position(toString({name}), '{job}') > 0" for name in names)
        if pipeline.query(f"SELECT count() AS n FROM {table} WHERE {has}")[0]["n"]:
            matched.add(table)
    return matched


def rows_of(pipeline, job):
    with_job = pipeline.query(
        "SELECT table FROM system.columns WHERE database = currentDatabase() AND name = 'job' AND table IN "
        "(SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree')"
    )
    return {
        row["table"]: pipeline.query(f"SELECT count() AS n FROM {row['table']} FINAL WHERE job = '{job}'")[0]["n"]
        if row["table"].endswith("_versions")
        else pipeline.query(f"SELECT count() AS n FROM {row['table']} WHERE job = '{job}'")[0]["n"]
        for row in with_job
        if row["table"] not in ("forgotten_jobs", "ledger")
    }


def sums(pipeline, job):
    """Count what rollups have of a job: merges change the number of their rows, and not this."""
    return pipeline.query(
        f"SELECT (SELECT sum(launches) FROM kernels_per_minute WHERE job = '{job}') AS launches, "
        f"(SELECT sum(steps) FROM steps_per_second WHERE job = '{job}') AS steps, "
        f"(SELECT count() FROM kernels WHERE job = '{job}') AS kernels, "
        f"(SELECT count() FROM lateness WHERE job = '{job}') AS lateness"
    )


def alive(settings, topic):
    """Newest value of each key of a topic."""
    newest = {}
    for message in read(settings, topic, "beginning", follow=False):
        newest[message.key()] = message.value()
    return {key for key, value in newest.items() if value is not None}


def audited(pipeline, *arguments):
    done = run("audit", *arguments, "--json", environment=pipeline.environment)
    return json.loads(done.stdout)


def test_a_forgotten_job_leaves_no_name_and_no_row_and_the_audit_is_clean(pipeline, tmp_path):
    replayed(pipeline, DELETED, STAYS)
    settings, before = pipeline.settings, sums(pipeline, STAYS)
    assert audited(pipeline)["clean"]
    spool = tmp_path / "spool"
    for job in (DELETED, STAYS):
        pipeline.start_replay("--speed", "max", "--job", job, "--spool", str(spool)).communicate(timeout=120)
    folders = len([path for path in spool.iterdir() if not path.name.startswith(".")])
    kept = tmp_path / "kept" / "host" / "rows"
    pipeline.environment["DRUMLINE_HOST"] = "host"
    folder = next(path for path in spool.iterdir() if DELETED in (path / "identity.json").read_text())
    shutil.copytree(folder, kept / folder.name)

    assert "did you mean gone-8c1f?" in forget(pipeline, "gone-8c1g", code=2)
    assert f"{DELETED} runs: " in forget(pipeline, DELETED, "--yes", code=2)
    listed = forget(pipeline, DELETED, "--running")
    assert not listed["deleted"]
    stored = rows_of(pipeline, DELETED)
    assert stored["kernels"] > 0
    assert listed["rows"]["primary"].keys() >= {"kernels", "steps", "stragglers_versions", "processes_versions"}
    assert listed["rows"]["primary"]["kernels"] == stored["kernels"], "a dry run changes nothing"
    assert listed["keys"]["processes"] >= 4
    assert listed["keys"]["state"] > 0

    done = forget(pipeline, DELETED, "--yes", "--running")
    assert done["rows"]["primary"]["kernels"] == stored["kernels"]
    assert naming(pipeline, DELETED) == {"forgotten_jobs"}
    assert not any(rows_of(pipeline, DELETED).values())
    assert sums(pipeline, STAYS) == before
    report = audited(pipeline)
    assert report["clean"], report["findings"]
    assert sum(topic["forgotten"] for topic in report["topics"]) == sum(done["records"]["primary"].values())
    [unknown] = audited(pipeline, "--job", DELETED)["findings"]
    assert "deleted its data on" in unknown["text"]

    assert len(alive(settings, Topic.PROCESS)) == listed["keys"]["processes"], "both have as many"
    changelogs = [
        f"{settings.stream.app_id}-{stage}-changelog"
        for stage in ("kernel-frequency", "memcpy-bandwidth", "communicator", "job", "hangs")
    ]
    jobs = {job_of_key(key.partition(b"|")[2].decode()) for topic in changelogs for key in alive(settings, topic)}
    assert jobs - {""} == {STAYS}
    left = [path for path in spool.iterdir() if not path.name.startswith(".")]
    assert 0 < len(left) < folders
    assert not any(DELETED in (path / "identity.json").read_text() for path in left)
    assert not list(kept.iterdir())

    [row] = pipeline.query("SELECT * FROM forgotten_jobs")
    assert (row["job"], row["records"]) == (DELETED, sum(done["records"]["primary"].values()))
    assert "@" in row["forgotten_by"]
    assert row["deleted"]["kernels"] == stored["kernels"]

    again = forget(pipeline, DELETED, "--yes")
    assert not any(again["rows"]["primary"].values())
    assert len(pipeline.query("SELECT * FROM forgotten_jobs")) == 1, "nothing was left to delete"

    replayed(pipeline, DELETED)
    assert rows_of(pipeline, DELETED)["kernels"] == stored["kernels"], "a new run of that name is a new job"
    assert audited(pipeline)["clean"]


def test_records_go_from_kafka_as_far_as_only_forgotten_jobs_have_them(pipeline):
    replayed(pipeline, DELETED, STAYS)
    first = forget(pipeline, DELETED, "--yes", "--running")
    assert first["records_deleted"].get(Topic.KERNEL, 0) > 0, "it came first"
    forget(pipeline, STAYS, "--yes", "--running")
    for topic in RAW_TOPICS:
        if topic not in (Topic.PROCESS, Topic.CONTROL):
            records = list(read(pipeline.settings, topic, "beginning", follow=False))
            assert not [r for r in records if any(job.encode() in r.value() for job in (DELETED, STAYS))], topic
    assert audited(pipeline)["clean"]
    assert not list(read(pipeline.settings, dlq(Topic.KERNEL), "beginning", follow=False))
