"""C++ names of kernels, in a process of its own (`python -m drumline.infra.clickhouse.demangle`): names in, JSON out.

A mangled name of a few hundred bytes can stand for gigabytes (back references double it), and names come from whoever
runs a kernel. So the demangler gets bounded memory and time; a name that needs more stays as it is, and the next one
gets a new process.
"""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Sequence

#: Of one process: bytes of memory, seconds of CPU, characters kept of a name.
MEMORY, CPU_S, MOST = 256 << 20, 1, 16_384
#: Processes that may die over one call; then the rest stays mangled.
DEATHS = 3


def demangled(names: Sequence[str]) -> list[str]:
    """The C++ form of each name; those that are not mangled, or cannot be demangled, as they are."""
    found = list(names)
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
            found[i] = json.loads(answer)
        waiting = waiting[len(answers) + 1 :]  # the one that it died of stays mangled
    return found


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from cpp_demangle import demangle

    for line in sys.stdin:
        name = line.rstrip("\n")
        with contextlib.suppress(ValueError):
            name = demangle(name)
        print(json.dumps(name[:MOST]), flush=True)


if __name__ == "__main__":
    main()
