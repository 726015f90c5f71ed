"""Readings of a GPU that NVML gives as one number each: those of schemas/counters.py, and some that take more."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import MappingProxyType

from drumline.producers.batching.sample_envelopes import UNKNOWN
from drumline.producers.nvml.query import NvmlQuery
from drumline.schemas.counters import COUNTERS, Call, FieldValue

#: A scope that means all links of the GPU (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_*).
ALL_LINKS = 0xFFFFFFFF
#: Most links that a GPU has.
MOST_LINKS = 18


def _calls(is_slow: bool) -> dict[str, Call]:
    """Return column -> the call that reads it."""
    return {c.name: c.source for c in COUNTERS if isinstance(c.source, Call) and c.is_slow == is_slow}


def _fields(is_slow: bool) -> dict[str, tuple[str, int]]:
    """Return column -> constant of its field value, and the scope."""
    wanted = [(c.name, c.source) for c in COUNTERS if isinstance(c.source, FieldValue) and c.is_slow == is_slow]
    return {name: (f"NVML_FI_DEV_{source.name}", 0) for name, source in wanted}


#: With every sample, and seldom.
CALLS, SLOW_CALLS = _calls(False), _calls(True)
FIELDS, SLOW_FIELDS = _fields(False), _fields(True)
#: The driver measures each over 20 ms. Asked only where GPM does not tell the bytes of the whole interval.
PCIE_CALLS = {
    "pcie_rx_kbps": Call("nvmlDeviceGetPcieThroughput", ("NVML_PCIE_UTIL_RX_BYTES",)),
    "pcie_tx_kbps": Call("nvmlDeviceGetPcieThroughput", ("NVML_PCIE_UTIL_TX_BYTES",)),
}
#: KiB over all links since the driver was loaded.
LINK_COUNTERS = MappingProxyType(
    {
        "nvlink_rx_kbps": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS),
        "nvlink_tx_kbps": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS),
    }
)
#: Column -> its field value over all links, and the one of a link for GPUs that have no sum.
_LINK_ERRORS = {
    "nvlink_crc_errors": ("NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVML_FI_DEV_NVLINK_ERROR_DL_CRC"),
    "nvlink_replays": ("NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY"),
    "nvlink_recoveries": ("NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY"),
}
#: Interval of readings that change seldom; s.
SLOW_S = 10.0


def calls(query: NvmlQuery, wanted: Mapping[str, Call] = MappingProxyType(CALLS)) -> dict[str, int]:
    """Return the readings that are a call each. Raises NvmlLost."""
    return {name: query.number(name, call.function, *call.constants) for name, call in wanted.items()}


def slow_readings(query: NvmlQuery) -> dict[str, int]:
    """Return the readings that change seldom, or cost much. Raises NvmlLost."""
    row = query.fields(SLOW_FIELDS) | calls(query, SLOW_CALLS)
    return row | {"vgpu_license": _license(query), "fabric_state": _fabric(query)}


def link_readings(query: NvmlQuery, links: int) -> dict[str, int]:
    """Return how many of a GPU's links are up, and their errors over all links. Raises NvmlLost."""
    row = dict.fromkeys(("nvlink_active", *_LINK_ERRORS), UNKNOWN)
    if links <= 0:
        return row
    numbers = range(min(links, MOST_LINKS))
    states = [query.number("nvlink_active", "nvmlDeviceGetNvLinkState", link) for link in numbers]
    known = [state for state in states if state != UNKNOWN]
    row["nvlink_active"] = sum(known) if known else UNKNOWN
    row |= query.fields({name: (total, 0) for name, (total, _) in _LINK_ERRORS.items()}, spare=True)
    without = [name for name in _LINK_ERRORS if row[name] == UNKNOWN]
    # A program that asked for these one by one ended with a segmentation fault, twice (H100, driver 580.159.04).
    errors = {f"{name} {link}": (_LINK_ERRORS[name][1], link) for name in without for link in numbers}
    values = query.fields(errors, spare=True)
    for name in without:
        of_links = [value for link in numbers if (value := values[f"{name} {link}"]) != UNKNOWN]
        if of_links:
            row[name] = sum(of_links)
            query.absent.pop(name, None)
        for link in numbers:  # said once, not of each link
            query.absent.pop(f"{name} {link}", None)
    return row


def _license(query: NvmlQuery) -> int:
    """Return 1 if a vGPU has its license, 0 if it lacks it."""
    features = query.answer("vgpu_license", lambda: query.lib.nvmlDeviceGetGridLicensableFeatures(query.handle))
    if features is None:
        return UNKNOWN
    if not features.isGridLicenseSupported:
        query.absent["vgpu_license"] = "this is no vGPU"
        return UNKNOWN
    count = features.licensableFeaturesCount
    return int(any(feature.featureEnabled for feature in features.gridLicensableFeatures[:count]))


def _fabric(query: NvmlQuery) -> int:
    """Return NVML's state of the GPU's registration with the NVLink fabric: 1 not started, 2 under way, 3 complete."""

    def state() -> int:
        info = query.lib.c_nvmlGpuFabricInfo_v2_t()
        query.lib.nvmlDeviceGetGpuFabricInfoV(query.handle, ctypes.byref(info))
        return int(info.state)

    value = query.answer("fabric_state", state)
    if value == 0:
        query.absent["fabric_state"] = "the GPU is not part of a fabric"
    return value or UNKNOWN
