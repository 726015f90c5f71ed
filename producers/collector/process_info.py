"""Facts that only the GPU process itself can find: its GPUs, library versions and start time."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from drumline.producers.collector import cupti as cupti_library

#: Limit of an SM -> its number in cuDeviceGetAttribute (cuda.h, CUdevice_attribute). Occupancy is computed from them.
SM_ATTRIBUTES = {"sms": 16, "threads": 39, "blocks": 106, "registers": 82, "shared": 81, "reserved": 111}
#: Returns `rank` and `world_size` once they are known; torch_hooks sets it.
place: Callable[[], dict[str, int]] = dict


def describe(cupti: cupti_library.Cupti) -> dict[str, Any]:
    """Return GPUs in CUDA's order, versions, path of CUPTI and start time; JSON values."""
    torch = sys.modules.get("torch")
    versions = {"cupti": str(cupti.version()), "python": sys.version.split()[0]}
    if torch is not None:
        versions["torch"] = str(getattr(torch, "__version__", ""))
        with contextlib.suppress(Exception):
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {"gpus": gpus(), "versions": versions, "cupti": cupti.path, "started_ns": started_ns(os.getpid())}


def gpus() -> list[dict[str, str]]:
    """Return UUID, model and limits of SMs of each GPU that CUDA shows to this process; [] while it is not ready."""
    with contextlib.suppress(Exception):
        cuda = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        if cuda.cuDeviceGetCount(ctypes.byref(count)):
            return []
        visible = []
        for ordinal in range(count.value):
            raw, name = ctypes.create_string_buffer(16), ctypes.create_string_buffer(96)
            whole = ctypes.create_string_buffer(16)
            cuda.cuDeviceGetUuid_v2(raw, ordinal)
            cuda.cuDeviceGetUuid(whole, ordinal)
            cuda.cuDeviceGetName(name, 96, ordinal)
            digits = raw.raw.hex()
            parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
            kind = "MIG" if raw.raw != whole.raw else "GPU"  # the first version knows no instances
            visible.append({
                "uuid": "-".join((kind, *parts)), "model": name.value.decode(errors="replace"), "sm": _sm(cuda, ordinal)
            })  # fmt: skip
        return visible
    return []


def _sm(cuda: ctypes.CDLL, ordinal: int) -> str:
    """Return the limits of a GPU's SMs as CUDA states them, `sms=132 threads=2048 ...`; "" if it does not."""
    values, number = [], ctypes.c_int(0)
    with contextlib.suppress(AttributeError):
        for name, attribute in SM_ATTRIBUTES.items():
            if cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, ordinal):
                return ""
            values.append(f"{name}={number.value}")
    return " ".join(values)


@functools.cache
def started_ns(pid: int) -> int:
    """Return the start time of this process, `pid`, from the kernel's clock ticks, the same at each call; ns since the
    epoch.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat") as file:
            ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        since_boot = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot
    return time.time_ns()
