"""Demangling of kernel names in a separate process (`python -m drumline.infra.clickhouse.demangle`).

The C++ library of the machine does it, as for PyTorch's profiler and NVIDIA's tools, so all print the same name.

A mangled name of a few hundred bytes can expand to gigabytes (back references double it), and any user of a GPU chooses
names. So the process has limited memory and CPU time. A name that needs more stays mangled, and the next one gets a new
process.
"""

from __future__ import annotations

import ctypes
import json
import resource
import subprocess
import sys
from collections.abc import Sequence

#: Limits of one process: bytes of memory, seconds of CPU, characters kept of a name.
MEMORY, CPU_S, MOST = 256 << 20, 1, 16_384
#: Processes that may fail in one call; then the rest stays mangled.
DEATHS = 3


def demangled(names: Sequence[str]) -> list[str]:
    """Return the C++ form of each name; names that are not mangled, or cannot be demangled, stay as they are."""
    result = list(names)
    waiting = [i for i, name in enumerate(names) if name.startswith("_Z") and "\n" not in name]
    for _ in range(DEATHS):
        if not waiting:
            break
        command = [sys.executable, "-m", "drumline.infra.clickhouse.demangle"]
        text = "".join(f"{names[i]}\n" for i in waiting)
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="surrogateescape", check=False
        )
        answers = done.stdout.split("\n")[:-1]
        for i, answer in zip(waiting, answers, strict=False):
            result[i] = json.loads(answer)
        waiting = waiting[len(answers) + 1 :]  # the name that stopped the process stays mangled
    return result


def main() -> None:
    """Read names from stdin and print each demangled one as JSON."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except OSError:  # the names stay as they are
        return
    demangle.restype = ctypes.c_void_p
    free = ctypes.CDLL(None).free
    free.argtypes = (ctypes.c_void_p,)
    for line in sys.stdin:
        name = line.rstrip("\n")
        plain = demangle(name.encode(errors="surrogateescape"), None, None, None)
        if plain:
            name = ctypes.string_at(plain).decode(errors="replace")
            free(plain)
        print(json.dumps(name[:MOST]), flush=True)


if __name__ == "__main__":
    main()
