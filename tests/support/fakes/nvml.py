"""A fake of nvidia-ml-py's module `pynvml` for machines without a GPU: what nvml.py uses of it, and nothing real."""

import queue
import time
from types import SimpleNamespace


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801
    pass


class NVMLError_Timeout(NVMLError):  # noqa: N801
    pass


class NVMLError_GpuIsLost(NVMLError):  # noqa: N801
    pass


class NVMLError_Uninitialized(NVMLError):  # noqa: N801
    pass


class NVMLError_ResetRequired(NVMLError):  # noqa: N801
    pass


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801
    pass


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801
    pass


class FakeNvml:
    """`gpus`: dicts of call name -> answer, an exception among them is raised. `events`: (index, XID) to come.
    `lost`: indices of GPUs about which every call fails, as when they fell off the bus."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_SUCCESS = 0, 1, 2, 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, gpus=1, **answers):
        self.NVMLError, self.NVMLError_Timeout = NVMLError, NVMLError_Timeout
        self.NVMLError_GpuIsLost, self.NVMLError_Uninitialized = NVMLError_GpuIsLost, NVMLError_Uninitialized
        self.NVMLError_ResetRequired = NVMLError_ResetRequired
        self.NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
        self.NVMLError_DriverNotLoaded = NVMLError_DriverNotLoaded
        self.gpus = [
            {"UUID": f"GPU-{i}", "Name": "Fake H200", "PowerUsage": 650_000, "TotalEnergyConsumption": 10**9,
             "Temperature": 61, "ClockInfo": 1_980, "CurrentClocksThrottleReasons": 4, "TotalEccErrors": 0,
             "FanSpeed": NVMLError_NotSupported("Not Supported"), "ComputeRunningProcesses": [SimpleNamespace(pid=100)],
             "UtilizationRates": SimpleNamespace(gpu=97, memory=40),
             "MemoryInfo": SimpleNamespace(used=70 << 30, total=140 << 30), "PcieThroughput": 1_234,
             "fields": {}, **answers}
            for i in range(gpus)
        ]  # fmt: skip
        self.events = queue.SimpleQueue()
        self.lost, self.opened = set(), 0
        self.problem = None

    def nvmlInit(self):  # noqa: N802
        if self.problem is not None:
            raise self.problem
        self.opened += 1

    def nvmlShutdown(self):  # noqa: N802
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.1"

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self.gpus[index]

    def __getattr__(self, name):
        reading = name.removeprefix("nvmlDeviceGet")
        if reading == name:
            raise AttributeError(name)

        def call(handle, *_arguments):
            if self.gpus.index(handle) in self.lost:
                raise NVMLError_GpuIsLost("GPU is lost")
            answer = handle[reading]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def nvmlDeviceGetFieldValues(self, handle, fields):  # noqa: N802
        values = []
        for field in fields:
            value = handle["fields"].get(field[0] if isinstance(field, tuple) else field)
            values.append(
                SimpleNamespace(
                    nvmlReturn=3 if value is None else 0, valueType=3, value=SimpleNamespace(ullVal=value or 0)
                )
            )
        return values

    def nvmlEventSetCreate(self):  # noqa: N802
        return object()

    def nvmlEventSetFree(self, _events):  # noqa: N802
        pass

    def nvmlDeviceRegisterEvents(self, handle, _types, _events):  # noqa: N802
        if handle.get("no events"):
            raise NVMLError_NotSupported("Not Supported")

    def nvmlEventSetWait_v2(self, _events, milliseconds):  # noqa: N802
        if self.events is None:
            raise NVMLError_Uninitialized("Uninitialized")
        try:
            index, xid = self.events.get(timeout=milliseconds / 1000)
        except queue.Empty:
            raise NVMLError_Timeout("Timeout") from None
        return SimpleNamespace(device=self.gpus[index], eventData=xid)


def wait_until(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.01)
