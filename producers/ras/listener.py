"""Finds where the RAS of a job listens on this host: at a socket that one of the job's own processes holds."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from drumline.producers.host.targets import BOOT_TIMES, NotReadable, RecordedProcess, find_pid
from drumline.producers.network.socket_owners import sockets_of

#: Where NCCL listens without NCCL_RAS_ADDR.
PORT = 28028
VARIABLE, SWITCH = b"NCCL_RAS_ADDR=", b"NCCL_RAS_ENABLE=0"
#: Most bytes of an environment and of a table of sockets: a host has some thousands, of 150 bytes each.
MOST_BYTES = 8 << 20
#: State of a listening socket in /proc/net/tcp.
_LISTENING = "0A"
#: Most processes of a user that are searched: a host has 8 or 16 GPUs.
MOST_PROCESSES = 64


class RasListener(NamedTuple):
    """Names a process whose NCCL listens, and the address: host and port."""

    process: RecordedProcess
    address: tuple[str, int]


def ras_listeners(processes: Iterable[RecordedProcess], proc: Path = Path("/proc")) -> Iterator[RasListener]:
    """Yield where NCCL of these processes listens, once for each user: any user may state any run.

    The environment states the port only. The address is that of a socket which the process itself holds: so no request
    reaches the job of another user that has the port, nor another host. A port of NCCL's configuration file is unknown.
    """
    searched = Counter[int]()
    for process in processes:
        searched[process.user] += 1
        if searched[process.user] > MOST_PROCESSES:
            continue
        try:
            folder = proc / str(find_pid(process, proc, BOOT_TIMES.observed(), os.geteuid()))
            port = _port(_environment(folder))
            is_near = os.readlink(folder / "ns/net") == os.readlink(proc / "self/ns/net")
            if port and is_near and (address := _listening(folder, port)):
                searched[process.user] = MOST_PROCESSES
                yield RasListener(process, address)
        except (NotReadable, OSError, ValueError, IndexError, StopIteration):
            continue


def _environment(folder: Path) -> bytes:
    """Return the begin of a process's environment, which the process may make as large as its memory."""
    with (folder / "environ").open("rb") as file:
        return file.read(MOST_BYTES)


def _port(environment: bytes) -> int:
    """Return the port that a process's environment names; 0 = RAS is switched off. Raises ValueError."""
    variables = environment.split(b"\0")
    if SWITCH in variables:
        return 0
    named = next((text[len(VARIABLE) :] for text in variables if text.startswith(VARIABLE)), b"")
    return int(named.rpartition(b":")[2]) if named else PORT


def _listening(folder: Path, port: int) -> tuple[str, int] | None:
    held = set(sockets_of(folder / "fd"))
    for table in ("tcp", "tcp6"):
        for address, inode in _listeners(folder / "net" / table, port):
            if inode in held:
                return address, port
    return None


def _listeners(table: Path, port: int) -> Iterator[tuple[str, int]]:
    """Yield the addresses, and inodes, of the sockets that listen at a port. Raises OSError, ValueError."""
    with table.open() as lines:
        for line in lines.read(MOST_BYTES).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield _address(fields[1].rpartition(":")[0]), int(fields[9])


def _address(text: str) -> str:
    """Return an address of /proc/net/tcp, whose words are in the byte order of the host; of all, this host's own."""
    parts = [int(text[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(text), 8)]
    family = socket.AF_INET if len(parts) == 1 else socket.AF_INET6
    address = socket.inet_ntop(family, b"".join(parts))
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
