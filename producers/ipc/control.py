"""Requests to processes of this host from afar, as the agent mirrors them into a file beside the host's policy.

The agent writes the file again once a second, and processes take none that is older than LEASE_NS: what an agent began
ends with it. What is asked ends by itself too, at a time or with a step. The host's own policy file comes first.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from drumline.producers.ipc.plain_file import NotTrusted, open_trusted, untrusted

#: Name of the file in the spool's root.
FILE = ".control"
#: Age of the file from which on it does not count; ns. The agent renews it once a second.
LEASE_NS = 4_000_000_000
#: Kind that asks NCCL's plugin for all steps, and changes nothing else.
TIMES = "times"
#: Most bytes of the file, policies in it, and as many other requests: the agent writes no more, and no more are read.
MAX_BYTES, MAX_OF_KIND = 1 << 18, 64
#: Most entries of the root that are looked through for the agent's file.
MOST_LISTED = 1 << 16


@dataclass(frozen=True)
class ProcessPlace:
    """Identifies a process, as requests name it. `rank`: -1 while it is not known."""

    job: str
    run: str
    rank: int
    host: str


@dataclass(frozen=True)
class ControlRequest:
    """Something that is asked; fields as in schemas/control.py."""

    key: str
    kind: str
    policy: str
    job: str
    run: str
    host: str
    ranks: tuple[int, ...]
    last_step: int
    start_ns: int
    until_ns: int
    requested_ns: int
    launches: bool = False
    stacks: bool = False
    pc: bool = False

    def concerns(self, place: ProcessPlace) -> bool:
        """Return whether it is about a process."""
        return (
            fnmatchcase(place.job, self.job)
            and self.run in ("", place.run)
            and fnmatchcase(place.host, self.host)
            and (not self.ranks or place.rank in self.ranks)
        )

    def in_force(self, now_ns: int, step: int) -> bool:
        """Return whether it is in force. `step`: the process's last one, -1 = not known."""
        return self.start_ns <= now_ns < self.until_ns and not 0 <= self.last_step < step


def chosen(
    requests: Iterable[ControlRequest], place: ProcessPlace, now_ns: int, step: int = -1
) -> ControlRequest | None:
    """Return the request that counts for a process: a deep window before policies, the newest of each."""
    in_force = [request for request in requests if request.concerns(place) and request.in_force(now_ns, step)]
    wanted = [request for request in in_force if request.kind != TIMES]
    return max(wanted, key=lambda request: (request.kind == "window", request.requested_ns, request.key), default=None)


def times_requested(requests: Iterable[ControlRequest], place: ProcessPlace, now_ns: int) -> int:
    """Return until when a process is asked to measure all its steps, 0 = it is not; ns since the epoch."""
    wanted = [request for request in requests if request.kind == TIMES and request.concerns(place)]
    return max((request.until_ns for request in wanted if request.in_force(now_ns, -1)), default=0)


def read_requests(root: Path, now_ns: int = 0) -> list[ControlRequest]:
    """Return what the file of a spool's root asks: nothing without one that counts, or of an agent that has ended.

    Raises OSError where it may not be read, ValueError for a text that no agent writes.
    """
    descriptor = _opened(root)
    if descriptor < 0:
        return []
    try:
        about = os.fstat(descriptor)
        if about.st_size > MAX_BYTES:
            raise ValueError(f"{root / FILE} is no control file")
        if not -LEASE_NS <= (now_ns or time.time_ns()) - about.st_mtime_ns <= LEASE_NS:
            return []
        text = os.read(descriptor, MAX_BYTES)
    finally:
        os.close(descriptor)
    try:
        return [_request(item) for item in json.loads(text)[: 2 * MAX_OF_KIND]]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{root / FILE} is no control file ({type(error).__name__})") from None


def _opened(root: Path) -> int:
    """Return the descriptor of the file that counts, -1 without one. Raises OSError.

    A user may have laid the file who decides nothing. Where the agent may not replace it, its file has a longer name.
    """
    try:
        return open_trusted(root / FILE)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    except NotTrusted:
        pass
    newest: tuple[int, str] = (0, "")
    with os.scandir(root) as entries:
        for entry in islice(entries, MOST_LISTED):
            if entry.name.startswith(f"{FILE}.") and not untrusted(root / entry.name):
                with suppress(OSError):  # it is gone
                    newest = max(newest, (entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
    try:
        return open_trusted(root / newest[1]) if newest[1] else -1
    except (FileNotFoundError, NotTrusted):
        return -1


def _request(item: Mapping[str, Any]) -> ControlRequest:
    return ControlRequest(
        key=str(item["key"]), kind=str(item["kind"]), policy=str(item["policy"]), job=str(item["job"]),
        run=str(item["run"]), host=str(item["host"]), ranks=tuple(int(rank) for rank in item["ranks"]),
        last_step=int(item["last_step"]), start_ns=int(item["start_ns"]), until_ns=int(item["until_ns"]),
        requested_ns=int(item["requested_ns"]), launches=bool(item.get("launches")), stacks=bool(item.get("stacks")),
        pc=bool(item.get("pc")),
    )  # fmt: skip
