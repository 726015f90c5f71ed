"""What a kill interrupted, from what it left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drumline.infra.chaos.progress import Snapshot
from drumline.infra.clickhouse.client import Client, rows
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.intent import Intent, read_metadata
from drumline.sinks.tables.tables import table

LEDGER = "topic_id = {t:String} AND partition = {n:UInt32} AND offset BETWEEN {a:UInt64} AND {b:UInt64}"
ROWS = "_topic_partition = {tp:String} AND _offset BETWEEN {a:UInt64} AND {b:UInt64}"


def pending(seen: Snapshot) -> list[tuple[Topic, Intent]]:
    """Ranges that the sink had announced and not committed as done."""
    found = []
    for place, (offset, metadata) in seen.intents.items():
        topic, number = place.rsplit(":", 1)
        _, intent = read_metadata(metadata, int(number), offset)
        if intent is not None:
            found.append((Topic(topic), intent))
    return found


def of_sink(seen: Snapshot, client: Client | None, database: str) -> str:
    """Where in the protocol it was; without ClickHouse, whether anything was announced."""
    announced = pending(seen)
    if not announced:
        return "collecting" if seen.lag["sink"] else "idle"
    if client is None:
        return "announced"
    ledger = [_there(client, f"{database}.ledger", LEDGER, intent) for _, intent in announced]
    if all(ledger):
        return "stored, not committed"
    tables = [_there(client, f"{database}.{table(t).target}", ROWS, intent) for t, intent in announced if intent.rows]
    return "some ranges stored" if any(tables) or any(ledger) else "announced, nothing stored"


def _there(client: Client, target: str, where: str, intent: Intent) -> bool:
    place = intent.range
    named = {"t": place.topic_id, "n": place.partition, "tp": place.topic_partition, "a": place.first, "b": place.last}
    return bool(rows(client, f"SELECT 1 FROM {target} WHERE {where} LIMIT 1", named))


def of_agent(spools: Sequence[Path]) -> str:
    """From the spool: a taken segment is one that it had begun to publish, and not seen through."""
    taken = sum(1 for spool in spools for _ in spool.glob("*.taken"))
    return "segments taken" if taken else "segments open" if spools else "idle"


def of_worker(status: Mapping[str, Any] | None) -> str:
    """From its status file, which is up to a second old."""
    if status is None:
        return "starting"
    if status["unsettled"]:
        return "records in flight" + (", windows open" if status["open"] else "")
    return "windows open" if status["open"] else "idle"
