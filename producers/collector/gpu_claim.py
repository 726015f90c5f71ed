"""Claims a GPU for one process of the host, until that process ends: PC sampling is for one at a time."""

from __future__ import annotations

import contextlib
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


def claim(root: Path, gpu: str) -> int:
    """Claim a GPU and return a descriptor that holds the claim until it is closed; -1 = another process has it.

    Never waits. The lock ends with the process, and with the children that it forks. Raises OSError. `root`: of the
    spool; processes that share the GPU but not this folder do not see the claim. `gpu`: from `uuid_of`.
    """
    path = root / f"{PREFIX}{gpu}"
    try:
        descriptor = open_plain(path)  # without O_CREAT, which Linux may refuse for another user's file
    except FileNotFoundError:
        descriptor = open_plain(path, os.O_RDONLY | os.O_CREAT)
        with contextlib.suppress(OSError):  # another user's process laid it meanwhile
            os.fchmod(descriptor, 0o644)  # a job of any user must open it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return -1
        raise
    return descriptor
