"""Samples of GPUs as batches of gpu.device.v1: one for each job on the GPU, or one under the GPU's UUID."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from drumline.producers.batching.sample_envelopes import UNKNOWN, SampleEnvelopes, readings
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic


def jobs_on(
    uuid: str, pids: Collection[int], host: str, processes: Iterable[Mapping[str, Any]], parent: str = ""
) -> dict[str, Mapping[str, Any]]:
    """Return for each job on this GPU the process that represents it: of its newest run, the one with the lowest rank.

    `processes`: envelopes of gpu.process.v1 of this host. One without a GPU UUID (yet) is found by its pid, as is one
    that knows only the `parent` of this MIG instance.
    """
    chosen: dict[str, Mapping[str, Any]] = {}
    for process in processes:
        known_uuid = str(process.get("gpu_uuid", ""))
        by_pid = known_uuid in ("", parent)
        on_gpu = process.get("pid") in pids and process.get("host") == host if by_pid else known_uuid == uuid
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


def part_of(
    job: str, pids: Mapping[int, tuple[int, int]], host: str, processes: Iterable[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the columns of what a job's processes use of a GPU. `pids`: memory and SM time by process."""
    members = {int(p.get("pid", -1)) for p in processes if p.get("job") == job and p.get("host") == host}
    used = [pids[pid] for pid in members if pid in pids]
    memory, busy = ([values[place] for values in used if values[place] >= 0] for place in (0, 1))
    return {"job_memory": sum(memory) if memory else UNKNOWN, "job_util_sm": sum(busy) if busy else UNKNOWN}


@dataclass(frozen=True)
class Part:
    """Names a GPU, or a MIG instance of one.

    Attributes:
        uuid: NVML's; "" where it is not known, since the GPU has never answered.
        index: of the GPU on its host.
        parent: UUID of the instance's GPU; "" of a whole GPU.
        instance: number of the GPU instance; -1 of a whole GPU.
    """

    uuid: str
    index: int
    parent: str = ""
    instance: int = -1


class DeviceBatches:
    """Makes the batches of one host's samples, with sequences per key under the agent's process id."""

    def __init__(self, process_id: str, host: str) -> None:
        self.host = host
        self._envelopes = SampleEnvelopes(process_id, host)

    def batches(
        self,
        part: Part,
        row: Mapping[str, float],
        jobs: Mapping[str, Mapping[str, Any]],
        parts: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    ) -> Iterator[tuple[str, Batch]]:
        """Yield (key, batch) of one sample; `row` has every column of the schema, `parts` those of a job."""
        for job, process in (jobs or {"": {}}).items():
            key = job or part.uuid or self.host
            fields = {**process, "job": job, "gpu_uuid": part.uuid}
            envelope = self._envelopes.envelope(key, fields, int(row["time_ns"]))
            columns = readings(Topic.DEVICE, {**row, **parts.get(job, {})})
            place = {"gpu_index": part.index, "parent_uuid": part.parent, "gpu_instance": part.instance}
            yield key, Batch(Topic.DEVICE, {**envelope, **place}, columns)
