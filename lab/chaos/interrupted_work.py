"""Finds out which work was in flight at a kill, from what the killed program left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drumline.infra.clickhouse.client import Client, rows
from drumline.lab.chaos.progress import ProgressSnapshot
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.intent import Intent, read_metadata
from drumline.sinks.tables.tables import table

LEDGER = "topic_id = {t:String} AND partition = {n:UInt32} AND offset BETWEEN {a:UInt64} AND {b:UInt64}"
ROWS = "_topic_partition = {tp:String} AND _offset BETWEEN {a:UInt64} AND {b:UInt64}"


def pending(seen: ProgressSnapshot) -> list[tuple[Topic, Intent]]:
    """Return the ranges whose intents the sink had committed, and not marked as done."""
    intents = []
    for place, (offset, metadata) in seen.intents.items():
        topic, number = place.rsplit(":", 1)
        _, intent = read_metadata(metadata, int(number), offset)
        if intent is not None:
            intents.append((Topic(topic), intent))
    return intents


def of_sink(seen: ProgressSnapshot, client: Client | None, database: str) -> str:
    """Return the step of the commit protocol; without ClickHouse, only whether an intent was committed."""
    intents = pending(seen)
    if not intents:
        return "collecting" if seen.lag["sink"] else "idle"
    if client is None:
        return "intent committed"
    ledger = [_has_rows(client, f"{database}.ledger", LEDGER, intent) for _, intent in intents]
    if all(ledger):
        return "stored, not committed"
    tables = [_has_rows(client, f"{database}.{table(t).target}", ROWS, intent) for t, intent in intents if intent.rows]
    return "some ranges stored" if any(tables) or any(ledger) else "intent committed, nothing stored"


def _has_rows(client: Client, target: str, where: str, intent: Intent) -> bool:
    place = intent.range
    values = {"t": place.topic_id, "n": place.partition, "tp": place.topic_partition, "a": place.first, "b": place.last}
    return bool(rows(client, f"SELECT 1 FROM {target} WHERE {where} LIMIT 1", values))


def of_agent(spools: Sequence[Path]) -> str:
    """Return the state of the spools: a taken segment is one that the agent had begun to publish."""
    taken = sum(1 for spool in spools for _ in spool.glob("*.taken"))
    return "segments taken" if taken else "segments open" if spools else "idle"


def of_worker(status: Mapping[str, Any] | None) -> str:
    """Return the state in the status file, which is up to a second old."""
    if status is None:
        return "starting"
    if status["unsettled"]:
        return "records in flight" + (", windows open" if status["open"] else "")
    return "windows open" if status["open"] else "idle"
