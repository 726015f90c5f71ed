"""Backup and restore of the database by ClickHouse's own statements, with what is in force in Kafka's control topic.

A backup reads one table after the other, so no sink may write meanwhile: the ledger and the tables would be of
different times. The target is a name below the server's `backups.allowed_path`, or on a disk that it allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from drumline.infra.clickhouse.client import Client, command, rows
from drumline.infra.clickhouse.roles import check_name

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
CONTROL_RECORDS = "control_records"


class BadTarget(ValueError):
    """A text that names no place of a backup, or a database that is there already; the message has the remedy."""


def place(target: str) -> str:
    """Return the SQL of a target, NAME or DISK:NAME. Raises BadTarget."""
    if re.fullmatch(_NAME, target):
        return f"File('{target}')"
    if match := re.fullmatch(rf"({_NAME}):({_NAME})", target):
        return f"Disk('{match[1]}', '{match[2]}')"
    raise BadTarget(f"{target!r} names no backup: NAME, below the server's backups.allowed_path, or DISK:NAME")


def create(client: Client, database: str, target: str, control: Mapping[str, str]) -> int:
    """Back a database up, and return its bytes. Blocks. `control`: key -> request in force, as JSON.

    Raises BadName, BadTarget, TransientError or PermanentError.
    """
    check_name(database)
    where = place(target)
    command(client, f"TRUNCATE TABLE {database}.{CONTROL_RECORDS}")
    for key, request in control.items():
        values = {"key": key, "request": request}
        command(
            client,
            f"INSERT INTO {database}.{CONTROL_RECORDS} SELECT {{key:String}}, {{request:String}}, now64(3)",
            values,
        )
    [done] = rows(client, f"BACKUP DATABASE {database} TO {where}")
    return sum(int(row["bytes"]) for row in rows(client, _SIZE, {"id": done["id"]}))


def restore(client: Client, database: str, target: str) -> dict[str, str]:
    """Restore a database that is not there, and return key -> request that was in force. Blocks.

    Raises BadName, BadTarget, TransientError or PermanentError.
    """
    check_name(database)
    where = place(target)
    if tables := rows(client, "SELECT name FROM system.tables WHERE database = {d:String}", {"d": database}):
        # Who drops the database for a backup that is missing, or another database's, has neither.
        command(client, f"RESTORE TABLE {database}.{CONTROL_RECORDS} FROM {where} SETTINGS structure_only = 1")
        raise BadTarget(
            f"{database} has {len(tables)} tables, which a restore does not overwrite: DROP DATABASE {database} SYNC "
            "first, which deletes what is not in the backup"
        )
    command(client, f"RESTORE DATABASE {database} FROM {where}")
    kept = rows(client, f"SELECT key, request FROM {database}.{CONTROL_RECORDS} ORDER BY key")
    return {str(row["key"]): str(row["request"]) for row in kept}


def counts(client: Client, database: str) -> dict[str, int]:
    """Return the rows of each table that has any."""
    return _counted(
        rows(
            client,
            "SELECT name, total_rows AS n FROM system.tables WHERE database = {d:String} AND engine LIKE '%MergeTree' "
            "ORDER BY name",
            {"d": database},
        )
    )


def _counted(answer: Iterable[Mapping[str, object]]) -> dict[str, int]:
    return {str(row["name"]): int(str(row["n"])) for row in answer if row["n"]}


_SIZE = "SELECT total_size AS bytes FROM system.backups WHERE id = {id:String}"
