"""Restriction of this process to a few folders with Linux' Landlock (docs.kernel.org/userspace-api/landlock.html).

clickhouse-local lets every user read any file of the host through the scalar function `file()`, whatever the
grants are (the table function `file()` is denied). Landlock needs no privileges and cannot be undone by the process.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

# The same numbers on every architecture that came after 2019's unification of syscalls.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
QUERY_VERSION = 1
PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38
READ_FILE, READ_DIR = 1 << 2, 1 << 3
EXECUTE = 1 << 0
READ = EXECUTE | READ_FILE | READ_DIR
#: All rights of the first version (Linux 5.13); rights that are handled and not granted are denied.
FIRST_VERSION = (1 << 13) - 1
#: Renaming from one folder to another, which the first version forbids in any case and ClickHouse needs (5.19).
REFER = 1 << 13
TRUNCATE = 1 << 14
#: Rights that make sense on a file; the others need a folder.
ON_FILES = EXECUTE | READ_FILE | 1 << 1 | TRUNCATE


def confine(writable: Iterable[Path], readable: Iterable[Path]) -> bool:
    """Allow this thread and all its children only these folders and files; missing paths are left out.

    Call it before other threads start. Returns False where the kernel has no Landlock, or only its first version.
    Raises OSError when the kernel rejects a call.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        result = int(libc.syscall(ctypes.c_long(number), *arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    try:
        version = call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(QUERY_VERSION))
    except OSError:
        return False
    if version < 2:
        return False
    everything = FIRST_VERSION | REFER | (TRUNCATE if version >= 3 else 0)
    ruleset = call(CREATE_RULESET, struct.pack("Q", everything), ctypes.c_size_t(8), ctypes.c_uint32(0))
    rules = [(path, everything) for path in writable] + [(path, READ) for path in readable]
    for path, rights in rules:
        try:
            target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        allowed = rights if path.is_dir() else rights & ON_FILES & everything
        rule = struct.pack("=Qi", allowed, target)
        call(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(PATH_BENEATH), rule, ctypes.c_uint32(0))
        os.close(target)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)
    return True
