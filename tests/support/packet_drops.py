"""Packets that a network device loses, for kernels without netem: a part at random, or all that are large.

A small BPF program classifies what comes in (cls_bpf in direct action mode). Lost by the sender's device, the sender
would know, and TCP would count none as lost. Needs root.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable

BPF, PROG_LOAD, SCHED_CLS = 321, 5, 3
GET_PRANDOM_U32 = 7
#: struct __sk_buff begins with the packet's length.
LENGTH = 0
OK, SHOT = 0, 2
#: Operations of BPF on registers.
CALL, EXIT, SET, COPY, LOAD, JUMP_LESS, JUMP = 0x85, 0x95, 0xB4, 0xBF, 0x61, 0xAD, 0x05
ETHTOOL, SET_TSO, SET_GSO = 0x8946, 0x1F, 0x24


def instruction(operation: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhI", operation, source << 4 | to, offset, value)


def program(part: float, largest: int) -> int:
    """Return the file of a program that drops a part of all packets, and those larger than `largest` bytes."""
    limit = min(int(part * 2**32), 2**32 - 1)
    code = b"".join(
        [
            instruction(LOAD, 6, 1, LENGTH),
            instruction(SET, 7, value=largest),
            instruction(JUMP_LESS, 7, 6, 5),  # to the drop
            instruction(CALL, value=GET_PRANDOM_U32),
            instruction(SET, 7, value=limit),
            instruction(JUMP_LESS, 0, 7, 2),  # to the drop
            instruction(SET, 0, value=OK),
            instruction(EXIT),
            instruction(SET, 0, value=SHOT),
            instruction(EXIT),
        ]
    )
    buffer, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(1 << 14)
    values = struct.pack(
        "<IIQQIIQ", SCHED_CLS, len(code) // 8, ctypes.addressof(buffer), ctypes.addressof(licence), 1, len(log),
        ctypes.addressof(log),
    ) + bytes(80)  # fmt: skip
    libc = ctypes.CDLL(None, use_errno=True)
    file = libc.syscall(BPF, PROG_LOAD, ctypes.create_string_buffer(values), len(values))
    if file < 0:
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: {log.value.decode()[-300:]}")
    return int(file)


def without_large_packets(name: str, commands: Iterable[int] = (SET_TSO, SET_GSO)) -> None:
    """Let the kernel cut what it sends over a device to the size of its packets."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in commands:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            fcntl.ioctl(control, ETHTOOL, struct.pack("16sQ", name.encode(), ctypes.addressof(value)))
