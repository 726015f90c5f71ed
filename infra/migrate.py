"""Numbered, checksummed SQL migrations, immutable from the first release on, and the retention that settings ask for.

A file is NNNN_name.sql; a statement ends with `;` at the end of a line; {database} is the one placeholder. Statements
are written so that a run that was cut off can be repeated. The checksum is of the file's text.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from drumline.infra.clickhouse import ClickHouseFailed, Client, command, rows
from drumline.infra.kernel_names_table import rename
from drumline.infra.settings import Settings

FOLDER = resources.files("drumline.infra") / "migrations"
_FILE = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
LOCK_STALE_S = 600
TABLE_EXISTS = 57

_JOURNAL = """CREATE TABLE IF NOT EXISTS {database}.schema_migrations
(version UInt32, name String, checksum String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3))
ENGINE = MergeTree ORDER BY version
SETTINGS non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1"""

#: table -> the column that retention counts from.
RETENTION_CLOCK = {
    "kernels": "start", "memcpys": "start", "collectives": "start", "ranges": "start", "steps": "start",
    "device_samples": "time", "kernel_frequency_versions": "window_start", "memcpy_bandwidth_versions": "window_start",
    "lateness_versions": "published", "stragglers_versions": "published", "processes_versions": "published",
    "ledger": "published", "ranks_per_second": "second", "kernels_per_minute": "minute", "memcpys_per_minute": "minute",
    "devices_per_minute": "minute", "records_per_minute": "minute",
}  # fmt: skip

#: Tables whose old rows may move to a cheaper volume: the large ones.
TIERED = frozenset({"kernels", "memcpys", "collectives", "ranges", "device_samples"})


class MigrationConflict(RuntimeError):
    """What is applied is not what the files say, or somebody else migrates. The message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self, database: str) -> list[str]:
        """The statements, in order, without comment lines."""
        lines = [line for line in self.text.splitlines() if not line.lstrip().startswith("--")]
        parts = re.split(r";[ \t]*(?:\n|$)", "\n".join(lines))
        return [part.strip().replace("{database}", database) for part in parts if part.strip()]


