"""The release after this one, made up: a migration, a version of a schema and one of the worker's state more."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from drumline.infra.clickhouse.migrate import FOLDER, Migration, migrations
from drumline.schemas.topics import Topic
from drumline.streams.core import records

CHECKOUT = Path(__file__).parents[2]
#: A topic whose records agents write, workers read and sinks store; the field that its next version adds to it. Fields
#: have bounds by their names, so it has the name of another topic's.
TOPIC, FIELD = Topic.STEP, "serial"
#: Its value in rows that were stored before the migration, and by the next release in records of this one.
BEFORE, FILL = "before", ""
#: What a migration may do: add a column and a table, fill that, make a table anew, replace a view.
SQL = f"""-- Made up.
ALTER TABLE {{database}}.steps ADD COLUMN IF NOT EXISTS
    {FIELD} LowCardinality(String) DEFAULT '{BEFORE}' COMMENT 'made up' AFTER skipped;

CREATE TABLE IF NOT EXISTS {{database}}.step_counts
(
    job String COMMENT 'job name',
    rank Int32 COMMENT 'global rank',
    steps SimpleAggregateFunction(max, UInt64) COMMENT 'stored when it was filled; max'
)
ENGINE = AggregatingMergeTree
ORDER BY (job, rank)
SETTINGS non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1;

INSERT INTO {{database}}.step_counts SELECT job, rank, count() FROM {{database}}.steps GROUP BY job, rank;

CREATE OR REPLACE TABLE {{database}}.alert_limits_versions
(
    name LowCardinality(String),
    job String,
    label String,
    value Float64,
    note String,
    changed DateTime64(3, 'UTC'),
    cleared UInt8
)
ENGINE = ReplacingMergeTree(changed)
ORDER BY (job, name, label)
SETTINGS non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1
AS SELECT * FROM {{database}}.alert_limits_versions;

CREATE OR REPLACE VIEW {{database}}.slow_steps AS
SELECT job, rank, step, duration_ns, {FIELD} FROM {{database}}.steps WHERE duration_ns > 1000000000;
"""
NAME = f"{len(migrations()) + 1:04d}_made_up"


def newer_migrations(folder: Path) -> list[Migration]:
    """Return this release's migrations and one more. `folder`: an empty one, which gets the files."""
    for path in FOLDER.iterdir():
        (folder / path.name).write_text(path.read_text())
    (folder / f"{NAME}.sql").write_text(SQL)
    return migrations(folder)


def newer_checkout(folder: Path) -> dict[str, str]:
    """Lay the next release into `folder`; return the variables with which a Python finds it in place of this one."""
    package = folder / "drumline"
    ignored = shutil.ignore_patterns("tests", "docs", "build", "dist", "__pycache__", ".*", "*.egg-info")
    shutil.copytree(CHECKOUT, package, ignore=ignored)
    (package / "infra/clickhouse/migrations" / f"{NAME}.sql").write_text(SQL)

    path = package / "streams/core/records.py"
    written = path.read_text()
    newer = written.replace(f"_VERSION = {records._VERSION}\n", f"_VERSION = {records._VERSION + 1}\n")
    assert newer != written
    path.write_text(newer)

    variables = {"PYTHONPATH": str(folder)}
    _run_release(variables, folder, "--freeze")
    path = package / f"schemas/avro/{TOPIC}.avsc"
    schema = json.loads(path.read_text())
    schema["fields"].append({"name": FIELD, "type": "string", "default": FILL, "doc": "made up"})
    path.write_text(json.dumps(schema))
    assert _run_release(variables, folder, "--add").startswith(f"{TOPIC} version 2, ")
    return variables


def _run_release(variables: dict[str, str], folder: Path, action: str) -> str:
    """Return what the tool for versions of schemas prints in the next release's checkout."""
    command = [sys.executable, "-m", "drumline.schemas.release", action]
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
