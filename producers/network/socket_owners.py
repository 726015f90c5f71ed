"""Sockets of recorded processes, as /proc shows them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

import structlog

from drumline.producers.host.targets import BOOT_TIMES, NotReadable, RecordedProcess, find_pid

log = structlog.get_logger()

#: Most processes of one user, and files of a process, that are read.
MOST_OF_USER, MOST_FILES = 64, 1 << 16
_SOCKET = "socket:["


class SocketOwners:
    """Knows the sockets of the recorded processes of this host. Used by one thread. `proc`: where /proc is mounted."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._pids: dict[str, int] = {}
        self._left_out: set[str] = set()
        #: Inode of a socket -> ids of the processes that hold it.
        self.owners: dict[int, list[str]] = {}
        #: Process id -> process.
        self.processes: dict[str, RecordedProcess] = {}

    def follow(self, processes: Iterable[RecordedProcess]) -> None:
        """Read the sockets of these processes; what may not be read is logged once."""
        places, users = set(), Counter[int]()
        self.processes = {}
        for process in processes:
            place = process.record["job"], process.record["run"], process.record["rank"]
            users[process.user] += 1
            if place not in places and users[process.user] <= MOST_OF_USER:  # a process with two sources has one row
                places.add(place)
                self.processes[str(process.record["process_id"])] = process
        self._left_out &= self.processes.keys()
        boot_times = BOOT_TIMES.observed()
        pids, owners = {}, dict[int, list[str]]()
        for name, process in self.processes.items():
            if name in self._left_out:
                continue
            try:
                pid = self._pids.get(name) or find_pid(process, self._proc, boot_times, os.geteuid())
                if name not in self._pids and not self._is_in_own_network(pid):
                    raise NotReadable("it is in another network namespace than the agent")
                inodes = _sockets(self._proc / str(pid) / "fd")
            except (NotReadable, OSError, ValueError, IndexError, StopIteration) as error:
                self._left_out.add(name)
                log.warning("no connections of a process", process=name, rank=process.record["rank"], why=str(error))
                continue
            pids[name] = pid
            for inode in inodes:
                owners.setdefault(inode, []).append(name)
        self._pids, self.owners = pids, owners

    @property
    def left_out(self) -> int:
        """Return the number of recorded processes whose connections are not seen."""
        return len(self._left_out)

    def records(self) -> Mapping[str, Mapping[str, object]]:
        """Return the record of each process, by its id."""
        return {name: process.record for name, process in self.processes.items()}

    def _is_in_own_network(self, pid: int) -> bool:
        return os.readlink(self._proc / str(pid) / "ns/net") == os.readlink(self._proc / "self/ns/net")


def _sockets(folder: Path) -> list[int]:
    """Return the inodes of the sockets of a process. Raises OSError."""
    inodes = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, MOST_FILES):
            with suppress(FileNotFoundError):  # closed meanwhile
                target = os.readlink(entry.path)
                if target.startswith(_SOCKET):
                    inodes.append(int(target[len(_SOCKET) : -1]))
    return inodes
