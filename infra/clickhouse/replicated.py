"""Migrations of tables that a user made replicated (ReplicatedMergeTree): what must be so before, and what follows.

Keeper carries changes of columns and of retention to all replicas, where a repetition changes nothing. Views, settings
and the journal are each server's own, so each server is migrated. New tables are plain ones.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable
from typing import Any

from drumline.infra.clickhouse.client import ClickHouseFailed, Client, command, rows
from drumline.infra.clickhouse.error_codes import ErrorCode
from drumline.infra.clickhouse.migration_lock import MigrationConflict

JOURNAL = "schema_migrations"
#: How many tokens a table remembers, as the migrations have it for plain ones, and for how long: as long as Kafka keeps
#: most topics; s. ClickHouse's own limits are 10,000 and an hour.
TOKENS, TOKENS_S = 100_000, 604_800
#: How long another replica's change of a table may take to arrive; s. Until then this replica refuses the next one.
ARRIVES_S = 60.0
_REPLACED = re.compile(r"CREATE OR REPLACE TABLE \w+\.(\w+)")


def check_replicated(
    client: Client, database: str, tables: Collection[str], statements: Iterable[str], is_new: bool
) -> None:
    """Raise MigrationConflict where the migrations would end half-way.

    `tables`: those that migrations make; others in the database are the user's. `statements`: what is to be run.
    `is_new`: no migration is applied here.
    """
    replicated = _replicated(client, database, tables)
    if not replicated:
        return
    if JOURNAL in replicated and not _shares_statements(client, database):
        journal = f"{database}.{JOURNAL}"
        raise MigrationConflict(
            f"{journal} is replicated, but views and new tables are not: each server needs a journal of its own. "
            f"DETACH TABLE {journal}; ATTACH TABLE {journal} AS NOT REPLICATED; on each. A server that makes every "
            "table replicated cannot be migrated"
        )
    if is_new:
        raise MigrationConflict(
            f"{database} has replicated tables and an empty {JOURNAL}: make all tables and views as on the replica "
            f"that was migrated, and insert the rows of its {JOURNAL}"
        )
    for name in (created[1] for text in statements if (created := _REPLACED.match(text))):
        if name in replicated:
            table = f"{database}.{name}"
            raise MigrationConflict(
                f"{table} is to be re-created, which a replicated table cannot be. On each server: "
                f"DETACH TABLE {table}; ATTACH TABLE {table} AS NOT REPLICATED; and SYSTEM DROP REPLICA for it"
            )
    unwritable = rows(
        client,
        "SELECT table FROM system.replicas "
        "WHERE database = {d:String} AND table IN {names:Array(String)} AND is_readonly ORDER BY table",
        {"d": database, "names": sorted(tables)},
    )
    if unwritable:
        names = ", ".join(str(row["table"]) for row in unwritable)
        raise MigrationConflict(
            f"read-only: {names}. The server has no session with Keeper, or Keeper knows nothing of the tables: "
            f"SYSTEM RESTORE REPLICA {database}.TABLE after ATTACH ... AS REPLICATED"
        )


def run_statement(client: Client, statement: str, **options: Any) -> None:
    """Run a statement of a migration, once another replica's change of the table is here.

    Raises TransientError or PermanentError.
    """
    until = time.monotonic() + ARRIVES_S
    while True:
        try:
            command(client, statement, **options)
            return
        except ClickHouseFailed as error:
            if error.code != ErrorCode.CANNOT_ASSIGN_ALTER or time.monotonic() > until:
                raise
        time.sleep(0.2)


def token_changes(client: Client, database: str, tables: Collection[str]) -> list[tuple[str, str]]:
    """Return (description, statement) for every replicated table that forgets tokens too soon."""
    out = []
    for name, engine in _replicated(client, database, tables).items():
        limits = {"replicated_deduplication_window": TOKENS, "replicated_deduplication_window_seconds": TOKENS_S}
        low = [f"{limit} = {least}" for limit, least in limits.items() if _setting(engine, limit) < least]
        if low:
            change = f"ALTER TABLE {database}.{name} MODIFY SETTING {', '.join(low)}"
            out.append((f"{name}: remember {TOKENS} tokens for {TOKENS_S // 86_400} days", change))
    return out


def plain_tables(client: Client, database: str, tables: Collection[str]) -> list[str]:
    """Return the tables that are not replicated, where others are: new ones, as a rule."""
    plain = {name: not engine.startswith("Replicated") for name, engine in _engines(client, database, tables).items()}
    return [] if all(plain.values()) else [name for name in plain if plain[name] and name != JOURNAL]


def _engines(client: Client, database: str, tables: Collection[str]) -> dict[str, str]:
    """Return table -> engine with arguments and settings, of tables that keep rows."""
    kept = rows(
        client,
        "SELECT name, engine_full FROM system.tables WHERE database = {d:String} AND name IN {names:Array(String)} "
        "AND engine LIKE '%MergeTree' ORDER BY name",
        {"d": database, "names": sorted(tables)},
    )
    return {str(row["name"]): str(row["engine_full"]) for row in kept}


def _replicated(client: Client, database: str, tables: Collection[str]) -> dict[str, str]:
    """Return those of `_engines` that are replicated."""
    engines = _engines(client, database, tables)
    return {name: engine for name, engine in engines.items() if engine.startswith("Replicated")}


def _setting(engine: str, name: str) -> int:
    matched = re.search(rf"\b{name} = (\d+)", engine)
    return int(matched[1]) if matched else 0


def _shares_statements(client: Client, database: str) -> bool:
    """Return whether the database itself runs each statement on all replicas; then a journal for all is right."""
    [answer] = rows(client, "SELECT engine FROM system.databases WHERE name = {d:String}", {"d": database})
    return str(answer["engine"]) == "Replicated"
