"""One database over all servers of a cluster: `Distributed` tables in front of the tables that each of them has.

Every server has the schema (`drumline migrate`) and its own rollups. Rows of one rank stay on one server, so that a
repeated insert meets its deduplication token again, and what replaces each other meets what it replaces.
"""

from __future__ import annotations

from drumline.infra.clickhouse.client import Client, command, rows
from drumline.infra.clickhouse.migrate import migrations

#: Table -> how its rows are spread; all others by job and rank. What is said of a whole job lies together.
BY_JOB = "cityHash64(job)"
SPREAD = {
    "kernel_names_versions": "cityHash64(name)",
    "records_per_minute": BY_JOB,
    "lateness_versions": BY_JOB,
    "stragglers_versions": BY_JOB,
}
BY_RANK = "cityHash64(job, rank)"


def distribute(client: Client, database: str, cluster: str, into: str) -> list[str]:
    """Make `into`: a Distributed table for every table of `database`, and the same views over those; the names made.
    On every server: a query's subqueries run where its parts run. Safe to run again.
    Raises TransientError or PermanentError."""
    found = rows(
        client,
        "SELECT name FROM system.tables WHERE database = {d:String} AND engine LIKE '%MergeTree' ORDER BY name",
        {"d": database},
    )
    names = [str(row["name"]) for row in found if not str(row["name"]).startswith("schema_migrations")]
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
    return names
