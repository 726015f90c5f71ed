"""Samples of GPUs as batches of gpu.device.v1: one for each job on the GPU, or one under its UUID. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.model import model
from drumline.schemas.topics import Topic


def jobs_on(
    uuid: str, pids: Collection[int], host: str, processes: Iterable[Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Job -> the process that stands for it on this GPU: of its newest run, the one with the lowest rank.

    `processes`: envelopes of gpu.process.v1 of this host. One that does not know its GPU (yet) is found by its pid.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for process in processes:
        known = str(process.get("gpu_uuid", ""))
        here = known == uuid if known else process.get("host") == host and process.get("pid") in pids
        if not here or not process.get("job"):
            continue
        job = str(process["job"])
        best = found.get(job)
        if best is None or _newer(process, best):
            found[job] = process
    return found


def _newer(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one.get("run") == other.get("run"):
        return int(one.get("rank", -1)) < int(other.get("rank", -1))
    return int(one.get("start_ns", 0)) > int(other.get("start_ns", 0))


class DeviceFeed:
    """Gives batches their sequence, which counts per key of the agent's own process id."""

    def __init__(self, process_id: str, host: str) -> None:
        self._process_id, self._host = process_id, host
        self._sequence: Counter[str] = Counter()

    def batches(
        self, uuid: str, index: int, row: Mapping[str, int], jobs: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[str, Batch]]:
        """(key, batch) of one sample: `row` has every column of the schema."""
        for job, process in (jobs or {"": {}}).items():
            key = job or uuid
            now_ns = row["time_ns"]
            envelope = {
                "job": job,
                "run": str(process.get("run", "")),
                "rank": int(process.get("rank", -1)),
                "local_rank": int(process.get("local_rank", -1)),
                "world_size": int(process.get("world_size", 0)),
                "host": str(process.get("host", "")) or self._host,
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
            columns = {c.name: np.array([row[c.name]], c.dtype) for c in model(Topic.DEVICE).columns}
            yield key, Batch(Topic.DEVICE, envelope, columns)
