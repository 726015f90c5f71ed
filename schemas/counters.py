"""The counters of a GPU that NVML has: what each means, which call reads it, its bound, its rollup and its line.

A counter stands here once. From this table follow the reading (producers/nvml), the field of gpu.device.v1 (`python -m
drumline.schemas.release --add` writes it), its bound, comments of its columns, the rollup `devices_per_minute`, a line
of the dashboard Device health, and the reference pages. A migration adds the column (CONTRIBUTING.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

#: Bit of `throttle_reasons` -> why a clock is lower than it could be (nvml.h, nvmlClocksEventReason...).
CLOCK_REASONS: Mapping[int, str] = MappingProxyType(
    {
        0x1: "idle",
        0x2: "application clocks",
        0x4: "power cap",
        0x8: "HW slowdown",
        0x10: "sync boost",
        0x20: "SW thermal",
        0x40: "HW thermal",
        0x80: "HW power brake",
        0x100: "display clocks",
    }
)
#: Those that are a fault of cooling or power, not of load. A power cap is how a busy GPU runs.
CLOCK_FAULTS: Mapping[int, str] = MappingProxyType({bit: CLOCK_REASONS[bit] for bit in (0x8, 0x20, 0x40, 0x80)})
CLOCK_FAULT_BITS = sum(CLOCK_FAULTS)
#: Columns of gpu.network.v1 that count errors of a link which is up.
LINK_ERROR_COLUMNS = ("symbol_errors", "rx_errors", "tx_errors", "integrity_errors")


class BoundKind(Enum):
    """Kinds of bounds; bounds/limits.py has the range of each. What a GPU does not support is -1."""

    READING = auto()
    PERCENT = auto()
    SINCE_LOAD_NS = auto()
    MASK = auto()


@dataclass(frozen=True, slots=True)
class Call:
    """Reads a counter by a function of NVML with the GPU's handle. `constants`: further arguments, by name."""

    function: str
    constants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldValue:
    """Reads a counter by nvmlDeviceGetFieldValues. `name`: without NVML_FI_DEV_; same from driver 525 on."""

    name: str


@dataclass(frozen=True, slots=True)
class GpmMetric:
    """Reads a counter by GPM: a mean between two samples; %. `name`: without NVML_GPM_METRIC_."""

    name: str


