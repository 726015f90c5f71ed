"""Reads memory of another process of the same user without stopping it: process_vm_readv(2).

A bad pointer gives an unreadable piece, never a crash.
"""

from __future__ import annotations

import ctypes
import errno
import os

import numpy as np

from drumline.schemas.columns import Array

#: Most pieces per call (IOV_MAX is 1024).
_PIECES = 512
_PAGE = 4096


class NotAllowed(PermissionError):
    """The kernel or a security profile forbids reading that process. No retry helps."""


class RemoteMemory:
    """Reads the memory of process `pid`, which may be this one. Raises OSError where the system call is missing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._call = ctypes.CDLL(None, use_errno=True).process_vm_readv
        self._call.restype = ctypes.c_ssize_t
        u8, pointer = ctypes.c_ulong, ctypes.c_void_p
        self._call.argtypes = (ctypes.c_int, pointer, u8, pointer, u8, u8)

    def read(self, addresses: Array, sizes: Array) -> tuple[Array, Array, Array]:
        """Read n pieces of memory.

        Returns (bytes u1, offsets int64 of length n + 1, readable bool): piece i is bytes[offsets[i] : offsets[i + 1]].
        A piece that cannot be read whole is zeros. `addresses`, `sizes`: of the pieces; bytes. Raises NotAllowed.
        """
        count = len(addresses)
        offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        out, readable = np.zeros(int(offsets[-1]), np.uint8), np.zeros(count, bool)
        pieces = np.empty((count, 2), np.uint64)
        pieces[:, 0], pieces[:, 1] = addresses, sizes
        local = np.empty((1, 2), np.uint64)
        at = 0
        while at < count:
            group = min(_PIECES, count - at)
            local[0] = (out.ctypes.data + int(offsets[at]), int(offsets[at + group] - offsets[at]))
            got = self._call(self.pid, local.ctypes.data, 1, pieces[at:].ctypes.data, group, 0)
            if got < 0:
                self._raise_unless_unreadable(ctypes.get_errno())
                got = 0
            # What is copied before a bad piece is copied in whole pieces.
            done = int(np.searchsorted(offsets, offsets[at] + got, side="right")) - 1 - at
            done = min(max(done, 0), group)
            readable[at : at + done] = True
            out[offsets[at + done] : offsets[at + group]] = 0
            at += done if done == group else done + 1
        return out, offsets, readable

    def text(self, address: int, longest: int) -> bytes | None:
        """Return the C string at an address, at most `longest` bytes; None if unreadable. Raises NotAllowed."""
        text = b""
        while len(text) < longest:
            size = min(_PAGE - (address + len(text)) % _PAGE, longest - len(text))
            data, _, readable = self.read(np.array([address + len(text)], np.uint64), np.array([size]))
            if not readable[0]:
                return None
            piece = data.tobytes()
            end = piece.find(b"\0")
            if end >= 0:
                return text + piece[:end]
            text += piece
        return text

    def _raise_unless_unreadable(self, code: int) -> None:
        if code in (errno.EPERM, errno.ENOSYS):
            raise NotAllowed(code, f"process_vm_readv of {self.pid}: {os.strerror(code)}")
        if code not in (errno.EFAULT, errno.ESRCH):  # a bad address; the process has exited
            raise OSError(code, os.strerror(code))
