"""What NVML says of this host's GPUs, as rows of gpu.device.v1. What a GPU does not support is -1, not an error.

Field names and units are those of the schema; calls are NVML's (docs.nvidia.com/deploy/nvml-api). `lib` is the module
pynvml of nvidia-ml-py, or one that behaves like it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = -1
#: A scope that means all links of the GPU (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_*).
ALL_LINKS = 0xFFFFFFFF


class NvmlLost(RuntimeError):
    """The driver or a GPU is gone: everything has to be opened anew."""


class NvmlMissing(RuntimeError):
    """There is no NVML here, or no driver."""


@dataclass(eq=False)
class Gpu:
    """One GPU. `counters`: what its links had carried, and when that was read; ns."""

    handle: Any
    index: int
    uuid: str
    model: str
    counters: dict[str, tuple[int, int]] = field(default_factory=dict)


class Nvml:
    """An open NVML. `gpus`: those that answer. `silent`: how many there are that do not."""

    def __init__(self, lib: Any) -> None:
        """Raises NvmlMissing, NvmlLost."""
        self._lib = lib
        self.gpus: list[Gpu] = []
        try:
            lib.nvmlInit()
        except lib.NVMLError as error:
            if isinstance(error, lib.NVMLError_LibraryNotFound | lib.NVMLError_DriverNotLoaded):
                raise NvmlMissing(str(error)) from None
            raise NvmlLost(str(error)) from None
        self._events: Any = None
        try:
            self.driver, count = _text(lib.nvmlSystemGetDriverVersion()), int(lib.nvmlDeviceGetCount())
        except lib.NVMLError as error:
            self.close()
            raise NvmlLost(str(error)) from None
        for index in range(count):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(index)
                uuid, name = lib.nvmlDeviceGetUUID(handle), lib.nvmlDeviceGetName(handle)
                self.gpus.append(Gpu(handle, index, _text(uuid), _text(name)))
            except lib.NVMLError:  # fallen off the bus, or not ours to see
                continue
        self.silent = count - len(self.gpus)
        self._all = tuple(self.gpus)
        self._events = self._watch()

    def drop(self, gpu: Gpu) -> None:
        """It does not answer any more; its events are still told."""
        if gpu in self.gpus:
            self.gpus.remove(gpu)
            self.silent += 1

    def close(self) -> None:
        try:
            if self._events is not None:
                self._lib.nvmlEventSetFree(self._events)
            self._lib.nvmlShutdown()
        except self._lib.NVMLError:
            pass

    def sample(self, gpu: Gpu, now_ns: int) -> dict[str, int]:
        """One row, all columns but `xid`. Rates are over the time since this GPU's sample before. Raises NvmlLost."""
        lib, handle = self._lib, gpu.handle
        row = {
            "time_ns": now_ns,
            "power_mw": self._ask(lambda: lib.nvmlDeviceGetPowerUsage(handle)),
            "energy_mj": self._ask(lambda: lib.nvmlDeviceGetTotalEnergyConsumption(handle)),
            "temperature": self._ask(lambda: lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU)),
            "sm_clock": self._ask(lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)),
            "memory_clock": self._ask(lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_MEM)),
            "throttle_reasons": self._ask(lambda: lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            "ecc_uncorrected": self._ask(
                lambda: lib.nvmlDeviceGetTotalEccErrors(
                    handle, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, lib.NVML_VOLATILE_ECC
                )
            ),
            # The driver measures each over 20 ms. The GPU's own counters of PCIe bytes have 32 bits, they wrap within
            # a fraction of a second.
            "pcie_rx_kbps": self._ask(lambda: lib.nvmlDeviceGetPcieThroughput(handle, lib.NVML_PCIE_UTIL_RX_BYTES)),
            "pcie_tx_kbps": self._ask(lambda: lib.nvmlDeviceGetPcieThroughput(handle, lib.NVML_PCIE_UTIL_TX_BYTES)),
            "fan": self._ask(lambda: lib.nvmlDeviceGetFanSpeed(handle)),
            "processes": self._ask(lambda: len(lib.nvmlDeviceGetComputeRunningProcesses(handle))),
        }
        row["util_gpu"], row["util_memory"] = self._two(
            lambda: lib.nvmlDeviceGetUtilizationRates(handle), "gpu", "memory"
        )
        row["memory_used"], row["memory_total"] = self._two(
            lambda: lib.nvmlDeviceGetMemoryInfo(handle), "used", "total"
        )
        return row | self._nvlink(gpu, now_ns)

    def pids(self, gpu: Gpu) -> frozenset[int]:
        """Processes that compute on it, as this pid namespace knows them. Raises NvmlLost."""
        found = self._call(lambda: self._lib.nvmlDeviceGetComputeRunningProcesses(gpu.handle))
        return frozenset(int(process.pid) for process in found or ())

    def wait_xid(self, seconds: float) -> tuple[Gpu, int] | None:
        """Let time pass; an XID event ends it early: (GPU, number). Raises NvmlLost, and Unwatched at once where no GPU
        tells of events."""
        if self._events is None:
            raise Unwatched
        lib = self._lib
        try:
            data = lib.nvmlEventSetWait_v2(self._events, max(int(seconds * 1000), 1))
        except lib.NVMLError_Timeout:
            return None
        except lib.NVMLError as error:
            raise NvmlLost(str(error)) from None
        # By its handle: a GPU that fell off the bus (XID 79) does not tell its UUID any more.
        return next(((gpu, int(data.eventData)) for gpu in self._all if _same(gpu.handle, data.device)), None)

    def _watch(self) -> Any:
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

    def _call(self, call: Callable[[], Any]) -> Any:
        """Its answer; None where the GPU does not support it."""
        lib = self._lib
        try:
            return call()
        except (lib.NVMLError_GpuIsLost, lib.NVMLError_Uninitialized, lib.NVMLError_ResetRequired) as error:
            raise NvmlLost(str(error)) from None
        except lib.NVMLError:
            return None

    def _ask(self, call: Callable[[], Any]) -> int:
        found = self._call(call)
        return UNKNOWN if found is None else int(found)

    def _two(self, call: Callable[[], Any], first: str, second: str) -> tuple[int, int]:
        found = self._call(call)
        return (UNKNOWN, UNKNOWN) if found is None else (int(getattr(found, first)), int(getattr(found, second)))

    def _nvlink(self, gpu: Gpu, now_ns: int) -> dict[str, int]:
        """kB/s over all links since the sample before, from counters of KiB."""
        lib, handle = self._lib, gpu.handle
        wanted = {
            "nvlink_rx_kbps": (lib.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
            "nvlink_tx_kbps": (lib.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
        }
        values = self._call(lambda: lib.nvmlDeviceGetFieldValues(handle, list(wanted.values()))) or ()
        row = dict.fromkeys(wanted, UNKNOWN)
        for name, value in zip(wanted, values, strict=False):
            if value.nvmlReturn == lib.NVML_SUCCESS and value.valueType == lib.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
                carried = int(value.value.ullVal)
                before, at = gpu.counters.get(name, (carried, now_ns))
                gpu.counters[name] = (carried, now_ns)
                if now_ns > at and carried >= before:
                    row[name] = (carried - before) * 1_024_000_000 // (now_ns - at)
        return row


class Unwatched(Exception):
    """No GPU here tells of XID events."""


def _same(one: Any, other: Any) -> bool:
    """Whether two handles are one: ctypes makes a new object of each pointer that a call returns."""
    try:
        return one is other or memoryview(one).tobytes() == memoryview(other).tobytes()
    except TypeError:
        return False


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
