"""NVML's readings of this host's GPUs, as rows of gpu.device.v1. A reading that a GPU does not support is -1.

Field names and units are those of the schema; calls are NVML's (docs.nvidia.com/deploy/nvml-api). `lib` is the module
pynvml of nvidia-ml-py, or one that behaves like it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from drumline.producers.batching.sample_envelopes import UNKNOWN
from drumline.producers.nvml.batches import Part
from drumline.producers.nvml.gpm import Gpm
from drumline.producers.nvml.mig_instances import NO_INSTANCE, Instance, compute_processes, instances
from drumline.producers.nvml.paced import PacedReadings
from drumline.producers.nvml.query import DriverMissing, NvmlLost, NvmlMissing, NvmlQuery, text
from drumline.producers.nvml.readings import (
    FIELDS,
    LINK_COUNTERS,
    PCIE_CALLS,
    SLOW_S,
    calls,
    link_readings,
    slow_readings,
)


@dataclass(eq=False)
class Gpu:
    """One GPU.

    Attributes:
        instances: those that it is divided into; () of a whole GPU.
        query: how it is asked; `query.absent` has what it lacks.
        gpm: reads activity of its parts.
        counters: bytes that its links had carried, and when that was read; ns.
        slow: readings that change seldom. links: states and errors of its links. traffic: their bytes.
        divided_ns: when its instances were last looked for.
        running: memory by process, of the last sample.
        used_until: newest SM time of a process that was read; NVML's clock, us.
    """

    index: int
    uuid: str
    model: str
    query: NvmlQuery
    gpm: Gpm
    counters: dict[str, tuple[int, int]] = field(default_factory=dict)
    slow: PacedReadings = field(default_factory=lambda: PacedReadings(SLOW_S))
    links: PacedReadings = field(default_factory=lambda: PacedReadings(SLOW_S))
    traffic: PacedReadings = field(default_factory=lambda: PacedReadings(0.0))
    divided_ns: int | None = None
    running: Mapping[int, int] = field(default_factory=dict)
    used_until: int = 0
    instances: tuple[Instance, ...] = ()

    @property
    def handle(self) -> Any:
        """Return NVML's handle."""
        return self.query.handle

    @property
    def part(self) -> Part:
        """Return its name."""
        return Part(self.uuid, self.index)

    def close(self) -> None:
        """Free what NVML keeps for it."""
        for gpm in (self.gpm, *(instance.gpm for instance in self.instances)):
            gpm.close()


class Xid(NamedTuple):
    """An XID event. `instance`: number of the GPU instance it is about; -1 = the whole GPU."""

    gpu: Gpu
    number: int
    instance: int


