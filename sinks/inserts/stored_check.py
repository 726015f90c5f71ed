"""What a table has of a range already: asked before an insert that may have been made long ago.

A table forgets a token some inserts later, so the token alone is not enough then; and the answer alone never is: an
insert of a sink that died may still be on its way, or the engine died before it had filled what is filled from the
table. So: insert with the token, unless all is there and the token may be forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline.infra.clickhouse.client import Client, rows

#: Later inserts after which a token may be forgotten: 0.9 of `non_replicated_deduplication_window` in the migrations,
#: since others insert between the question and the insert.
REMEMBERED = 90_000
#: Nobody asks for a range announced less than so many seconds ago: so many inserts (3,000/s) are not made in that time.
LONG_AGO_S = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """`rows` that are there; `later`: parts inserted after them, or more: what is merged has the age of its oldest."""

    rows: int
    later: int

    def done(self, wanted: int) -> bool:
        """All `wanted` rows are there since so long that their token may be forgotten: another insert could double
        them, and can mend nothing that was not mended long ago."""
        return self.rows >= max(wanted, 1) and self.later >= REMEMBERED


def look(client: Client, table: str, condition: str, parameters: Mapping[str, Any]) -> Found:
    """Ask `table` (database.table, `Distributed` ones too) for the rows that meet `condition` (SQL). Parts are named
    partition_first_last_level; first and last count the inserts into the table.
    Raises TransientError or PermanentError."""
    mine = rows(
        client,
        "SELECT shardNum() AS shard, count() AS n, min(toInt64(splitByChar('_', _part)[2])) AS block "
        f"FROM {table} WHERE {condition} GROUP BY shard",
        parameters,
    )
    if not mine:
        return Found(0, 0)
    newest = rows(
        client,
        "SELECT shardNum() AS shard, max(toInt64(splitByChar('_', _part)[3])) AS block "
        f"FROM {table} WHERE _part_offset = 0 GROUP BY shard",
    )
    last = {int(row["shard"]): int(row["block"]) for row in newest}
    later = max(last[int(row["shard"])] - int(row["block"]) for row in mine)
    return Found(sum(int(row["n"]) for row in mine), later)
