"""What only a GPU process knows of itself. Standard library only: this runs inside the job."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from typing import Any

from drumline.producers.collector import cupti as binding


def describe(cupti: binding.Cupti) -> dict[str, Any]:
    """What only this process knows of itself: its GPUs in CUDA's order, versions, command."""
    torch = sys.modules.get("torch")
    versions = {"cupti": str(cupti.version()), "python": sys.version.split()[0]}
    if torch is not None:
        versions["torch"] = str(getattr(torch, "__version__", ""))
        with contextlib.suppress(Exception):
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {"gpus": gpus(), "versions": versions, "cupti": cupti.path, "started_ns": started_ns()}


def gpus() -> list[dict[str, str]]:
    """UUID and model of each GPU that CUDA shows to this process; [] when CUDA is not there or not ready."""
    with contextlib.suppress(Exception):
        cuda = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        if cuda.cuDeviceGetCount(ctypes.byref(count)):
            return []
        found = []
        for ordinal in range(count.value):
            raw, name = ctypes.create_string_buffer(16), ctypes.create_string_buffer(96)
            cuda.cuDeviceGetUuid_v2(raw, ordinal)
            cuda.cuDeviceGetName(name, 96, ordinal)
            digits = raw.raw.hex()
            parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
            found.append({"uuid": "GPU-" + "-".join(parts), "model": name.value.decode(errors="replace")})
        return found
    return []


def started_ns() -> int:
    """When this process started; ns since the epoch, from the kernel's clock ticks."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        since_boot = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot
    return time.time_ns()
