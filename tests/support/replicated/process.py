"""The local engine with tables that replicate: `python process.py FOLDER LOGS DATABASE`, as the product's process.

clickhouse-local talks to Keeper, but never gets an address at which other replicas could fetch its parts, and without
one a replicated table stays read-only. So two functions of the wheel's library answer otherwise here: with an address
where nobody listens, and with empty credentials. No part is fetched, then; all else is ClickHouse's own code.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Any

from drumline.infra.localstack.clickhouse import process

#: Context::getInterserverIOAddress and getInterserverCredentials: their place in the library of this version for x86,
#: and how they begin.
VERSION = "26.9.0"
ADDRESS, CREDENTIALS = 0x147217C0, 0x14721740
BEGINS = {ADDRESS: "4156534883ec484c8b36", CREDENTIALS: "41574156534c8b3f"}
#: Nobody listens there.
PORT = 1
PAGE, WRITABLE, FIXED = 0x1000, 7, 5
#: An object of two empty strings and more.
_EMPTY = ctypes.create_string_buffer(4096)


def unsupported() -> str:
    """Return why this machine's wheel cannot replicate, or ""."""
    installed = importlib.metadata.version("chdb-core")
    if installed == VERSION and platform.machine() == "x86_64":
        return ""
    return f"the places in its library are those of chdb-core {VERSION} for x86_64, not of {installed}"


def _returns_address() -> bytes:
    """Return the code that fills in a string of libc++ (short ones end with their length) and a port."""
    host = b"127.0.0.1"
    text, code = host.ljust(23, b"\0") + bytes([len(host)]), b""
    for at in (0, 8, 16):
        code += b"\x48\xb8" + text[at : at + 8] + b"\x48\x89\x47" + bytes([at])  # mov rax, text; mov [rdi + at], rax
    code += b"\x66\xc7\x47\x18" + PORT.to_bytes(2, "little")  # mov word [rdi + 24], port
    return code + b"\x48\x89\xf8\xc3"  # mov rax, rdi; ret


def _returns_empty() -> bytes:
    """Return the code that returns a pointer to an empty object which nobody counts."""
    return b"\x48\xb8" + ctypes.addressof(_EMPTY).to_bytes(8, "little") + b"\x31\xd2\xc3"  # mov rax, it; xor edx, edx


def replace(library: str) -> None:
    """Replace both functions of the loaded library. Raises RuntimeError where it is another build."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(library)]
    base = min(int(fields[0].split("-")[0], 16) for fields in maps)
    for place, code in ((ADDRESS, _returns_address()), (CREDENTIALS, _returns_empty())):
        begin = bytes.fromhex(BEGINS[place])
        if ctypes.string_at(base + place, len(begin)) != begin:
            raise RuntimeError(f"{library} is another build than that of chdb-core {VERSION}")
        page = (base + place) // PAGE * PAGE
        for protection in (WRITABLE, FIXED):
            if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(page), 2 * PAGE, protection) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
            if protection == WRITABLE:
                ctypes.memmove(base + place, code, len(code))


def main() -> int:
    """Run the engine as the product does, with the two functions replaced."""
    load = process.load_binding

    def load_replaced(folder: Path) -> Any:
        binding = load(folder)
        replace("_chdb.abi3.so")
        return binding

    process.load_binding = load_replaced
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
