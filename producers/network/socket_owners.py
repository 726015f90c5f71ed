"""Sockets of recorded processes, as /proc shows them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

import structlog

from drumline.producers.host.targets import BOOT_TIMES, NotReadable, RecordedProcess, find_pid, start_ticks

log = structlog.get_logger()

#: Most processes of one user, and files of a process, that are read.
MOST_OF_USER, MOST_FILES = 64, 1 << 16
_SOCKET = "socket:["


class SocketOwners:
    """Knows the sockets of the recorded processes of this host. Used by one thread. `proc`: where /proc is mounted."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        #: Name of a process -> its number, and its start: a number is used again.
        self._pids: dict[str, tuple[int, int]] = {}
        self._left_out: set[str] = set()
        self._logged: set[str] = set()
        #: Inode of a socket -> names of the processes that hold it.
        self.owners: dict[int, list[str]] = {}
        #: Name (user:process id; any user may state any id) -> process, of those whose sockets are known.
        self.processes: dict[str, RecordedProcess] = {}
        #: Number of recorded processes whose connections are not seen.
        self.left_out = 0

    def follow(self, processes: Iterable[RecordedProcess]) -> None:
        """Read the sockets of these processes. What may not be read is left out; other failures are tried again."""
        offered, users = dict[str, RecordedProcess](), Counter[int]()
        for process in processes:
            users[process.user] += 1
            if users[process.user] <= MOST_OF_USER:
                offered[f"{process.user}:{process.record['process_id']}"] = process
        self._left_out &= offered.keys()
        self._logged &= offered.keys()
        boot_times = BOOT_TIMES.observed()
        self.processes, seen = {}, set()
        pids, owners = dict[str, tuple[int, int]](), dict[int, list[str]]()
        for name, process in offered.items():
            if (place := _place(process)) in seen or name in self._left_out:  # one with two sources has one row
                continue
            try:
                pid, start = self._known(name) or self._find(process, boot_times)
                inodes = sockets_of(self._proc / str(pid) / "fd")
                if start_ticks(self._proc / str(pid)) != start:
                    raise ProcessLookupError(f"process {pid} is another one since")
            except (NotReadable, OSError, ValueError, IndexError, StopIteration) as error:
                if isinstance(error, NotReadable | PermissionError):
                    self._left_out.add(name)
                if name not in self._logged:
                    self._logged.add(name)
                    rank = process.record["rank"]
                    log.warning("no connections of a process", process=name, rank=rank, why=str(error))
                continue
            seen.add(place)
            self.processes[name], pids[name] = process, (pid, start)
            for inode in inodes:
                owners.setdefault(inode, []).append(name)
        self._pids, self.owners = pids, owners
        self.left_out = len({_place(process) for process in offered.values()} - seen)

    def _known(self, name: str) -> tuple[int, int] | None:
        """Return number and start of a process that was read before and is alive; None for any other."""
        known = self._pids.get(name)
        with suppress(OSError):
            return known if known and start_ticks(self._proc / str(known[0])) == known[1] else None
        return None

    def _find(self, process: RecordedProcess, boot_times: Collection[int]) -> tuple[int, int]:
        """Return number and start of a process. Raises NotReadable, OSError."""
        pid = find_pid(process, self._proc, boot_times, os.geteuid())
        start = start_ticks(self._proc / str(pid))
        if not self._is_in_own_network(pid):
            raise NotReadable("it is in another network namespace than the agent")
        return pid, start

    def _is_in_own_network(self, pid: int) -> bool:
        return os.readlink(self._proc / str(pid) / "ns/net") == os.readlink(self._proc / "self/ns/net")


def _place(process: RecordedProcess) -> tuple[object, ...]:
    """Return what the sources of one process have in common; another user may state the same job and rank."""
    return process.user, *(process.record[name] for name in ("job", "run", "rank"))


def sockets_of(folder: Path) -> list[int]:
    """Return the inodes of the sockets of a process. Raises OSError."""
    inodes = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, MOST_FILES):
            with suppress(FileNotFoundError):  # closed meanwhile
                target = os.readlink(entry.path)
                if target.startswith(_SOCKET):
                    inodes.append(int(target[len(_SOCKET) : -1]))
    return inodes
