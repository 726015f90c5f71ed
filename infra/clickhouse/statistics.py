"""Statistics of columns, which newer servers keep unasked.

They are a quarter of the CPU of merges, and keys, partitions and indexes already lead questions to their rows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import structlog

from drumline.infra.clickhouse.client import Client, PermanentError, rows
from drumline.infra.clickhouse.error_codes import ErrorCode

SETTING = "auto_statistics_types"
log = structlog.get_logger()


def statistics_changes(client: Client, database: str, tables: Collection[str]) -> list[tuple[str, str]]:
    """Return (description, statement) for every table of which merges keep statistics. Older servers keep none.

    A user who may not read the server's settings gets a warning: statistics cost CPU and nothing else.
    """
    try:
        kept = _kept(client, database, tables)
    except PermanentError as error:
        if error.code != ErrorCode.ACCESS_DENIED:
            raise
        log.warning("merges keep statistics of columns, at a quarter of their CPU: run drumline roles apply, or grant "
                    "SELECT ON system.merge_tree_settings, and migrate again", database=database)  # fmt: skip
        return []
    change = f"ALTER TABLE {database}.{{}} MODIFY SETTING {SETTING} = ''"
    return [(f"{row['name']}: no statistics", change.format(row["name"])) for row in kept]


def _kept(client: Client, database: str, tables: Collection[str]) -> list[dict[str, Any]]:
    return rows(
        client,
        "SELECT name FROM system.tables WHERE database = {d:String} AND name IN {names:Array(String)} "
        "AND engine LIKE '%MergeTree' AND position(engine_full, {setting:String}) = 0 "
        "AND {setting:String} IN (SELECT name FROM system.merge_tree_settings WHERE value != '') ORDER BY name",
        {"d": database, "names": sorted(tables), "setting": SETTING},
    )
