"""Parts that all samples of an agent have in common: envelope, sequence, readings in bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drumline.schemas.batch import dictionary
from drumline.schemas.bounds.limits import bounds
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


def in_bounds(topic: Topic, row: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers of a row: UNKNOWN where it has no reading, or one outside the bounds of the contract.

    Drivers use the largest number for "none".
    """
    limits, numbers = bounds(topic), {}
    for column in model(topic).columns:
        if not column.dictionary:
            value, limit = row.get(column.name, UNKNOWN), limits[column.name]
            numbers[column.name] = value if limit.low <= value <= limit.high else UNKNOWN
    return numbers


def encoded(topic: Topic, rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Array], dict[str, list[str]]]:
    """Return the columns of rows, and the dictionaries of those of words. Each row has all columns."""
    columns: dict[str, Array] = {}
    dictionaries: dict[str, list[str]] = {}
    for column in model(topic).columns:
        values = [row[column.name] for row in rows]
        if column.dictionary:
            dictionaries[column.dictionary], values = dictionary(values)
        columns[column.name] = np.array(values, column.dtype)
    return columns, dictionaries


def readings(topic: Topic, row: Mapping[str, float]) -> dict[str, Array]:
    """Return the columns of one row of numbers, see `in_bounds`."""
    return encoded(topic, [in_bounds(topic, row)])[0]