@dataclass(frozen=True, slots=True)
class Rolled:
    """Declares a column of `devices_per_minute`. `function`: avg, min or max. `column`: "" = named as the counter."""

    function: str
    column: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Declares a panel with a line for each GPU, of the counter's first column in the rollup.

    Attributes:
        title, description, unit: as Grafana shows them.
        scale: SQL behind the value, which brings it to the unit.
        low_is_worst: the ten GPUs with the lowest values are shown, not those with the highest.
        maximum: of the axis; None = by the values.
    """

    title: str
    description: str
    unit: str
    scale: str = ""
    low_is_worst: bool = False
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Counter:
    """Declares one counter.

    Attributes:
        name: field of gpu.device.v1, and column of `device_samples`.
        meaning: what it counts, and its unit.
        source: how it is read; None = by code of its own (producers/nvml).
        kind: its bound.
        rolled: columns of the rollup.
        line: its panel, if it has one of its own.
        is_slow: read each 10 s, or less often, since it changes seldom or costs the driver much.
        of_parts: holds for each MIG instance of the GPU too. Not power, energy and bytes, which would count twice.
        lacking: what -1, and NULL in ClickHouse, stands for.
    """

    name: str
    meaning: str
    source: Call | FieldValue | GpmMetric | None = None
    kind: BoundKind = BoundKind.READING
    rolled: tuple[Rolled, ...] = ()
    line: Line | None = None
    is_slow: bool = False
    of_parts: bool = False
    lacking: str = "not supported"

    @property
    def doc(self) -> str:
        """Return the text of its field."""
        return f"{self.meaning}; -1 = {self.lacking}"

    @property
    def comment(self) -> str:
        """Return the comment of its column."""
        return f"{self.meaning}; NULL = {self.lacking}"


_AVG, _MAX = (Rolled("avg"),), (Rolled("max"),)
_BITS = ", ".join(CLOCK_REASONS.values())
_PERCENT, _NS = BoundKind.PERCENT, BoundKind.SINCE_LOAD_NS


def _gpm(name: str, meaning: str, metric: str, rolled: tuple[Rolled, ...] = (), line: Line | None = None) -> Counter:
    return Counter(name, f"{meaning} (GPM); %", GpmMetric(metric), _PERCENT, rolled, line)


def _violation(name: str, reason: str, field: str, is_slow: bool = False) -> Counter:
    """Return a counter of the time in which something kept the clocks down."""
    return Counter(name, f"{reason}; ns", FieldValue(f"PERF_POLICY_{field}"), _NS, is_slow=is_slow)


def _seldom(name: str, meaning: str, field: str, rolled: tuple[Rolled, ...] = (), of_parts: bool = False) -> Counter:
    return Counter(name, meaning, FieldValue(field), rolled=rolled, is_slow=True, of_parts=of_parts)


#: In the order of the fields of gpu.device.v1; a new one comes last.
COUNTERS: tuple[Counter, ...] = (
    Counter("util_gpu", "time a kernel ran; %", None, _PERCENT, _AVG),
    Counter("util_memory", "memory controller busy; %", None, _PERCENT, _AVG),
    Counter("memory_used", "bytes", None, rolled=(Rolled("max", "max_memory_used"),)),
    Counter("memory_total", "bytes", None, rolled=_MAX),
    Counter(
        "power_mw", "mW", Call("nvmlDeviceGetPowerUsage"), rolled=_AVG,
        line=Line("Power", "Mean power.", "watt", " / 1000"),
    ),
    # 4.9 ms of CPU on an H200, more than all that is read with every sample.
    Counter("energy_mj", "mJ since driver load", Call("nvmlDeviceGetTotalEnergyConsumption"), is_slow=True),
    Counter(
        "temperature", "degrees Celsius", Call("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",)),
        rolled=(Rolled("max", "max_temperature"),), of_parts=True,
    ),
    Counter(
        "sm_clock", "MHz", Call("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",)),
        rolled=(Rolled("min", "min_sm_clock"), Rolled("max", "max_sm_clock")), of_parts=True,
        line=Line("SM clock, lowest", "Lowest of each minute: a throttled GPU shows here first.", "hertz", " * 1000000",
                  low_is_worst=True),
    ),
    Counter("memory_clock", "MHz", Call("nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",)), of_parts=True),
    Counter(
        "throttle_reasons", f"NVML clock event reasons, bits from 0x1: {_BITS}",
        Call("nvmlDeviceGetCurrentClocksThrottleReasons"), BoundKind.MASK, of_parts=True,
    ),
    Counter("pcie_rx_kbps", "kB/s", None, rolled=_AVG),
    Counter("pcie_tx_kbps", "kB/s", None, rolled=_AVG),
    Counter("nvlink_rx_kbps", "kB/s", None, rolled=_AVG),
    Counter("nvlink_tx_kbps", "kB/s", None, rolled=_AVG),
    Counter(
        "ecc_uncorrected", "errors",
        Call("nvmlDeviceGetTotalEccErrors", ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC")), rolled=_MAX,
        of_parts=True,
    ),
    Counter("xid", "last XID since the previous sample, 0 = none", None, rolled=(Rolled("max", "max_xid"),)),
    Counter("fan", "%", Call("nvmlDeviceGetFanSpeed"), _PERCENT),
    Counter("processes", "compute processes on the GPU"),
    Counter(
        "memory_temperature", "temperature of the memory (HBM); degrees Celsius", FieldValue("MEMORY_TEMP"),
        rolled=(Rolled("max", "max_memory_temperature"),), of_parts=True,
        line=Line("Memory temperature", "Of the device memory (HBM), highest of each minute.", "celsius"),
    ),
    Counter("util_encoder", "video encoder busy; %", Call("nvmlDeviceGetEncoderUtilization"), _PERCENT),
    Counter("util_decoder", "video decoder busy; %", Call("nvmlDeviceGetDecoderUtilization"), _PERCENT),
    # Some of these cost the driver much: PCIe 0.5 ms, heat 1 ms.
    _seldom("pcie_replays", "PCIe packets sent again since the driver was loaded", "PCIE_REPLAY_COUNTER", _MAX),
    _seldom("remapped_correctable", "memory rows remapped after correctable errors, in the GPU's life", "REMAPPED_COR",
            _MAX),
    _seldom("remapped_uncorrectable", "memory rows remapped after uncorrectable errors, in the GPU's life",
            "REMAPPED_UNC", _MAX),
    _seldom("remap_pending", "1 = a row is remapped at the next reset", "REMAPPED_PENDING", _MAX, of_parts=True),
    _seldom("remap_failure", "1 = remapping a row failed: the GPU is to be replaced", "REMAPPED_FAILURE", _MAX,
            of_parts=True),
    _seldom("ecc_corrected", "corrected errors since the driver was loaded", "ECC_SBE_VOL_TOTAL", _MAX),
    _seldom("ecc_aggregate_corrected", "corrected errors in the GPU's life", "ECC_SBE_AGG_TOTAL"),
    _seldom("ecc_aggregate_uncorrected", "uncorrected errors in the GPU's life", "ECC_DBE_AGG_TOTAL"),
    _seldom("ecc_dram_corrected", "corrected errors of the device memory since the driver was loaded",
            "ECC_SBE_VOL_DEV"),
    _seldom("ecc_dram_uncorrected", "uncorrected errors of the device memory since the driver was loaded",
            "ECC_DBE_VOL_DEV"),
    _seldom("retired_pages_corrected", "memory pages retired after corrected errors", "RETIRED_SBE"),
    _seldom("retired_pages_uncorrected", "memory pages retired after uncorrected errors", "RETIRED_DBE"),
    _seldom("retired_pages_pending", "1 = a page is retired at the next reset", "RETIRED_PENDING"),
    _seldom("nvlink_links", "NVLink links that the GPU has", "NVLINK_LINK_COUNT"),
    Counter("nvlink_active", "NVLink links that are up", rolled=(Rolled("min", "min_nvlink_active"),)),
    Counter("nvlink_crc_errors", "CRC errors of all links"),
    Counter("nvlink_replays", "packets of all links sent again", rolled=_MAX),
    Counter("nvlink_recoveries", "recoveries of all links", rolled=_MAX),
    _violation("violation_power_ns", "time below the wanted clocks because of power, since the driver was loaded",
               "POWER"),
    _violation("violation_thermal_ns", "the same because of heat", "THERMAL", is_slow=True),
    _violation("violation_sync_boost_ns", "the same because of the sync boost group", "SYNC_BOOST"),
    _violation("violation_board_ns", "the same because of the board's limits", "BOARD_LIMIT"),
    _violation("violation_low_use_ns", "the same because of low utilisation", "LOW_UTILIZATION"),
    _violation("violation_reliability_ns", "the same because of reliability", "RELIABILITY"),
    Counter("fabric_state", "registration with the NVLink fabric: 1 not started, 2 under way, 3 complete"),
    Counter("vgpu_license", "1 = the vGPU has its license, 0 = it has none", lacking="no vGPU"),
    _seldom("recovery_action", "what NVML wants done: 0 nothing, 1 reset, 2 reboot, 3 drain peers, 4 drain and reset",
            "GET_GPU_RECOVERY_ACTION", of_parts=True),
    _gpm("sm_active", "SMs with at least one warp, mean since the last sample", "SM_UTIL", _AVG,
         Line("SMs in use", "With at least one warp (GPM).", "percent", low_is_worst=True, maximum=100)),
    _gpm("sm_occupancy", "resident warps of all that fit, mean since the last sample", "SM_OCCUPANCY", _AVG),
    _gpm("tensor_active", "tensor cores busy, any type", "ANY_TENSOR_UTIL", _AVG,
         Line("Tensor cores", "Share of time in which they were busy (GPM: Hopper and later).", "percent",
              low_is_worst=True, maximum=100)),
    _gpm("tensor_half_active", "tensor cores busy with 16-bit and 8-bit floats, HMMA", "HMMA_TENSOR_UTIL"),
    _gpm("tensor_double_active", "tensor cores busy with doubles, DFMA", "DFMA_TENSOR_UTIL"),
    _gpm("tensor_integer_active", "tensor cores busy with integers, IMMA", "IMMA_TENSOR_UTIL"),
    _gpm("dram_active", "bandwidth of the device memory in use, of its peak", "DRAM_BW_UTIL", _AVG,
         Line("Memory bandwidth", "Of its peak (GPM).", "percent", low_is_worst=True, maximum=100)),
    _gpm("fp64_active", "SMs busy with doubles outside tensor cores", "FP64_UTIL"),
    _gpm("fp32_active", "SMs busy with 32-bit floats outside tensor cores", "FP32_UTIL"),
    _gpm("fp16_active", "SMs busy with 16-bit floats outside tensor cores", "FP16_UTIL"),
    Counter(
        "power_limit_mw", "power that the GPU may draw, the lowest limit in force; mW",
        Call("nvmlDeviceGetEnforcedPowerLimit"), rolled=(Rolled("min", "min_power_limit_mw"),), is_slow=True,
        line=Line("Power limit", "Lowest of each minute: GPUs of a job should have the same.", "watt", " / 1000",
                  low_is_worst=True),
    ),
)  # fmt: skip
BY_NAME = {counter.name: counter for counter in COUNTERS}
