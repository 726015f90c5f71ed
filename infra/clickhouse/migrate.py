"""Numbered, checksummed SQL migrations, immutable from the first release on (infra/released.sha256).

A file is NNNN_name.sql; a statement ends with `;` at the end of a line. Its placeholder is {database}. Statements are
written so that an incomplete run can be repeated. The checksum is of the file's text. Comments that follow from other
places are set last (derived_schema.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

import structlog

from drumline.infra.clickhouse.client import Client, command, rows
from drumline.infra.clickhouse.derived_schema import comment_changes
from drumline.infra.clickhouse.kernel_names_table import rename
from drumline.infra.clickhouse.migration_lock import MigrationConflict, MigrationLock
from drumline.infra.clickhouse.replicated import JOURNAL, check_replicated, plain_tables, run_statement, token_changes
from drumline.infra.clickhouse.retention import retention_changes
from drumline.infra.clickhouse.statistics import statistics_changes
from drumline.infra.config.settings import Settings

log = structlog.get_logger()
FOLDER = resources.files("drumline.infra.clickhouse") / "migrations"
_FILE = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
_CREATED = re.compile(r"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?\w+\.(\w+)")

_JOURNAL = """CREATE TABLE IF NOT EXISTS {database}.schema_migrations
(
    version UInt32 COMMENT 'number of the file in infra/clickhouse/migrations',
    name String COMMENT 'its name',
    checksum String COMMENT 'SHA-256 of its text',
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when it was applied'
)
ENGINE = MergeTree ORDER BY version
SETTINGS non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'migrations that were applied'"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration file."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, as the table schema_migrations has it."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self, database: str) -> list[str]:
        """Return the statements in order, without comment lines."""
        lines = [line for line in self.text.splitlines() if not line.lstrip().startswith("--")]
        parts = re.split(r";[ \t]*(?:\n|$)", "\n".join(lines))
        return [part.strip().replace("{database}", database) for part in parts if part.strip()]


def migrations(folder: Traversable = FOLDER) -> list[Migration]:
    """Return all migrations by version. Raises ValueError on a misnamed file or a repeated or missing number."""
    result = []
    for path in folder.iterdir():
        if path.name.endswith(".sql"):
            match = _FILE.match(path.name)
            if not match:
                raise ValueError(f"{path.name}: migrations are named NNNN_name.sql")
            result.append(Migration(int(match[1]), match[2], path.read_text()))
    result.sort(key=lambda migration: migration.version)
    if [m.version for m in result] != list(range(1, len(result) + 1)):
        raise ValueError(f"migrations are numbered 1, 2, 3, ...; found {[m.version for m in result]}")
    return result


class Applied(NamedTuple):
    """Holds what the journal has of an applied migration."""

    name: str
    checksum: str


def pending(files: list[Migration], applied: dict[int, Applied], database: str) -> list[Migration]:
    """Return the migrations to apply; `applied`: by version. Raises MigrationConflict."""
    for migration in files:
        known = applied.get(migration.version)
        if known is not None and known != (migration.name, migration.checksum):
            newest = max(applied)
            raise MigrationConflict(
                f"{database} has the schema of another checkout ({len(applied)} migrations up to "
                f"{newest:04d}_{applied[newest].name}; {migration.version:04d}_{known.name} is not this drumline's), "
                "from which no upgrade leads, and nothing was changed: name another database in "
                f"DRUMLINE_CLICKHOUSE__DATABASE, or delete this one with all its rows (DROP DATABASE {database} SYNC) "
                "and run drumline migrate again"
            )
    if newer := applied.keys() - {migration.version for migration in files}:
        raise MigrationConflict(
            f"migration {max(newer):04d} is applied but not among the files: this database belongs to a newer drumline"
        )
    return [migration for migration in files if migration.version not in applied]


def migrated_tables(files: Iterable[Migration]) -> frozenset[str]:
    """Return the tables that migrations make, and their journal; the database may have a user's besides."""
    created = (_CREATED.match(text) for migration in files for text in migration.statements("d"))
    return frozenset({JOURNAL, *(match[1] for match in created if match)})


def applied_migrations(client: Client, database: str) -> dict[int, Applied]:
    """Return the applied migrations by version; none for a new database."""
    exists = rows(
        client,
        "SELECT 1 FROM system.tables WHERE database = {d:String} AND name = 'schema_migrations'",
        {"d": database},
    )
    if not exists:
        return {}
    applied = rows(client, f"SELECT version, name, checksum FROM {database}.schema_migrations ORDER BY applied_at")
    return {int(row["version"]): Applied(str(row["name"]), str(row["checksum"])) for row in applied}


def migrate(client: Client, settings: Settings, *, dry_run: bool = False) -> list[str]:
    """Apply pending migrations and return a text for each change that was, or with `dry_run` would be, made.

    Raises MigrationConflict, PermanentError, TransientError.
    """
    database = settings.clickhouse.database
    files = migrations()
    applied = applied_migrations(client, database)
    todo = pending(files, applied, database)
    tables = migrated_tables(files)
    statements = [text for m in todo for text in m.statements(database)]
    check_replicated(client, database, tables, statements, is_new=not applied)
    if dry_run:
        return [f"{m.version:04d}_{m.name}" for m in todo] + [text for text, _ in _changes(client, settings, tables)]
    command(client, f"CREATE DATABASE IF NOT EXISTS {database}")
    with MigrationLock(client, database):
        command(client, _JOURNAL.replace("{database}", database))
        check_replicated(client, database, tables, [], is_new=False)
        done = []
        for migration in pending(files, applied_migrations(client, database), database):
            for statement in migration.statements(database):
                run_statement(client, statement)
            command(
                client,
                f"INSERT INTO {database}.schema_migrations (version, name, checksum) "
                "SELECT {v:UInt32}, {n:String}, {c:String}",
                {"v": migration.version, "n": migration.name, "c": migration.checksum},
                settings={"async_insert": 0, "insert_deduplication_token": f"migration-{migration.version}"},
            )
            done.append(f"{migration.version:04d}_{migration.name}")
        for text, statement in _changes(client, settings, tables):
            run_statement(client, statement, settings={"materialize_ttl_after_modify": 0, "alter_sync": 1})
            done.append(text)
        if names := rename(client, database):
            done.append(f"{names} kernel names by the current rules")
    if plain := plain_tables(client, database, tables):
        log.warning("tables are not replicated, as others are", database=database, tables=plain)
    return done


def _changes(client: Client, settings: Settings, tables: Collection[str]) -> list[tuple[str, str]]:
    """Return (description, statement) for what differs from the settings, what exactly-once needs, costs, comments."""
    database = settings.clickhouse.database
    changes = retention_changes(client, settings) + token_changes(client, database, tables)
    return changes + statistics_changes(client, database, tables) + comment_changes(client, database)
