"""Meanings of bits and groups of columns that several programs read."""

from __future__ import annotations

from collections.abc import Mapping
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
