"""Parts that all samples of an agent have in common: envelope, sequence, readings in bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from drumline.schemas.bounds import bounds
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Stands for a reading that there is not.
UNKNOWN = -1


class SampleEnvelopes:
    """Makes the envelopes of one host's samples, with sequences per key under the agent's process id."""

    def __init__(self, process_id: str, host: str = "") -> None:
        self._process_id, self.host = process_id, host
        self._sequence: Counter[str] = Counter()

    def envelope(self, key: str, process: Mapping[str, Any], time_ns: int, rows: int = 1) -> dict[str, Any]:
        """Return the next envelope of a key. `process`: fields of a gpu.process.v1 record; {} of no process."""
        sequence = self._sequence[key]
        self._sequence[key] += 1
        return {
            "job": str(process.get("job", "")),
            "run": str(process.get("run", "")),
            "rank": int(process.get("rank", -1)),
            "local_rank": int(process.get("local_rank", -1)),
            "world_size": int(process.get("world_size", 0)),
            "host": str(process.get("host", "")) or self.host,
            "gpu_uuid": str(process.get("gpu_uuid", "")),
            "process_id": self._process_id,
            "sequence": sequence,
            "rows": rows,
            "base_time_ns": time_ns,
            "watermark_ns": time_ns,
            "sent_ns": time_ns,
        }


def readings(topic: Topic, row: Mapping[str, float]) -> dict[str, Array]:
    """Return the columns of one row: UNKNOWN where it has no reading, or one outside the bounds of the contract.

    Drivers use the largest number for "none".
    """
    limits, columns = bounds(topic), {}
    for column in model(topic).columns:
        value = row.get(column.name, UNKNOWN)
        inside = limits[column.name].low <= value <= limits[column.name].high
        columns[column.name] = np.array([value if inside else UNKNOWN], column.dtype)
    return columns
