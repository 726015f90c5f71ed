"""MIG instances: the parts that an A100, H100 or later is divided into, each with memory and SMs for itself.

NVML has no utilisation, clocks, power or links of an instance: it has memory, processes and GPM's activity. Instances
come and go while jobs run on others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline.producers.batching.sample_envelopes import UNKNOWN
from drumline.producers.nvml.batches import Part
from drumline.producers.nvml.gpm import Gpm
from drumline.producers.nvml.query import NvmlQuery, text
from drumline.schemas.counters import COUNTERS

#: NVML's number of "no instance" in events.
NO_INSTANCE = 0xFFFFFFFF
#: Columns of the whole GPU that hold for each of its parts.
OF_WHOLE_GPU = ("time_ns", *(counter.name for counter in COUNTERS if counter.of_parts))


@dataclass(eq=False)
class Instance:
    """One MIG instance. `gpm` reads the activity of its GPU instance, which it may share with another one."""

    part: Part
    model: str
    query: NvmlQuery
    gpm: Gpm

    def sample(self, whole: Mapping[str, float], now_ns: int) -> dict[str, float]:
        """Return one row of it. `whole`: the row of its GPU. Raises NvmlLost."""
        row: dict[str, float] = {name: whole[name] for name in OF_WHOLE_GPU}
        memory = self.query.answer("memory", lambda: self.query.lib.nvmlDeviceGetMemoryInfo(self.query.handle))
        if memory is not None:
            row |= {"memory_used": int(memory.used), "memory_total": int(memory.total)}
        running = compute_processes(self.query)
        row |= {"processes": UNKNOWN if running is None else len(running), "lost": 0}
        return row | self.gpm.read(now_ns)

    def processes(self) -> dict[int, tuple[int, int]]:
        """Return (bytes of GPU memory, UNKNOWN) by pid: NVML has no SM time of processes in instances."""
        return {pid: (memory, UNKNOWN) for pid, memory in (compute_processes(self.query) or {}).items()}


def instances(query: NvmlQuery, uuid: str, index: int, known: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """Return the MIG instances of a GPU as they are now; `known` ones stay, and vanished ones are closed.

    Raises NvmlLost.
    """
    lib = query.lib
    mode = query.answer("MIG", lambda: lib.nvmlDeviceGetMigMode(query.handle))
    most = query.number("MIG", "nvmlDeviceGetMaxMigDeviceCount") if mode and mode[0] else 0
    by_uuid, present = {instance.part.uuid: instance for instance in known}, []
    for number in range(most):
        instance = _instance(query, Part("", index, uuid), number, by_uuid)
        present += [instance] if instance is not None else []
    for instance in known:
        if instance not in present:
            instance.gpm.close()
    if not known and not present:
        query.absent.pop("MIG", None)  # a whole GPU lacks nothing
    return tuple(present)


def _instance(query: NvmlQuery, place: Part, number: int, known: Mapping[str, Instance]) -> Instance | None:
    """Return the instance with a number; None where there is none: numbers have gaps."""
    lib = query.lib
    try:
        handle = lib.nvmlDeviceGetMigDeviceHandleByIndex(query.handle, number)
        uuid = text(lib.nvmlDeviceGetUUID(handle))
        if uuid in known:
            known[uuid].query.handle = handle
            return known[uuid]
        part = Part(uuid, place.index, place.parent, int(lib.nvmlDeviceGetGpuInstanceId(handle)))
        model = text(lib.nvmlDeviceGetName(handle))
    except lib.NVMLError:
        return None
    answers = NvmlQuery(lib, handle)
    return Instance(part, model, answers, Gpm(NvmlQuery(lib, query.handle, answers.absent), part.instance))


def compute_processes(query: NvmlQuery) -> dict[int, int] | None:
    """Return bytes of GPU memory by pid of the processes that compute, also of clients of MPS; UNKNOWN where not known.

    None where NVML does not tell. Raises NvmlLost.
    """
    lib, memory_of = query.lib, {}
    answers = [
        query.answer("processes", lambda: lib.nvmlDeviceGetComputeRunningProcesses(query.handle)),
        query.answer("processes of MPS", lambda: lib.nvmlDeviceGetMPSComputeRunningProcesses(query.handle)),
    ]
    for process in (process for answer in answers for process in answer or ()):
        memory: Any = getattr(process, "usedGpuMemory", None)
        memory_of[int(process.pid)] = UNKNOWN if memory is None else int(memory)
    return memory_of if any(answer is not None for answer in answers) else None
