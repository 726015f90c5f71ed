"""Disk quota of all spools of a host, and the share of one writer.

/dev/shm is the training's too: NCCL and data loaders fail when it is full. So all spools below a root, of running and
exited processes, take at most an eighth of their file system and `host_bytes`, and shrink while less than a quarter of
it (4 GiB at most) is free. Running writers share evenly what exited processes do not take. Segments of exited
processes, oldest process first, are evicted before a running one evicts its own.

Each writer measures for itself, once a second: in the second in which writers start, the total may exceed the quota.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drumline.infra.runtime import spool_defaults
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.exited_eviction import evict_oldest_segments
from drumline.producers.spool.folder_layout import IDENTITY, LOCK, RESERVE_BYTES, BadSpool

#: Largest part of the file system for all spools; part that they leave free, and its upper bound in bytes.
SHARE, FREE, MAX_FREE = 1 / 8, 1 / 4, 4 << 30
#: Default of `host_bytes`, in multiples of the most bytes of one process.
PROCESSES = 16
#: Most folders and rings of one user that are published at once: a user's junk takes no file descriptors from others.
MOST_OF_USER = 256
#: Interval at which the other spools are scanned; s.
REFRESH_S = 1.0
#: A running writer updates its identity every 10 s: a folder unchanged for so long has none; s.
SILENT_S = 60.0
#: Bytes of a folder beside its segments, and of a segment beyond its own bytes: whole blocks.
BESIDE, BLOCK = RESERVE_BYTES + 8_192, 4_096


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """Limits of one writer.

    `max_bytes`: most bytes of this spool. `host_bytes`: of all spools below the root; 0 = PROCESSES * `max_bytes`.
    A segment is closed at `segment_bytes`, at a 16th of what the spool may take, or at age `segment_s`, which is first.
    """

    max_bytes: int = spool_defaults.MAX_MB << 20
    host_bytes: int = 0
    segment_bytes: int = 8 << 20
    segment_s: float = spool_defaults.SEGMENT_S


class ExitedSpool(NamedTuple):
    """The spool of an exited process, as last scanned.

    `changed_ns`: modification time of its folder. `evictable_start_ns`: start of its process, 0 if it must stay.
    """

    changed_ns: int
    bytes: int
    evictable_start_ns: int


class HostSpools:
    """Scans all spools below a root. Owned by one writer, or shared by the writers of a process; not thread-safe.

    `alive`: bytes by folder name, 0 for another user's. `exited`: by folder name, without those of other users.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock, self._refreshed = root.resolve(), clock, float("-inf")
        self.alive: dict[str, int] = {}
        self.exited: dict[str, ExitedSpool] = {}

    @property
    def due(self) -> bool:
        """True if the last scan is older than REFRESH_S."""
        return self._clock() - self._refreshed >= REFRESH_S

    @property
    def exited_bytes(self) -> int:
        """Bytes of all spools of exited processes."""
        return sum(spool.bytes for spool in self.exited.values())

    def refresh(self) -> None:
        """Scan the root; exited spools only where they have changed. A root that may not be listed counts as empty."""
        self._refreshed = self._clock()
        known, self.alive, self.exited = self.exited, {}, {}
        with suppress(OSError), os.scandir(self._root) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    with suppress(OSError):  # deleted since
                        self._scan(entry, known.get(entry.name))

    def _scan(self, entry: os.DirEntry[str], before: ExitedSpool | None) -> None:
        about, folder = entry.stat(follow_symlinks=False), SpoolDirectory(self._root / entry.name)
        if before is not None and before.changed_ns == about.st_mtime_ns:
            self.exited[entry.name] = before
            return
        try:
            has_identity, lock = folder.has(IDENTITY), folder.path / LOCK
            if not has_identity and time.time() - about.st_mtime > SILENT_S:
                return  # no writer takes so long to create one
            size = folder.disk_bytes()
            if not has_identity or not folder.writer_exited():  # one that is being created is left alone
                self.alive[entry.name] = size
                return
            # Without a lock it is a copy.
            evictable = size > RESERVE_BYTES and about.st_uid == os.geteuid() and lock.exists()
            start_ns = lock.stat().st_mtime_ns if evictable else 0
            self.exited[entry.name] = ExitedSpool(about.st_mtime_ns, size, start_ns)
        except FileNotFoundError:  # deleted since
            return
        except (OSError, BadSpool):  # another user's, or no spool
            if time.time() - about.st_mtime < SILENT_S:
                self.alive[entry.name] = 0

    def reclaim_from_exited(self, wanted: int) -> bool:
        """Evict about `wanted` bytes of the oldest exited process. Returns False if none can be evicted."""
        evictable = [
            (spool.evictable_start_ns, name) for name, spool in self.exited.items() if spool.evictable_start_ns
        ]
        if not evictable:
            return False
        start_ns, name = min(evictable)
        freed = evict_oldest_segments(self._root / name, wanted)
        # Time 0: it is scanned again.
        self.exited[name] = ExitedSpool(0, self.exited[name].bytes - freed, start_ns if freed else 0)
        return True


