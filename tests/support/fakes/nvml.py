"""A fake of nvidia-ml-py's module `pynvml` for machines without a GPU: what nvml.py uses of it, and nothing real."""

import ctypes
import queue
import time
from types import SimpleNamespace

import pynvml
from support.wait_limit import WAIT_S

from drumline.producers.nvml.gpm import METRICS as GPM_METRICS
from drumline.producers.nvml.gpm import RATES
from drumline.producers.nvml.readings import _LINK_ERRORS, LINK_COUNTERS
from drumline.schemas.counters import COUNTERS, FieldValue


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


class NVMLError_NotFound(NVMLError):  # noqa: N801
    pass


def _numbers(prefix, names):
    return {name: getattr(pynvml, prefix + name) for name in names}


#: Constants as in nvml.h: of the counters' field values and metrics, and of those that take more than one reading.
FIELDS = _numbers(
    "NVML_FI_DEV_",
    [
        *(counter.source.name for counter in COUNTERS if isinstance(counter.source, FieldValue)),
        *(name.removeprefix("NVML_FI_DEV_") for names in _LINK_ERRORS.values() for name in names),
        *(name.removeprefix("NVML_FI_DEV_") for name, _ in LINK_COUNTERS.values()),
    ],
)
METRICS = _numbers(
    "NVML_GPM_METRIC_",
    [*GPM_METRICS.values(), *RATES.values(), "NVLINK_TOTAL_RX_PER_SEC", "NVLINK_TOTAL_TX_PER_SEC"],
)


class FakeNvml:
    """`gpus`: dicts of call name -> answer, an exception among them is raised. `events`: (index, XID) to come, and
    the GPU instance of one that concerns an instance.
    `lost`: indices of GPUs about which every call fails, as when they fell off the bus."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_SUCCESS = 0, 1, 2, 0
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_GPU_IS_LOST, NVML_GPM_METRICS_GET_VERSION = 3, 15, 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, gpus=1, **answers):
        self.NVMLError, self.NVMLError_Timeout = NVMLError, NVMLError_Timeout
        self.NVMLError_NotSupported = NVMLError_NotSupported
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
             "EncoderUtilization": [0, 1000], "DecoderUtilization": [0, 1000], "NvLinkState": 1,
             "GridLicensableFeatures": SimpleNamespace(isGridLicenseSupported=0, licensableFeaturesCount=0),
             "MPSComputeRunningProcesses": [], "MigMode": NVMLError_NotSupported("Not Supported"),
             "fields": {}, "metrics": {}, **answers}
            for i in range(gpus)
        ]  # fmt: skip
        self.events = queue.SimpleQueue()
        self.lost, self.opened = set(), 0
        self.problem = None
        self.gpm_samples = 0

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
        """Constants of field values and metrics, and calls about one GPU."""
        if name.startswith("NVML_FI_DEV_"):
            return FIELDS[name.removeprefix("NVML_FI_DEV_")]
        if name.startswith("NVML_GPM_METRIC_"):
            return METRICS[name.removeprefix("NVML_GPM_METRIC_")]
        reading = name.removeprefix("nvmlDeviceGet")
        if reading == name:
            raise AttributeError(name)

        def call(handle, *_arguments):
            self._raise_if_lost(handle)
            if "parent" in handle and reading not in handle:  # of an instance NVML answers little
                raise NVMLError_NotSupported("Not Supported")
            answer = handle[reading] if reading in handle or not hasattr(pynvml, name) else NVMLError_NotSupported(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def _raise_if_lost(self, handle):
        handle = handle.get("parent", handle)
        if next(i for i, gpu in enumerate(self.gpus) if gpu is handle) in self.lost:
            raise NVMLError_GpuIsLost("GPU is lost")

    def divide(self, gpu=0, instances=2):
        """Divide a GPU into MIG instances 3, 4, ...; MIG devices are listed with gaps, and a GPU in MIG mode has no
        utilisation (NVML API reference, "Multi Instance GPU Management")."""
        whole = self.gpus[gpu]
        unsupported = NVMLError_NotSupported("Not Supported")
        whole |= {"MigMode": [1, 1], "MaxMigDeviceCount": 7, "UtilizationRates": unsupported}
        whole |= {"ProcessUtilization": unsupported}
        whole["instances"] = {
            2 * i: {"parent": whole, "UUID": f"MIG-{gpu}-{i}", "Name": "Fake H200 MIG 1g.18gb", "GpuInstanceId": 3 + i,
                    "MemoryInfo": SimpleNamespace(used=(i + 1) << 30, total=18 << 30),
                    "ComputeRunningProcesses": [SimpleNamespace(pid=100 + i, usedGpuMemory=(i + 1) << 29)],
                    "MPSComputeRunningProcesses": [], "fields": {}, "metrics": {"SM_UTIL": 10.0 * (i + 1)}}
            for i in range(instances)
        }  # fmt: skip
        whole["metrics"] = {"SM_UTIL": 40.0}

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):  # noqa: N802
        if index not in handle["instances"]:
            raise NVMLError_NotFound("Not Found")
        return handle["instances"][index]

    def nvmlGpmMigSampleGet(self, handle, instance, sample):  # noqa: N802
        self._raise_if_lost(handle)
        sample.update(next(i["metrics"] for i in handle["instances"].values() if i["GpuInstanceId"] == instance))

    def nvmlDeviceGetFieldValues(self, handle, fields):  # noqa: N802
        values = []
        for field in fields:
            value = handle["fields"].get(field, handle["fields"].get(field[0]))
            values.append(
                SimpleNamespace(
                    nvmlReturn=3 if value is None else 0, valueType=3, value=SimpleNamespace(ullVal=value or 0)
                )
            )
        return values

    def nvmlErrorString(self, code):  # noqa: N802
        return {3: "Not Supported", 15: "GPU is lost"}[code]

    def c_nvmlGpuFabricInfo_v2_t(self):  # noqa: N802
        return ctypes.c_int(0)

    def nvmlDeviceGetGpuFabricInfoV(self, _handle, _info):  # noqa: N802
        raise NVMLError_NotSupported("Not Supported")

    def nvmlGpmQueryDeviceSupport(self, handle):  # noqa: N802
        return SimpleNamespace(isSupportedDevice=int(bool(handle["metrics"])))

    def nvmlGpmSampleAlloc(self):  # noqa: N802
        self.gpm_samples += 1
        return {}

    def nvmlGpmSampleFree(self, _sample):  # noqa: N802
        self.gpm_samples -= 1

    def nvmlGpmSampleGet(self, handle, sample):  # noqa: N802
        self._raise_if_lost(handle)
        sample.update(handle["metrics"])

    def c_nvmlGpmMetricsGet_t(self):  # noqa: N802
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0, value=0.0) for _ in range(40)])

    def nvmlGpmMetricsGet(self, wanted):  # noqa: N802
        names = {number: name for name, number in METRICS.items()}
        for metric in wanted.metrics[: wanted.numMetrics]:
            value = wanted.sample2.get(names[metric.metricId])
            metric.nvmlReturn, metric.value = (3, 0.0) if value is None else (0, value)
        return wanted

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
            index, xid, *instance = self.events.get(timeout=milliseconds / 1000)
        except queue.Empty:
            raise NVMLError_Timeout("Timeout") from None
        return SimpleNamespace(
            device=self.gpus[index], eventData=xid, gpuInstanceId=instance[0] if instance else 0xFFFFFFFF
        )


def wait_until(condition, seconds=WAIT_S):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.01)