def migrations(folder: Traversable = FOLDER) -> list[Migration]:
    """All of them by version. Raises ValueError on a misnamed file or a number used twice or left out."""
    found = []
    for path in folder.iterdir():
        if path.name.endswith(".sql"):
            match = _FILE.match(path.name)
            if not match:
                raise ValueError(f"{path.name}: migrations are named NNNN_name.sql")
            found.append(Migration(int(match[1]), match[2], path.read_text()))
    found.sort(key=lambda migration: migration.version)
    if [m.version for m in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations are numbered 1, 2, 3, ...; found {[m.version for m in found]}")
    return found


def pending(files: list[Migration], applied: dict[int, str]) -> list[Migration]:
    """Those to apply; `applied`: version -> checksum. Raises MigrationConflict."""
    known = {migration.version: migration for migration in files}
    for version, checksum in applied.items():
        if version not in known:
            raise MigrationConflict(
                f"migration {version:04d} is applied but not among the files: this database belongs to a newer drumline"
            )
        if known[version].checksum != checksum:
            raise MigrationConflict(
                f"migration {version:04d}_{known[version].name}.sql changed after it was applied; "
                "restore it and write a new one"
            )
    return [migration for migration in files if migration.version not in applied]


def applied_versions(client: Client, database: str) -> dict[int, str]:
    """version -> checksum; empty where nothing is migrated yet."""
    exists = rows(
        client,
        "SELECT 1 FROM system.tables WHERE database = {d:String} AND name = 'schema_migrations'",
        {"d": database},
    )
    if not exists:
        return {}
    found = rows(client, f"SELECT version, checksum FROM {database}.schema_migrations ORDER BY applied_at")
    return {int(row["version"]): str(row["checksum"]) for row in found}


def migrate(client: Client, settings: Settings, *, dry_run: bool = False) -> list[str]:
    """Apply what is missing; what was (or would be) done, in words. Raises MigrationConflict, Refused, Unavailable."""
    database = settings.clickhouse.database
    files = migrations()
    todo = pending(files, applied_versions(client, database))
    if dry_run:
        return [f"{m.version:04d}_{m.name}" for m in todo] + [text for text, _ in _retention(client, settings)]
    command(client, f"CREATE DATABASE IF NOT EXISTS {database}")
    with _Lock(client, database):
        command(client, _JOURNAL.replace("{database}", database))
        done = []
        for migration in pending(files, applied_versions(client, database)):
            for statement in migration.statements(database):
                command(client, statement)
            command(
                client,
                f"INSERT INTO {database}.schema_migrations (version, name, checksum) "
                "SELECT {v:UInt32}, {n:String}, {c:String}",
                {"v": migration.version, "n": migration.name, "c": migration.checksum},
                settings={"async_insert": 0, "insert_deduplication_token": f"migration-{migration.version}"},
            )
            done.append(f"{migration.version:04d}_{migration.name}")
        for text, statement in _retention(client, settings):
            command(client, statement, settings={"materialize_ttl_after_modify": 0, "alter_sync": 1})
            done.append(text)
        if names := rename(client, database):
            done.append(f"{names} kernel names by the rules of today")
    return done


def _retention(client: Client, settings: Settings) -> list[tuple[str, str]]:
    """(words, statement) for every table whose retention or tiers differ from the settings'."""
    database, tiers = settings.clickhouse.database, settings.clickhouse.tiering
    found = rows(
        client,
        "SELECT name, extract(engine_full, ' TTL (.*?)( SETTINGS |$)') AS ttl, storage_policy AS policy "
        "FROM system.tables WHERE database = {d:String}",
        {"d": database},
    )
    now = {str(row["name"]): row for row in found}
    out = []
    for table, clock in RETENTION_CLOCK.items():
        if table not in now:
            continue
        name, days = f"{database}.{table}", getattr(settings.clickhouse.retention, table.removesuffix("_versions"))
        tiered = bool(tiers.storage_policy) and table in TIERED and not 0 < days <= tiers.after
        rules = [f"toDateTime({clock}) + toIntervalDay({tiers.after}) TO VOLUME '{tiers.volume}'"] * tiered
        rules += [f"toDateTime({clock}) + toIntervalDay({days})"] * bool(days)
        if tiered and now[table]["policy"] != tiers.storage_policy:
            change = f"ALTER TABLE {name} MODIFY SETTING storage_policy = '{tiers.storage_policy}'"
            out.append((f"{table}: storage policy {tiers.storage_policy}", change))
        if now[table]["ttl"] == ", ".join(rules):
            continue
        words = f"keep {days} days" if days else "keep for ever"
        words += f", on volume {tiers.volume} after {tiers.after}" if tiered else ""
        change = f"MODIFY TTL {', '.join(rules)}" if rules else "REMOVE TTL"
        out.append((f"{table}: {words}", f"ALTER TABLE {name} {change}"))
    return out


class _Lock:
    """One migration at a time: CREATE TABLE without IF NOT EXISTS succeeds for one of two. No Keeper needed, and so no
    lease: a lock older than LOCK_STALE_S, or of a dead process of this host, is taken over."""

    def __init__(self, client: Client, database: str, wait_s: float = 60.0) -> None:
        self._client, self._database, self._wait_s = client, database, wait_s
        self._name = f"{database}.schema_migrations_lock"
        self._me = f"{socket.gethostname()}:{os.getpid()}"

    def __enter__(self) -> None:
        until = time.monotonic() + self._wait_s
        while not self._create(self._name):
            other, age, uuid = self._holder()
            if time.monotonic() > until:
                raise MigrationConflict(f"{other} migrates for {age:.0f} s; if it is gone: DROP TABLE {self._name}")
            if other and (age > LOCK_STALE_S or _dead(other)):
                self._take_over(uuid)
            else:
                time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        command(self._client, f"DROP TABLE IF EXISTS {self._name} SYNC")

    def _create(self, name: str) -> bool:
        try:
            command(self._client, f"CREATE TABLE {name} (x UInt8) ENGINE = Memory COMMENT '{self._me}'")
        except ClickHouseFailed as error:
            if error.code == TABLE_EXISTS:
                return False
            raise
        return True

    def _take_over(self, uuid: str) -> None:
        """Drop the stale lock with this uuid and no other: of several that found it, one holds its marker, and looks
        again before it drops."""
        marker = f"{self._name}_stale_{uuid.replace('-', '')}"
        if not self._create(marker):
            time.sleep(0.2)
            return
        if self._holder()[2] == uuid:
            command(self._client, f"DROP TABLE IF EXISTS {self._name} SYNC")
        command(self._client, f"DROP TABLE IF EXISTS {marker} SYNC")

    def _holder(self) -> tuple[str, float, str]:
        """(host:pid, age in s, uuid) of the lock; empty if nobody has it."""
        found = rows(
            self._client,
            "SELECT comment, dateDiff('second', metadata_modification_time, now()) AS age, toString(uuid) AS uuid "
            "FROM system.tables WHERE database = {d:String} AND name = 'schema_migrations_lock'",
            {"d": self._database},
        )
        return (str(found[0]["comment"]), float(found[0]["age"]), str(found[0]["uuid"])) if found else ("", 0.0, "")


def _dead(holder: str) -> bool:
    host, _, pid = holder.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
