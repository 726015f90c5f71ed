"""Folder of the rings of this host: finds new ones, reads each in turn, and deletes those of processes that ended.

Jobs of any user write there. A file that cannot be read is logged once, counted, and left alone; the others go on.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EDQUOT
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog

from drumline.infra.telemetry import metrics
from drumline.producers.host.targets import RingWriter
from drumline.producers.ipc.control import read_requests, times_requested
from drumline.producers.rings.checkpoint import Checkpoint
from drumline.producers.rings.control_answer import control_answer
from drumline.producers.rings.progress import RasAnswer
from drumline.producers.rings.publication import Gpus, RingProcess
from drumline.producers.rings.ring_file import SUFFIX, BadRing, NotReady, RingFile
from drumline.producers.spool.files import LISTED, opened
from drumline.producers.spool.location import make_root
from drumline.producers.spool.quota import MOST_OF_USER, HostSpools, SpoolLimits
from drumline.producers.spool.writer import SpoolWriter

log = structlog.get_logger()

#: Interval at which rings are read; s. Half of the CPU time of a round is the same however much is read. A ring of
#: 32,768 records holds 16 s at 2,000 operations a second.
ROUND_S = 2.0
#: The same while a process calls and ends nothing: its job may stand still; s.
STILL_ROUND_S = 1.0
#: Time after which a round ends, and the next one goes on with the next ring; s.
MOST_ROUND_S = 0.5
#: Most files of the folder that are looked at.
MOST_FILES = 1 << 16


class RingFolder:
    """Reads all rings of the host. The agent owns it, in its thread; a round takes MOST_ROUND_S and one ring's time.

    `problem`: reason why the folder cannot be used, or "". `blocked`: reason by file name. `jobs_in_part`: names of the
    jobs of which a part of the steps, or of the transfers over the network, is recorded.
    """

    def __init__(
        self,
        folder: Path,
        root: Path,
        limits: SpoolLimits,
        clock: Callable[[], float],
        gpus: Gpus = MappingProxyType({}),
        ras: Mapping[str, RasAnswer] = MappingProxyType({}),
    ) -> None:
        self._folder, self._root, self._limits, self._clock = folder, root, limits, clock
        self._gpus, self._ras = gpus, ras
        self._rings: dict[str, RingProcess] = {}
        self._spools = HostSpools(root)
        self._due = float("-inf")
        self._next = 0
        self.problem, self.jobs_in_part = "", frozenset[str]()
        self.blocked: dict[str, str] = {}
        self._bad: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Return whether no ring is there that could be read."""
        return not self._rings

    def sources(self) -> dict[str, RingWriter]:
        """Return the processes that write rings and are known, by process id."""
        known = ((ring.process_id, ring.writer) for ring in self._rings.values() if ring.process_id)
        return {process_id: writer for process_id, writer in known if writer is not None}

    def round(self, now_ns: int) -> None:
        """Read what is due. Raises nothing for what lies in the folder."""
        if self._clock() < self._due:
            return
        is_still = any(ring.is_still for ring in self._rings.values())
        self._due = self._clock() + (STILL_ROUND_S if is_still else ROUND_S)
        try:
            if self._folder.parent.is_dir():  # the root of a spool that was removed is left to whoever creates it again
                make_root(self._folder)
            with opened(self._folder, LISTED) as directory:
                self._find(directory)
                self._read(directory, now_ns)
            self.problem = ""
        except FileNotFoundError:
            self.problem = ""
        except OSError as error:
            self.problem = f"{self._folder}: {error.strerror}"
        self._request_times(now_ns)
        metrics.AGENT_RINGS.set(len(self._rings))
        metrics.AGENT_RINGS_BLOCKED.set(len(self.blocked))
        metrics.AGENT_RING_BEHIND.set(sum(ring.behind for ring in self._rings.values()))

    def close(self) -> None:
        """Close all files; the next agent goes on with them."""
        for ring in self._rings.values():
            ring.close()

    def _find(self, directory: int) -> None:
        """Open new rings; forget files that are gone."""
        with os.scandir(directory) as entries:
            names = {entry.name for entry in islice(entries, MOST_FILES) if entry.name.endswith(SUFFIX)}
        self.blocked = {name: reason for name, reason in self.blocked.items() if name in names}
        self._bad &= names
        users = Counter(ring.ring.about.st_uid for ring in self._rings.values())
        for name in sorted(names - self._rings.keys() - self._bad):
            ring = None
            try:
                ring = RingFile(name, directory)
                users[ring.about.st_uid] += 1
                if users[ring.about.st_uid] > MOST_OF_USER:
                    raise PermissionError(EDQUOT, f"other rings of user {ring.about.st_uid} have to end first")
                self._rings[name] = RingProcess(
                    ring,
                    Checkpoint(self._root, ring),
                    self._open_spool,
                    self._gpus,
                    partial(control_answer, self._root),
                    self._ras,
                )
                self.blocked.pop(name, None)
            except (FileNotFoundError, NotReady):
                continue
            except (BadRing, OSError) as error:
                if ring is not None:
                    ring.close()
                self._block(name, error)

    def _read(self, directory: int, now_ns: int) -> None:
        """Read the rings in turn, for a bounded time."""
        names = sorted(self._rings)
        start, until = self._next % max(len(names), 1), self._clock() + MOST_ROUND_S
        for name in (*names[start:], *names[:start]):
            self._next += 1
            ring = self._rings[name]
            try:
                ring.round(now_ns)
                if ring.finished:
                    del self._rings[name]
                    self._remove(ring, directory)
            except BadRing as error:
                ring.close()
                del self._rings[name]
                self._block(name, error)
            except OSError as error:
                log.warning("a ring cannot be read now", ring=name, problem=error.strerror)
            if self._clock() >= until:
                return
        self._next += 1  # not always the same one comes first

    def _request_times(self, now_ns: int) -> None:
        """Let processes of which a part is recorded record all steps and transfers, as long as it is asked."""
        places = [(ring, place) for ring in self._rings.values() if (place := ring.place) is not None]
        self.jobs_in_part = frozenset(place.job for _, place in places)
        with suppress(OSError, ValueError):  # no file that an agent writes
            requests = read_requests(self._root) if places else []
            for ring, place in places:
                ring.request_times(times_requested(requests, place, now_ns))

    def _remove(self, ring: RingProcess, directory: int) -> None:
        try:
            ring.remove(directory)
        except OSError as error:  # the folder is another user's, and sticky
            self._block(ring.ring.name, BadRing(f"it is published, but cannot be deleted ({error.strerror})"))
        finally:
            ring.close()

    def _block(self, name: str, error: Exception) -> None:
        """Leave a file alone: for good if it is no ring, else until it can be read."""
        reason = str(error.strerror) if isinstance(error, OSError) else f"{error}; delete it when its process has ended"
        if isinstance(error, BadRing):
            self._bad.add(name)
        if self.blocked.get(name) != reason:
            log.warning("a ring is left alone; the others go on", ring=name, folder=str(self._folder), problem=reason)
        self.blocked[name] = reason

    def _open_spool(self, process: Mapping[str, Any], resumed: tuple[str, int]) -> SpoolWriter:
        return SpoolWriter(self._root, process, self._limits, spools=self._spools, resumed=resumed)
