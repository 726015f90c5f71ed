"""Databases with all migrations for tests of other things: the final tables, without every step on the way to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.error_codes import NOT_MIGRATED
from drumline.infra.clickhouse.migrate import applied_migrations, migrate, migrations
from drumline.infra.config.settings import Settings
from drumline.infra.localstack.clickhouse.engine import temporary_engine
from drumline.infra.localstack.ephemeral import ephemeral_settings

#: (retention, tiers) -> statements of the first such database, in an order in which they succeed on any server.
_STATEMENTS: dict[tuple[str, str], list[str]] = {}
_PLACEHOLDER = "{database}."
#: What follows the database's name in a table's name never looks so: a database may be called gpu, as topics begin.
_TOPIC = r"[\w-]+\.v\d"


@contextmanager
def served(state: Path) -> Iterator[clickhouse.Client]:
    """Run an engine of its own with all tables, inside the block; yields a client of its database."""
    settings = ephemeral_settings(state)
    with temporary_engine(settings):
        create(settings)
        yield clickhouse.connect(settings, database=settings.clickhouse.database)


def create(settings: Settings) -> None:
    """Create the database of these settings, as `migrate` would. The first of a process is migrated, later ones copy
    its statements, on any server: a quarter of the work. All are new: no deduplication window has seen another test.

    Nothing is copied over a database that is migrated.
    """
    target, client = settings.clickhouse, clickhouse.connect(settings)
    key = (target.retention.model_dump_json(), target.tiering.model_dump_json())
    if applied_migrations(client, target.database):
        migrate(client, settings)  # as after a restart
    elif key not in _STATEMENTS:
        migrate(client, settings)
        _STATEMENTS[key] = statements(client, target.database)
    else:
        clickhouse.command(client, f"CREATE DATABASE IF NOT EXISTS {target.database}")
        _STATEMENTS[key] = run(client, target.database, _STATEMENTS[key])
        values = ", ".join(f"({m.version}, '{m.name}', '{m.checksum}')" for m in migrations())
        into = f"INSERT INTO {target.database}.schema_migrations (version, name, checksum) VALUES {values}"
        clickhouse.command(client, into, settings={"async_insert": 0})
    client.close()


def statements(client: clickhouse.Client, database: str) -> list[str]:
    """Return what creates the database's tables, then its views, which read them. Views of views may come first."""
    sql = (
        "SELECT create_table_query AS statement FROM system.tables WHERE database = {d:String} "
        "ORDER BY engine LIKE '%View', name"
    )
    result = clickhouse.rows(client, sql, {"d": database})
    qualified = re.compile(rf"\b{re.escape(database)}\.(?!{_TOPIC})")
    return [qualified.sub(_PLACEHOLDER, str(row["statement"])) for row in result]


def run(client: clickhouse.Client, database: str, wanted: list[str]) -> list[str]:
    """Return the statements in the order in which they succeeded; one whose table is missing is tried again later."""
    done: list[str] = []
    while left := [statement for statement in wanted if statement not in done]:
        before = len(done)
        for statement in left:
            try:
                clickhouse.command(client, statement.replace(_PLACEHOLDER, f"{database}."))
                done.append(statement)
            except clickhouse.PermanentError as error:
                if error.code not in NOT_MIGRATED:
                    raise
                missing = error
        if len(done) == before:
            raise missing
    return done
