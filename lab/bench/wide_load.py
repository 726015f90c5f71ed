"""Stores a job of many ranks in a real engine: the recorded ranks, again and again under other numbers and hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from drumline.infra.clickhouse.client import INSERT_SETTINGS, Client, command, rows
from drumline.lab.bench.direct_load import Repetition, moved
from drumline.schemas.topics import Topic

#: Ranks were recorded with a batch a second; those of a large job send one in so many, with as many rows.
JOINED_S = 4
#: What a job without CUPTI has of each rank, and the rollups of kernels, for dashboards; other rollups fill themselves.
#: Table -> condition on the recorded rows; the largest ones have a few steps only.
TABLES = {
    "steps": "1",
    "device_samples": "1",
    "host_samples": "1",
    "collectives": "step BETWEEN 8 AND 11",
    "lateness_versions": "step BETWEEN 8 AND 47",
    "stragglers_versions": "1",
    "processes_versions": "1",
    "ledger": f"topic NOT IN ('{Topic.KERNEL}', '{Topic.MEMCPY}', '{Topic.RANGE}') AND sequence % {JOINED_S} = 0",
    "ranks_per_second": "1",
    "kernels_per_minute": "1",
    "memcpys_per_minute": "1",
}
#: CUPTI records so many copies of the recorded ranks only, as deep windows do: sketches of all of them are gigabytes.
RECORDED = {"kernels_per_minute": 128, "memcpys_per_minute": 128}
#: Copies of the recorded ranks in one insert, and rows that are read at once: their product is in memory. Rows of a
#: block that is written: the engine gathers them up to a million, and views compute on as many, more than it may hold.
CHUNK, BLOCK, WRITTEN = 128, 512, 65_536
#: Of inserts. A thread has blocks in memory: two, however many cores the machine has.
SETTINGS = INSERT_SETTINGS | {
    "insert_deduplicate": 0,
    "max_threads": 2,
    "max_block_size": BLOCK,
    "min_insert_block_size_rows": WRITTEN,
    "min_insert_block_size_bytes": 0,
}


def widen(
    client: Client, database: str, copies: Repetition, recorded: int, ranks: int, progress: Callable[[str], None]
) -> None:
    """Store the `recorded` ranks of the job `copies.source` as `ranks` ranks of `copies.job`, each repetition later.

    Rows about the whole job (rank -1) are stored once. Raises the error of an insert.
    """
    inserts = [*_inserts(client, database, copies, recorded, ranks)]
    for number, (name, sql) in enumerate(inserts, 1):
        progress(f"load: insert {number:,} of {len(inserts):,}, {name}")
        command(client, sql, {"source": copies.source}, settings=SETTINGS)


def _inserts(client: Client, database: str, copies: Repetition, recorded: int, ranks: int) -> Iterator[tuple[str, str]]:
    """Yield (table, statement)."""
    for name, where in TABLES.items():
        columns = rows(
            client,
            "SELECT name, type FROM system.columns WHERE database = {d:String} AND table = {t:String} "
            "AND default_kind = ''",
            {"d": database, "t": name},
        )
        names = ", ".join(str(row["name"]) for row in columns)
        for number in range(1 if name == "processes_versions" else copies.times):
            shown = ", ".join(
                _wider(name, str(row["name"]), str(row["type"]), copies, number, recorded) for row in columns
            )
            count = min(ranks // recorded, RECORDED.get(name, ranks))
            for first in range(0, count, CHUNK):
                yield (
                    name,
                    f"INSERT INTO {database}.{name} ({names}) SELECT {shown} FROM (SELECT *, "
                    f"arrayJoin(range({first}, {min(first + CHUNK, count)})) AS n FROM {database}.{name} "
                    f"WHERE job = {{source:String}} AND {where}) AS r WHERE r.rank >= 0 OR n = 0",
                )


def _wider(table: str, name: str, kind: str, copies: Repetition, number: int, recorded: int) -> str:
    if (table, name) == ("ledger", "rows"):
        return f"r.rows * {JOINED_S}"
    if name == "rank":
        return f"if(r.rank < 0, r.rank, r.rank + {recorded} * n)"
    if name in ("host", "gpu_uuid", "process_id"):
        return f"if(r.rank < 0 OR r.{name} = '', r.{name}, concat(r.{name}, '-', toString(n)))"
    return moved(name, kind, copies.job, number * copies.period_ns, number * copies.steps, 0)
