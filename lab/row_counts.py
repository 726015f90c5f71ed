"""Rows of one run in ClickHouse, beside the published ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drumline.schemas.topics import Topic

#: Takes SQL and parameters, returns rows as dicts.
RunQuery = Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]

#: Raw topic -> table with its rows. ClickHouse keeps only the newest rows of gpu.progress.v1, so it is not counted.
STORED: dict[str, str] = {
    Topic.PROCESS: "processes",
    Topic.KERNEL: "kernels",
    Topic.MEMCPY: "memcpys",
    Topic.COLLECTIVE: "collectives",
    Topic.STEP: "steps",
    Topic.RANGE: "ranges",
    Topic.DEVICE: "device_samples",
    Topic.HOST: "host_samples",
    Topic.NETWORK: "network_samples",
    Topic.CHECK: "checks",
    Topic.TRANSFER: "transfers",
    Topic.STACK: "stacks",
    Topic.LAUNCH: "launches",
    Topic.LAUNCH_COUNT: "launch_counts",
    Topic.STALL: "stalls",
    Topic.ITERATION: "iterations",
    Topic.REQUEST: "requests",
}


@dataclass(frozen=True)
class StoredCount:
    """Rows of one topic: what the broker acknowledged and what ClickHouse holds."""

    topic: str
    published: int
    stored: int


def counts(query: RunQuery, run: str, published: Mapping[str, int]) -> list[StoredCount]:
    """Return published and stored rows of each topic of STORED."""
    result = []
    for topic, rows in published.items():
        if topic not in STORED:
            continue
        sql = f"SELECT count() AS n FROM {STORED[topic]} WHERE run = {{run:String}}"
        result.append(StoredCount(topic, rows, int(query(sql, {"run": run})[0]["n"])))
    return result
