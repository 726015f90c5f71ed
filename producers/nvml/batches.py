"""Samples of GPUs as batches of gpu.device.v1: one for each job on the GPU, or one under the GPU's UUID."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from drumline.producers.nvml.samples import UNKNOWN
from drumline.schemas.batch import Batch
from drumline.schemas.bounds import bounds
from drumline.schemas.model import model
from drumline.schemas.topics import Topic


def jobs_on(
    uuid: str, pids: Collection[int], host: str, processes: Iterable[Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return for each job on this GPU the process that represents it: of its newest run, the one with the lowest rank.

    `processes`: envelopes of gpu.process.v1 of this host. One without a GPU UUID (yet) is found by its pid.
    """
    chosen: dict[str, Mapping[str, Any]] = {}
    for process in processes:
        known_uuid = str(process.get("gpu_uuid", ""))
        on_gpu = known_uuid == uuid if known_uuid else process.get("host") == host and process.get("pid") in pids
        if not on_gpu or not process.get("job"):
            continue
        job = str(process["job"])
        best = chosen.get(job)
        if best is None or _newer(process, best):
            chosen[job] = process
    return chosen


def _newer(process: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if process.get("run") == other.get("run"):
        return int(process.get("rank", -1)) < int(other.get("rank", -1))
    return int(process.get("start_ns", 0)) > int(other.get("start_ns", 0))


def _bounded(name: str, value: int) -> int:
    """Return a reading, or UNKNOWN outside the bounds of the contract: drivers use the largest number for "none"."""
    limits = bounds(Topic.DEVICE)[name]
    return value if limits.low <= value <= limits.high else UNKNOWN


class DeviceBatches:
    """Makes the batches of one host's samples, with sequences per key under the agent's process id."""

    def __init__(self, process_id: str, host: str) -> None:
        self._process_id, self.host = process_id, host
        self._sequence: Counter[str] = Counter()

    def batches(
        self, uuid: str, index: int, row: Mapping[str, int], jobs: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[str, Batch]]:
        """Yield (key, batch) of one sample; `row` has every column of the schema."""
        for job, process in (jobs or {"": {}}).items():
            key = job or uuid
            now_ns = row["time_ns"]
            envelope = {
                "job": job,
                "run": str(process.get("run", "")),
                "rank": int(process.get("rank", -1)),
                "local_rank": int(process.get("local_rank", -1)),
                "world_size": int(process.get("world_size", 0)),
                "host": str(process.get("host", "")) or self.host,
                "gpu_uuid": uuid,
                "process_id": self._process_id,
                "sequence": self._sequence[key],
                "rows": 1,
                "base_time_ns": now_ns,
                "watermark_ns": now_ns,
                "sent_ns": now_ns,
                "gpu_index": index,
            }
            self._sequence[key] += 1
            columns = {c.name: np.array([_bounded(c.name, row[c.name])], c.dtype) for c in model(Topic.DEVICE).columns}
            yield key, Batch(Topic.DEVICE, envelope, columns)
