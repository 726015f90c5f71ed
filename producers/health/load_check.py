"""Short loads on idle GPUs: a matrix product and copies from host memory, by the jobs' PyTorch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from drumline.producers.health.health_check import FAIL, OK, SKIPPED, HealthCheck, describe, reasons
from drumline.producers.health.model_table import COPY_SHARE, MATMUL_SHARE, Sourced, limits_of, pcie_gbytes
from drumline.producers.nvml.mig_instances import compute_processes
from drumline.producers.nvml.samples import Gpu, Nvml
from drumline.schemas.counters import CLOCK_FAULT_BITS

#: Memory in use of a GPU that no process holds: the driver's own; share of all.
IDLE_MEMORY = 0.02
#: Longest time of the loads of a GPU; s. They work for two seconds; importing PyTorch from a cold disk takes longer.
LONGEST_S = 120.0
#: Period of readings while they run; s.
_POLL_S = 0.1
LOADS = """
import json, sys, time
try:
    import torch
    if torch.version.cuda is None:
        raise ImportError("PyTorch is built without CUDA")
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit()
try:
    torch.cuda.init()
except Exception as error:
    print(json.dumps({"problem": "CUDA does not work: " + " ".join(str(error).split())[:200]}))
    sys.exit()
size, device = 8192, torch.device("cuda")
a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
copy = torch.empty_like(host, device=device)
def rate(work):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    count, begun = 0, time.monotonic()
    while (took := time.monotonic() - begun) < 1:
        for _ in range(4):
            work()
        torch.cuda.synchronize()
        count += 4
    return count / (time.monotonic() - begun)
print(json.dumps({"tflops": rate(lambda: torch.mm(a, b)) * 2 * size**3 / 1e12,
                  "gbytes": rate(lambda: copy.copy_(host, non_blocking=True)) * (1 << 28) / 1e9}))
"""


def busy(nvml: Nvml, gpu: Gpu) -> str:
    """Return why no load may run on a GPU; "" if it is idle. Processes of other containers may not be listed, so its
    memory and utilisation count too. Raises NvmlLost.
    """
    if gpu.instances:
        return "it is divided into instances"
    row, processes = nvml.sample(gpu, time.time_ns()), compute_processes(gpu.query)
    if processes is None:
        return "NVML does not list its processes"
    if processes:
        return f"{len(processes)} processes compute on it"
    if row["util_gpu"] > 0 or row["memory_used"] > IDLE_MEMORY * row["memory_total"]:
        return f"it is {max(row['util_gpu'], 0):.0f}% busy, {row['memory_used'] / 1e9:.1f} GB of its memory are in use"
    return ""


def _other(gpu: Gpu, group: int) -> str:
    """Return what computes on a GPU beside the load, whose process group this is; "" if nothing is seen."""
    unknown = 0
    for pid in compute_processes(gpu.query) or ():
        try:
            if os.getpgid(pid) != group:
                return f"process {pid} began to compute on it"
        except ProcessLookupError:  # it ended, or NVML counts in another pid namespace: then one is the load
            unknown += 1
    return f"{unknown} processes compute on it" if unknown > 1 else ""


def load_checks(nvml: Nvml, gpu: Gpu, python: str) -> Iterator[HealthCheck]:
    """Yield the checks of one GPU under load, or why it was skipped. `python`: has PyTorch. Takes some seconds.
    Raises NvmlLost.
    """
    about = describe(gpu)
    problem = busy(nvml, gpu)
    result, row = ({"missing": problem}, {"throttle_reasons": 0}) if problem else _run(gpu, python)
    if failure := result.get("missing") or result.get("problem"):
        yield HealthCheck("load", FAIL if "problem" in result else SKIPPED, str(failure), **about)
        return
    if row["throttle_reasons"] & CLOCK_FAULT_BITS:
        yield HealthCheck("clocks under load", FAIL, f"slowed down: {reasons(row)}", **about)
    else:
        yield HealthCheck("clocks under load", OK, f"{row['sm_clock']:,} MHz", **about, measured=row["sm_clock"])
    known = limits_of(gpu.model)
    product = known.bf16_tflops if known else None
    for name, number, unit, reference, share in (
        ("matmul", "tflops", "TFLOPS (bf16)", product, MATMUL_SHARE),
        ("host to device", "gbytes", "GB/s", _pcie(gpu), COPY_SHARE),
    ):
        value, least = float(result[number]), reference.value * share if reference else -1.0
        state = SKIPPED if reference is None else OK if value >= least else FAIL
        reason = (
            f"at least {least:.0f}: {share:.0%} of {reference.source}" if reference else f"no figure for {gpu.model}"
        )
        yield HealthCheck(name, state, f"{value:.0f} {unit}; {reason}", **about, measured=value, expected=least)


def _pcie(gpu: Gpu) -> Sourced | None:
    """Return what the GPU's PCIe link carries at the most that GPU and host allow; None if that is not known."""
    generation = gpu.query.number("most PCIe generation", "nvmlDeviceGetMaxPcieLinkGeneration")
    lanes = gpu.query.number("most PCIe width", "nvmlDeviceGetMaxPcieLinkWidth")
    carried = pcie_gbytes(generation, lanes)
    return Sourced(carried, f"PCIe {generation}.0 x{lanes}", "") if carried else None


def _run(gpu: Gpu, python: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Run the loads; return their results, and reasons for a lower clock and the highest clock meanwhile."""
    try:
        process = subprocess.Popen(
            ["env", f"CUDA_VISIBLE_DEVICES={gpu.uuid}", "DRUMLINE_POLICY=off", python, "-c", LOADS],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return {"missing": str(error)}, {}
    seen = {"throttle_reasons": 0, "sm_clock": 0}
    until, other = time.monotonic() + LONGEST_S, ""
    try:
        while process.poll() is None and not other and time.monotonic() < until:
            bits = gpu.query.number("throttle_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
            clock = gpu.query.number("sm_clock", "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM")
            seen = {
                "throttle_reasons": seen["throttle_reasons"] | max(bits, 0),
                "sm_clock": max(seen["sm_clock"], clock),
            }
            other = _other(gpu, process.pid)
            if not other:
                time.sleep(_POLL_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
    if other:
        return {"missing": f"{other}: the load was ended"}, seen
    if process.returncode == 127:
        return {"missing": f"{python}: not found"}, seen
    if process.returncode:
        last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return {"problem": last[:200]}, seen
    return dict(json.loads(output)), seen
