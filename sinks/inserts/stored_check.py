"""Find the rows of a range that a table already has, before an insert that may have been made long ago.

A table forgets a token some inserts later, so the token is not enough then. The query is never enough: an insert of a
sink that died may still be in flight, or the server died before it filled the rollups. So a range is inserted with its
token, unless all rows are stored and the token may be forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline.infra.clickhouse.client import Client, rows

#: Later inserts after which a token may be forgotten: 0.9 of `non_replicated_deduplication_window` in the migrations,
#: since other sinks insert between the query and the insert.
REMEMBERED = 90_000
#: A range is not checked in the first seconds after its intent's commit: so many inserts (3,000/s) take longer.
LONG_AGO_S = 30.0


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Counts the stored rows of a range.

    `rows`: rows in the table. `later`: parts inserted after them, or more: a merged part has the age of its oldest.
    """

    rows: int
    later: int

    def done(self, wanted: int) -> bool:
        """Return True if all `wanted` rows are stored for so long that their token may be forgotten.

        Another insert could then double them, and could not complete anything.
        """
        return self.rows >= max(wanted, 1) and self.later >= REMEMBERED


def find_stored(client: Client, table: str, condition: str, parameters: Mapping[str, Any]) -> StoredRows:
    """Query `table` (database.table, `Distributed` ones too) for the rows that meet `condition` (SQL).

    Parts are named partition_first_last_level; first and last count the inserts into the table. Blocks. Retry later:
    TransientError. Fatal: PermanentError.
    """
    parts = rows(
        client,
        "SELECT shardNum() AS shard, count() AS n, min(toInt64(splitByChar('_', _part)[2])) AS block "
        f"FROM {table} WHERE {condition} GROUP BY shard",
        parameters,
    )
    if not parts:
        return StoredRows(0, 0)
    newest = rows(
        client,
        "SELECT shardNum() AS shard, max(toInt64(splitByChar('_', _part)[3])) AS block "
        f"FROM {table} WHERE _part_offset = 0 GROUP BY shard",
    )
    last = {int(row["shard"]): int(row["block"]) for row in newest}
    later = max(last[int(row["shard"])] - int(row["block"]) for row in parts)
    return StoredRows(sum(int(row["n"]) for row in parts), later)
