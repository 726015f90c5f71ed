"""Checks of a host's GPUs by NVML's readings: nothing runs on them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drumline.producers.health.model_table import limits_of
from drumline.producers.nvml.query import text
from drumline.producers.nvml.samples import Gpu, Nvml
from drumline.schemas.counters import CLOCK_FAULT_BITS, CLOCK_FAULTS

OK, WARN, FAIL, SKIPPED = "ok", "warn", "fail", "skipped"
#: What NVML wants done (nvmlDeviceGpuRecoveryAction_t).
RECOVERY = {1: "a reset", 2: "a reboot", 3: "its peers drained", 4: "a drain and a reset"}


@dataclass(frozen=True)
class HealthCheck:
    """Result of one check.

    Attributes:
        name: check.
        state: OK, WARN, FAIL or SKIPPED.
        text: finding.
        gpu_uuid, gpu_index, serial, model: GPU that it is about; empty and -1 of the host.
        measured, expected: numbers that were compared; -1 = none.
    """

    name: str
    state: str
    text: str
    gpu_uuid: str = ""
    gpu_index: int = -1
    serial: str = ""
    model: str = ""
    measured: float = -1.0
    expected: float = -1.0


def gpu_count(nvml: Nvml, wanted: int, on_bus: int) -> HealthCheck:
    """Check the number of GPUs that answer. `wanted`: 0 = as many as the bus has, and fewer is a warning only."""
    count, expected = len(nvml.gpus), wanted or on_bus
    silent = f"; NVML lists {len(nvml.silent)} more that do not answer" if nvml.silent else ""
    finding = f"{count} of {expected} GPUs answer{silent}"
    fewer = FAIL if wanted or nvml.silent or not count else WARN  # a container may be given fewer
    return HealthCheck(
        "GPU count", OK if count >= expected and count else fewer, finding, "", -1, "", "", count, expected
    )


def reading_checks(nvml: Nvml, gpu: Gpu) -> Iterator[HealthCheck]:
    """Yield the checks of one GPU that need nothing but its readings. Raises NvmlLost."""
    about = describe(gpu)
    row = nvml.sample(gpu, time.time_ns(), complete=True)
    yield _links(row, gpu, about)
    yield _memory(row, about)
    yield _recovery(row, about)
    yield _clocks(row, gpu, about)
    yield _lanes(gpu, about)


def describe(gpu: Gpu) -> dict[str, Any]:
    """Return UUID, index, serial number and model of a GPU, as fields of its checks."""
    query = gpu.query
    serial = query.answer("serial", lambda: query.lib.nvmlDeviceGetSerial(query.handle))
    return {"gpu_uuid": gpu.uuid, "gpu_index": gpu.index, "serial": text(serial or ""), "model": gpu.model}


def _links(row: Mapping[str, float], gpu: Gpu, about: Mapping[str, Any]) -> HealthCheck:
    known = limits_of(gpu.model)
    links, active = int(row["nvlink_links"]), int(row["nvlink_active"])
    if links <= 0 or active < 0:
        reason = gpu.query.absent.get("nvlink_links", "it has none")
        return HealthCheck("NVLink", SKIPPED, f"no link can be seen: {reason}", **about)
    wanted = max(links, int(known.links.value) if known and known.links else 0)
    state = OK if active >= wanted else FAIL
    return HealthCheck("NVLink", state, f"{active} of {wanted} links are up", **about, measured=active, expected=wanted)


def _memory(row: Mapping[str, float], about: Mapping[str, Any]) -> HealthCheck:
    if row["remap_failure"] < 0 and row["ecc_uncorrected"] < 0:
        return HealthCheck("memory", SKIPPED, "the GPU reports neither ECC nor remapped rows", **about)
    if row["remap_failure"] > 0:
        return HealthCheck("memory", FAIL, "a row could not be remapped: have the GPU replaced", **about, measured=1)
    if row["remap_pending"] > 0 or row["ecc_uncorrected"] > 0:
        errors = max(int(row["ecc_uncorrected"]), 0)
        finding = f"{errors} uncorrected errors; " + ("a row waits for a reset" if row["remap_pending"] > 0 else "")
        return HealthCheck("memory", WARN, f"{finding.rstrip('; ')}: reset the GPU", **about, measured=errors)
    return HealthCheck("memory", OK, "no row failed or waits, no uncorrected error", **about)


def _recovery(row: Mapping[str, float], about: Mapping[str, Any]) -> HealthCheck:
    action = int(row["recovery_action"])
    if action < 0:
        return HealthCheck("recovery", SKIPPED, "the driver does not report it", **about)
    if action:
        return HealthCheck("recovery", FAIL, f"NVML wants {RECOVERY.get(action, f'action {action}')}", **about)
    return HealthCheck("recovery", OK, "NVML wants nothing done", **about)


def _clocks(row: Mapping[str, float], gpu: Gpu, about: Mapping[str, Any]) -> HealthCheck:
    known, most = limits_of(gpu.model), gpu.query.number("max clock", "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM")
    if row["throttle_reasons"] > 0 and int(row["throttle_reasons"]) & CLOCK_FAULT_BITS:
        return HealthCheck("clocks", FAIL, f"slowed down by heat or a power fault: {reasons(row)}", **about)
    if known is None or known.sm_mhz is None or most < 0:
        return HealthCheck("clocks", SKIPPED, f"no figure for {gpu.model}", **about, measured=most)
    least = known.sm_mhz
    finding = f"up to {most:,} MHz of {least.value:,.0f} ({least.source})"
    state = OK if most >= least.value else WARN
    return HealthCheck("clocks", state, finding, **about, measured=most, expected=least.value)


def _lanes(gpu: Gpu, about: Mapping[str, Any]) -> HealthCheck:
    width = gpu.query.number("PCIe width", "nvmlDeviceGetCurrPcieLinkWidth")
    most = gpu.query.number("most PCIe width", "nvmlDeviceGetMaxPcieLinkWidth")
    if width < 0 or most < 0:
        return HealthCheck("PCIe", SKIPPED, "the driver does not report its lanes", **about)
    return HealthCheck(
        "PCIe", OK if width >= most else FAIL, f"{width} of {most} lanes", **about, measured=width, expected=most
    )


def reasons(row: Mapping[str, float]) -> str:
    """Return the faults among the reasons for a lower clock."""
    return " + ".join(name for bit, name in CLOCK_FAULTS.items() if int(row["throttle_reasons"]) & bit)
