"""Claims a GPU for one process of the host, until that process ends: PC sampling is for one at a time."""

from __future__ import annotations

import ctypes
import fcntl
import os
from pathlib import Path
from typing import Any

from drumline.producers.ipc.plain_file import open_plain

#: Prefix of the claimed files in the spool's root; the GPU's UUID follows.
PREFIX = ".sampled-"
_UUID_BYTES = 16


class GpuUnknown(RuntimeError):
    """The driver does not tell which GPU an ordinal is; the message has its CUresult."""


def uuid_of(driver: Any, ordinal: int) -> str:
    """Return the UUID of a GPU (of a part, with MIG), in hexadecimal. `driver`: CUDA's. Raises GpuUnknown."""
    device, uuid = ctypes.c_int(), ctypes.create_string_buffer(_UUID_BYTES)
    code = driver.cuDeviceGet(ctypes.byref(device), ordinal) or driver.cuDeviceGetUuid_v2(uuid, device)
    if code:
        raise GpuUnknown(f"GPU {ordinal} has no UUID (CUresult {code})")
    return uuid.raw.hex()


def claim(root: Path, gpu: str) -> bool:
    """Claim a GPU and return whether no other process has it. Never waits. Raises OSError.

    The lock ends with the process, and with the children that it forks. `root`: of the spool; processes that share the
    GPU but not this folder do not see the claim. `gpu`: from `uuid_of`.
    """
    path = root / f"{PREFIX}{gpu}"
    try:
        descriptor = open_plain(path)  # without O_CREAT, which Linux may refuse for another user's file
    except FileNotFoundError:
        descriptor = open_plain(path, os.O_RDONLY | os.O_CREAT)
        os.fchmod(descriptor, 0o644)  # a job of any user must open it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True
