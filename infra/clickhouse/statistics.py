"""Statistics of columns, which newer servers keep unasked.

They are a quarter of the CPU of merges, and keys, partitions and indexes already lead questions to their rows.
"""

from __future__ import annotations

from collections.abc import Collection

from drumline.infra.clickhouse.client import Client, rows

SETTING = "auto_statistics_types"


def statistics_changes(client: Client, database: str, tables: Collection[str]) -> list[tuple[str, str]]:
    """Return (description, statement) for every table of which merges keep statistics. Older servers keep none."""
    kept = rows(
        client,
        "SELECT name FROM system.tables WHERE database = {d:String} AND name IN {names:Array(String)} "
        "AND engine LIKE '%MergeTree' AND position(engine_full, {setting:String}) = 0 "
        "AND {setting:String} IN (SELECT name FROM system.merge_tree_settings WHERE value != '') ORDER BY name",
        {"d": database, "names": sorted(tables), "setting": SETTING},
    )
    change = f"ALTER TABLE {database}.{{}} MODIFY SETTING {SETTING} = ''"
    return [(f"{row['name']}: no statistics", change.format(row["name"])) for row in kept]