def bounds(path: Path, host_bytes: int) -> tuple[int, int]:
    """Return the most bytes of all spools together, and the bytes that the file system of `path` can spare.

    Spare bytes below 0 have to be given back. Raises OSError.
    """
    disk = os.statvfs(path)
    if not disk.f_blocks:  # a tmpfs without a size does not report its free space
        return host_bytes, host_bytes
    size = disk.f_blocks * disk.f_frsize
    return min(host_bytes, int(SHARE * size)), disk.f_bavail * disk.f_frsize - min(int(FREE * size), MAX_FREE)


def share(most: int, spare: int, used: int, writers: int, peers_used: int, exited: int) -> int:
    """Return the bytes that one of `writers` may take, which has `used` bytes now.

    `most`, `spare`: from `bounds`. `peers_used`, `exited`: bytes of the other writers and of exited processes.
    """
    gap = max(0, most - used - peers_used - exited)
    return max(0, min((most - exited) // writers, used + gap // writers, used + spare // writers))


class SpoolQuota:
    """Computes how many bytes the writer of a folder may take. Owned by WriterFiles; accesses the disk.

    `limit`: bytes, as of the last `measure`; it changes with the other spools. `full_reason`: reason for it.
    """

    def __init__(self, folder: Path, limits: SpoolLimits, spools: HostSpools) -> None:
        self._folder, self._max_bytes, self._spools = folder, limits.max_bytes, spools
        self._host_bytes = limits.host_bytes or PROCESSES * limits.max_bytes
        self._writers, self.limit, self.full_reason = 1, limits.max_bytes, ""

    @property
    def due(self) -> bool:
        """True if `measure` would scan the other spools."""
        return self._spools.due

    def measure(self, used: int, segments: int) -> None:
        """Update `limit`. `used`, `segments`: bytes and number of the writer's segments. Raises OSError."""
        if self._spools.due:
            self._spools.refresh()
        alive, name = self._spools.alive, self._folder.name
        self._writers = len(alive) + (name not in alive)
        peers_used = sum(alive.values()) - alive.get(name, 0)
        most, spare = bounds(self._folder, self._host_bytes)
        beside = BESIDE + BLOCK * (segments + 1)
        fits = share(most, spare, used + beside, self._writers, peers_used, self._spools.exited_bytes) - beside
        self.limit = max(0, min(self._max_bytes, fits))
        self.full_reason = f"quota reached: all spools of this host together may take {most / 1e6:.0f} MB"
        if spare < 0:
            self.full_reason = "quota reached: less than a quarter of the file system is free"

    def reclaim(self, used: int, segments: int, wanted: int) -> None:
        """Evict spools of exited processes as far as the writer needs it to hold `wanted` bytes. Raises OSError."""
        while (short := min(wanted, self._max_bytes) - self.limit) > 0:
            if not self._spools.reclaim_from_exited(short * self._writers):
                return
            self.measure(used, segments)
