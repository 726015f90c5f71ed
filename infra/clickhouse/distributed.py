"""One database over all servers of a cluster: `Distributed` tables in front of the tables that each of them has.

Every server has the schema (`drumline migrate`) and its own rollups. Rows of one rank stay on one server, so that a
repeated insert finds its deduplication token, and a new version of a row finds the old one.
"""

from __future__ import annotations

import re

from drumline.infra.clickhouse.client import Client, command, rows
from drumline.infra.clickhouse.derived_schema import comment_changes
from drumline.infra.clickhouse.migrate import migrations
from drumline.infra.clickhouse.roles import check_name

#: Table -> how its rows are spread; all others by job and rank. Rows about a whole job stay together.
BY_JOB = "cityHash64(job)"
SPREAD = {
    "kernel_names_versions": "cityHash64(name)",
    "records_per_minute": BY_JOB,
    "steps_per_second": BY_JOB,
    "lateness_versions": BY_JOB,
    "stragglers_versions": BY_JOB,
    "evaluations": BY_JOB,
    "hangs_versions": BY_JOB,
    "stacks": BY_JOB,
    "alert_limits_versions": "cityHash64(name)",
    "offender_notices_versions": "cityHash64(host)",
    "acknowledgements_versions": "cityHash64(id)",
    "forgotten_jobs": BY_JOB,
    "control_records": "cityHash64(key)",
}
BY_RANK = "cityHash64(job, rank)"
#: A statement of a migration about columns: of a view, or of a table that may be there already.
_ALTERED = re.compile(r"ALTER TABLE \w+\.(?P<name>\w+)\s.*\b(ADD|COMMENT|MODIFY) COLUMN", re.DOTALL)

#: A Distributed table has no key.
_KEY = re.compile(r",\s*MODIFY ORDER BY \([^)]*\)")


def distribute(client: Client, database: str, cluster: str, into: str) -> list[str]:
    """Create the database `into` with a Distributed table for each table of `database`, and the views over those.

    Run it on each server, as subqueries run there too; a repetition changes nothing. Returns the names of tables and
    views. Raises BadName, TransientError or PermanentError.
    """
    for name in (cluster, into):
        check_name(name)
    tables = rows(
        client,
        "SELECT name FROM system.tables WHERE database = {d:String} AND engine LIKE '%MergeTree' ORDER BY name",
        {"d": database},
    )
    names = [str(row["name"]) for row in tables if not str(row["name"]).startswith("schema_migrations")]
    command(client, f"CREATE DATABASE IF NOT EXISTS {into}")
    for name in names:
        spread = SPREAD.get(name, BY_RANK)
        command(
            client,
            f"CREATE TABLE IF NOT EXISTS {into}.{name} AS {database}.{name} "
            f"ENGINE = Distributed({cluster}, {database}, {name}, {spread}) SETTINGS fsync_after_insert = 1",
        )
    for migration in migrations():
        for statement in migration.statements(into):
            if statement.startswith("CREATE OR REPLACE VIEW"):
                command(client, statement)
                names.append(statement.split(f"{into}.", 1)[1].split()[0])
            elif (altered := _ALTERED.match(statement)) and altered["name"] in names:  # no materialized view
                command(client, _KEY.sub("", statement))
    for _, statement in comment_changes(client, into):
        command(client, statement)
    return names
