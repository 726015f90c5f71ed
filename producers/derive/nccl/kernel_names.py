"""Names and payloads that NCCL leaves in a recording: kernel names, NVTX range names, NVTX payloads.

Names: NCCL's device code generators (src/device/generate.py, src/device/symmetric/generate.py) and the NVTX ranges of
its API functions. Payloads: structs of src/include/nvtx_payload_schemas.h; all collectives start with u64 communicator
hash, u64 message bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from drumline.schemas.columns import Array

DOMAIN = "NCCL"
GROUP_START = "ncclGroupStart"
GROUP_END = "ncclGroupEnd"

#: Dictionary of gpu.collective.v1; "" stands for a kernel name without an operation.
OPERATIONS = (
    "",
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "Reduce",
    "Send",
    "Recv",
    "SendRecv",
    "AllToAll",
    "Gather",
    "Scatter",
)
_CODE = {name.lower(): code for code, name in enumerate(OPERATIONS)}
_RANGES = {f"nccl{name}".lower(): _CODE[name.lower()] for name in OPERATIONS if name and name != "SendRecv"}
_RANGES["ncclbcast"] = _CODE["broadcast"]

#: Range operations that NCCL runs point to point: their kernel is named SendRecv.
_POINT_TO_POINT = {_CODE[name] for name in ("send", "recv", "sendrecv", "alltoall", "gather", "scatter")}
SEND_RECV = _CODE["sendrecv"]

_KERNEL = re.compile(r"nccl(?:Dev|Symk?Dev)?Kernel_([A-Za-z]+)")


def is_kernel(names: Sequence[str]) -> Array:
    """Return which kernel names (mangled or not) are NCCL's: bool, one a name."""
    return np.array([_KERNEL.search(name) is not None for name in names], dtype=bool)


def kernel_operations(names: Sequence[str]) -> Array:
    """Return the operation code (index into OPERATIONS) in each kernel name; 0 = none (ncclDevKernel_Generic)."""
    matches = [_KERNEL.search(name) for name in names]
    return np.array([_CODE.get(m.group(1).lower(), 0) if m else 0 for m in matches], dtype=np.uint8)


def range_operations(names: Sequence[str]) -> Array:
    """Return the operation code of each NVTX range name; 0 for ranges that launch no kernel (ncclCommSplit, ...)."""
    return np.array([_RANGES.get(name.lower(), 0) for name in names], dtype=np.uint8)


def operation_class(operations: Array) -> Array:
    """Return the operation that the kernel of each range operation is named after."""
    table = np.arange(len(OPERATIONS), dtype=np.uint8)
    table[list(_POINT_TO_POINT)] = SEND_RECV
    return table[operations]


def payload_fields(data: bytes, offsets: Array) -> tuple[Array, Array, Array, Array]:
    """Return (communicator u8, bytes u8, peer i4, valid) of payloads concatenated in `data`; `offsets` has one entry
    more. `peer`: of sends and receives; what stands there of other operations means something else; -1 = nothing does.

    Payloads shorter than 16 bytes belong to no collective: not valid, the other fields 0 and -1.
    """
    starts, length = np.asarray(offsets[:-1], np.int64), np.diff(offsets)
    valid = length >= 16
    fields = np.zeros((len(starts), 24), np.uint8)
    blob = np.append(np.frombuffer(data, np.uint8), np.zeros(24, np.uint8))
    fields[valid] = blob[starts[valid, None] + np.arange(24)]
    fields64 = fields.view("<u8")
    peer = np.where(length >= 20, fields.view("<i4")[:, 4], -1).astype(np.int32)
    return np.where(valid, fields64[:, 0], 0), np.where(valid, fields64[:, 1], 0), peer, valid


#: Communicators from this value on are guesses, not hashes: 1 in 2**27 hashes would be taken for one.
_GUESSES = (1 << 64) - (1 << 37)


def guess(stream: Array | int, operations: Array) -> Array:
    """Return stand-ins for communicators that NCCL does not name, by stream (u4) and operation class: u8."""
    kinds = np.asarray(stream, np.uint64) * np.uint64(16) + operation_class(operations).astype(np.uint64)
    return np.uint64(_GUESSES) + kinds


def is_guess(communicators: Array) -> Array:
    """Return which communicators are guesses: bool."""
    guesses: Array = communicators >= np.uint64(_GUESSES)
    return guesses


def hash_text(communicator: int) -> str:
    """Return the text of a communicator, used everywhere: its hash in 16 hex digits, a guess as "~stream operation"."""
    if communicator >= _GUESSES:
        stream, operation = divmod(communicator - _GUESSES, 16)
        return f"~{stream} {OPERATIONS[operation]}"
    return f"{communicator:016x}"
