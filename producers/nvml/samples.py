"""NVML's readings of this host's GPUs, as rows of gpu.device.v1. A reading that a GPU does not support is -1.

Field names and units are those of the schema; calls are NVML's (docs.nvidia.com/deploy/nvml-api). `lib` is the module
pynvml of nvidia-ml-py, or one that behaves like it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from drumline.producers.batches.sample_envelopes import UNKNOWN

#: A scope that means all links of the GPU (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_*).
ALL_LINKS = 0xFFFFFFFF


class NvmlLost(RuntimeError):
    """The driver or a GPU is lost: retry later with a new Nvml."""


class NvmlMissing(RuntimeError):
    """This host has no NVML, or no driver."""


@dataclass(eq=False)
class Gpu:
    """One GPU; `counters`: bytes that its links had carried, and when that was read; ns."""

    handle: Any
    index: int
    uuid: str
    model: str
    counters: dict[str, tuple[int, int]] = field(default_factory=dict)


class Nvml:
    """An open NVML library.

    Used by one thread; every call may block in the driver.

    Attributes:
        gpus: those that answer.
        silent: number of those that do not.
    """

    def __init__(self, lib: Any) -> None:
        """Open NVML. Raises NvmlMissing, NvmlLost."""
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
            except lib.NVMLError:  # fallen off the bus, or not visible
                continue
        self.silent = count - len(self.gpus)
        self._registered_gpus = tuple(self.gpus)
        self._events = self._register_events()

    def drop(self, gpu: Gpu) -> None:
        """Stop sampling a GPU that does not answer; its events are still reported."""
        if gpu in self.gpus:
            self.gpus.remove(gpu)
            self.silent += 1

    def close(self) -> None:
        """Close the library; errors are ignored."""
        try:
            if self._events is not None:
                self._lib.nvmlEventSetFree(self._events)
            self._lib.nvmlShutdown()
        except self._lib.NVMLError:
            pass

    def sample(self, gpu: Gpu, now_ns: int) -> dict[str, int]:
        """Return one row, all columns but `xid`; rates are over the time since this GPU's last sample. Raises
        NvmlLost.
        """
        lib, handle = self._lib, gpu.handle
        row = {
            "time_ns": now_ns,
            "power_mw": self._query(lambda: lib.nvmlDeviceGetPowerUsage(handle)),
            "energy_mj": self._query(lambda: lib.nvmlDeviceGetTotalEnergyConsumption(handle)),
            "temperature": self._query(lambda: lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU)),
            "sm_clock": self._query(lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)),
            "memory_clock": self._query(lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_MEM)),
            "throttle_reasons": self._query(lambda: lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            "ecc_uncorrected": self._query(
                lambda: lib.nvmlDeviceGetTotalEccErrors(
                    handle, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, lib.NVML_VOLATILE_ECC
                )
            ),
            # The driver measures each over 20 ms. The GPU's own counters of PCIe bytes have 32 bits, they wrap within
            # a fraction of a second.
            "pcie_rx_kbps": self._query(lambda: lib.nvmlDeviceGetPcieThroughput(handle, lib.NVML_PCIE_UTIL_RX_BYTES)),
            "pcie_tx_kbps": self._query(lambda: lib.nvmlDeviceGetPcieThroughput(handle, lib.NVML_PCIE_UTIL_TX_BYTES)),
            "fan": self._query(lambda: lib.nvmlDeviceGetFanSpeed(handle)),
            "processes": self._query(lambda: len(lib.nvmlDeviceGetComputeRunningProcesses(handle))),
        }
        row["util_gpu"], row["util_memory"] = self._query_pair(
            lambda: lib.nvmlDeviceGetUtilizationRates(handle), "gpu", "memory"
        )
        row["memory_used"], row["memory_total"] = self._query_pair(
            lambda: lib.nvmlDeviceGetMemoryInfo(handle), "used", "total"
        )
        return row | self._nvlink(gpu, now_ns)

    def pids(self, gpu: Gpu) -> frozenset[int]:
        """Return the processes that compute on a GPU, as this pid namespace numbers them. Raises NvmlLost."""
        processes = self._call(lambda: self._lib.nvmlDeviceGetComputeRunningProcesses(gpu.handle))
        return frozenset(int(process.pid) for process in processes or ())

    def wait_xid(self, seconds: float) -> tuple[Gpu, int] | None:
        """Wait for an XID event for at most `seconds`; return (GPU, number).

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
        return (source, int(data.eventData)) if source else None

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

    def _call(self, call: Callable[[], Any]) -> Any:
        """Return the answer of a call; None where the GPU does not support it."""
        lib = self._lib
        try:
            return call()
        except (lib.NVMLError_GpuIsLost, lib.NVMLError_Uninitialized, lib.NVMLError_ResetRequired) as error:
            raise NvmlLost(str(error)) from None
        except lib.NVMLError:
            return None

    def _query(self, call: Callable[[], Any]) -> int:
        value = self._call(call)
        return UNKNOWN if value is None else int(value)

    def _query_pair(self, call: Callable[[], Any], first: str, second: str) -> tuple[int, int]:
        value = self._call(call)
        return (UNKNOWN, UNKNOWN) if value is None else (int(getattr(value, first)), int(getattr(value, second)))

    def _nvlink(self, gpu: Gpu, now_ns: int) -> dict[str, int]:
        """Return kB/s over all links since the last sample, from counters of KiB."""
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


class NoXidEvents(Exception):
    """No GPU of this host reports XID events."""


def _same(first: Any, second: Any) -> bool:
    """Return whether two handles are the same: ctypes makes a new object of each pointer that a call returns."""
    try:
        return first is second or memoryview(first).tobytes() == memoryview(second).tobytes()
    except TypeError:
        return False


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
