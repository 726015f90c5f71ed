"""Rows of one run in ClickHouse, beside the published ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Takes SQL and parameters, returns rows as dicts.
RunQuery = Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]

#: Raw topic -> table with its rows. ClickHouse keeps only the newest rows of gpu.progress.v1, so it is not counted.
STORED = {
    "gpu.process.v1": "processes",
    "gpu.kernel.v1": "kernels",
    "gpu.memcpy.v1": "memcpys",
    "gpu.collective.v1": "collectives",
    "gpu.step.v1": "steps",
    "gpu.range.v1": "ranges",
    "gpu.device.v1": "device_samples",
    "gpu.host.v1": "host_samples",
    "gpu.network.v1": "network_samples",
    "gpu.check.v1": "checks",
    "gpu.stack.v1": "stacks",
    "gpu.launch.v1": "launches",
    "gpu.stall.v1": "stalls",
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