class Nvml:
    """An open NVML library.

    Used by one thread; every call may block in the driver.

    Attributes:
        gpus: those that answer.
        silent: indices of those that do not.
    """

    def __init__(self, lib: Any) -> None:
        """Open NVML. Raises NvmlMissing, NvmlLost."""
        self._lib = lib
        self.gpus: list[Gpu] = []
        self.silent: list[int] = []
        try:
            lib.nvmlInit()
        except lib.NVMLError as error:
            if isinstance(error, lib.NVMLError_LibraryNotFound):
                raise NvmlMissing(str(error)) from None
            if isinstance(error, lib.NVMLError_DriverNotLoaded):
                raise DriverMissing(str(error)) from None
            raise NvmlLost(str(error)) from None
        self._events: Any = None
        self._registered_gpus: tuple[Gpu, ...] = ()
        try:
            self.driver, count = text(lib.nvmlSystemGetDriverVersion()), int(lib.nvmlDeviceGetCount())
        except lib.NVMLError as error:
            self.close()
            raise NvmlLost(str(error)) from None
        for index in range(count):
            try:
                query = NvmlQuery(lib, lib.nvmlDeviceGetHandleByIndex(index))
                uuid, name = text(lib.nvmlDeviceGetUUID(query.handle)), text(lib.nvmlDeviceGetName(query.handle))
                self.gpus.append(Gpu(index, uuid, name, query, Gpm(query)))
            except (lib.NVMLError, NvmlLost):  # fallen off the bus, or not visible
                self.silent.append(index)
        self._registered_gpus = tuple(self.gpus)
        self._events = self._register_events()

    def drop(self, gpu: Gpu) -> None:
        """Stop sampling a GPU that does not answer; its events are still reported."""
        if gpu in self.gpus:
            self.gpus.remove(gpu)
            self.silent.append(gpu.index)

    def close(self) -> None:
        """Close the library; errors are ignored."""
        for gpu in self._registered_gpus:
            gpu.close()
        try:
            if self._events is not None:
                self._lib.nvmlEventSetFree(self._events)
            self._lib.nvmlShutdown()
        except self._lib.NVMLError:
            pass

    def sample(self, gpu: Gpu, now_ns: int, *, complete: bool = False) -> dict[str, float]:
        """Return one row, all columns but `xid` and those of a job; rates are over the time since this GPU's last
        sample. `complete`: read everything again, also what changes seldom. Raises NvmlLost.
        """
        query = gpu.query
        row: dict[str, float] = {"time_ns": now_ns, "lost": 0, **calls(query), **query.fields(FIELDS)}
        running = compute_processes(query)
        row["processes"], gpu.running = UNKNOWN if running is None else len(running), running or {}
        row["util_gpu"], row["util_memory"] = self._pair(gpu, "nvmlDeviceGetUtilizationRates", "gpu", "memory")
        row["memory_used"], row["memory_total"] = self._pair(gpu, "nvmlDeviceGetMemoryInfo", "used", "total")
        if gpu.divided_ns is None or complete or not 0 <= now_ns - gpu.divided_ns < SLOW_S * 1e9:
            gpu.divided_ns, gpu.instances = now_ns, instances(query, gpu.uuid, gpu.index, gpu.instances)
        slow = gpu.slow.read(now_ns, lambda: slow_readings(query), force=complete)
        links = gpu.links.read(now_ns, lambda: link_readings(query, slow["nvlink_links"]), force=complete)
        traffic = gpu.traffic.read_due(now_ns, lambda: self._traffic(gpu, now_ns))
        pcie = {} if gpu.gpm.supported else calls(query, PCIE_CALLS)
        # Not repeated: it is a mean since it was last read, and would count twice.
        return row | slow | links | gpu.gpm.read(now_ns) | pcie | (traffic or dict.fromkeys(LINK_COUNTERS, UNKNOWN))

    def processes(self, gpu: Gpu) -> dict[int, tuple[int, int]]:
        """Return (bytes of GPU memory, SM time in %) of the processes that compute on a GPU; UNKNOWN where not known.

        They are those of the last sample. Keys are pids as this pid namespace numbers them. SM times are asked where
        several share the GPU. Raises NvmlLost.
        """
        lib, memory = self._lib, gpu.running
        newest: dict[int, Any] = {}
        if len(memory) > 1:
            call = lambda: lib.nvmlDeviceGetProcessUtilization(gpu.handle, gpu.used_until)  # noqa: E731
            for used in gpu.query.answer("job_util_sm", call) or ():
                gpu.used_until = max(gpu.used_until, int(used.timeStamp))
                if int(used.timeStamp) >= int(getattr(newest.get(used.pid), "timeStamp", 0)):
                    newest[int(used.pid)] = used
        return {pid: (size, int(newest[pid].smUtil) if pid in newest else UNKNOWN) for pid, size in memory.items()}

    def wait_xid(self, seconds: float) -> Xid | None:
        """Wait for an XID event for at most `seconds`.

        Raises NvmlLost, and NoXidEvents at once where no GPU reports events.
        """
        if self._events is None:
            raise NoXidEvents
        lib = self._lib
        try:
            data = lib.nvmlEventSetWait_v2(self._events, max(int(seconds * 1000), 1))
        except lib.NVMLError_Timeout:
            return None
        except lib.NVMLError as error:
            raise NvmlLost(str(error)) from None
        # By its handle: a GPU that fell off the bus (XID 79) has no UUID any more.
        source = next((gpu for gpu in self._registered_gpus if _same(gpu.handle, data.device)), None)
        instance = int(getattr(data, "gpuInstanceId", NO_INSTANCE))
        return Xid(source, int(data.eventData), -1 if instance == NO_INSTANCE else instance) if source else None

    def _register_events(self) -> Any:
        lib, watched = self._lib, 0
        try:
            events = lib.nvmlEventSetCreate()
        except lib.NVMLError:
            return None
        for gpu in self.gpus:
            try:
                lib.nvmlDeviceRegisterEvents(gpu.handle, lib.nvmlEventTypeXidCriticalError, events)
                watched += 1
            except lib.NVMLError:
                continue
        return events if watched else None

    def _pair(self, gpu: Gpu, function: str, first: str, second: str) -> tuple[int, int]:
        value = gpu.query.answer(function, lambda: getattr(self._lib, function)(gpu.handle))
        return (UNKNOWN, UNKNOWN) if value is None else (int(getattr(value, first)), int(getattr(value, second)))

    def _traffic(self, gpu: Gpu, now_ns: int) -> dict[str, int]:
        """Return kB/s over all links since they were last read, from counters of KiB."""
        carried = gpu.query.fields(LINK_COUNTERS)
        row = dict.fromkeys(LINK_COUNTERS, UNKNOWN)
        for name, now in carried.items():
            if now != UNKNOWN:
                before, at = gpu.counters.get(name, (now, now_ns))
                gpu.counters[name] = (now, now_ns)
                if now_ns > at and now >= before:
                    row[name] = (now - before) * 1_024_000_000 // (now_ns - at)
        return row


class NoXidEvents(Exception):
    """No GPU of this host reports XID events."""


def _same(first: Any, second: Any) -> bool:
    """Return whether two handles are the same: ctypes makes a new object of each pointer that a call returns."""
    try:
        return first is second or memoryview(first).tobytes() == memoryview(second).tobytes()
    except TypeError:
        return False
