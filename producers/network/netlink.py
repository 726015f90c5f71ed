"""Dumps of the kernel over netlink: one request, and the messages that answer it (linux/netlink.h)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_ANSWER_BYTES = 1 << 18
TIMEOUT_S = 5.0


def dump(protocol: int, kind: int, body: bytes, answer_kind: int) -> Iterator[bytes]:
    """Yield the messages of one kind that the kernel answers a request with. Raises OSError where it has none."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.settimeout(TIMEOUT_S)
        kernel.bind((0, 0))
        kernel.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _DUMP, 0, 0) + body)
        is_done = False
        while not is_done:
            messages, is_done = parse_answer(kernel.recv(_ANSWER_BYTES), answer_kind)
            yield from messages


def parse_answer(answer: bytes, wanted: int) -> tuple[list[bytes], bool]:
    """Return the messages of a kind in an answer, and whether it is the last. Raises OSError for the kernel's error."""
    messages: list[bytes] = []
    at = 0
    while at + _HEADER.size <= len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, at)
        if length < _HEADER.size or at + length > len(answer):
            break
        body = answer[at + _HEADER.size : at + length]
        if kind in (_ERROR, _DONE):
            code = struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
            if code < 0:
                raise OSError(-code, os.strerror(-code))
            return messages, True
        if kind == wanted:
            messages.append(body)
        at += length + -length % 4
    return messages, False


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and value of the attributes behind a message's fixed part."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            return
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += length + -length % 4
