"""How much all spools of a host may take together, and how much of that is one writer's.

/dev/shm is the training's too: NCCL and data loaders die where it is full. So all spools below a root, of living
processes and of dead ones, take at most an eighth of their file system and `host_bytes`, and give way where less than a
quarter of it (4 GiB at most) is free. What the dead do not take is shared evenly by the living; what the dead left is
thrown away, the oldest first, before a living one throws away its own.

Everybody looks for himself, once a second: what is written in the second in which writers come may be more than that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.eviction import evict_oldest_segments
from drumline.producers.spool.layout import IDENTITY, LOCK, RESERVE_BYTES, BadSpool

#: Of the file system: what all spools may take, and what they leave free, that at most so many bytes.
SHARE, FREE, MOST_FREE = 1 / 8, 1 / 4, 4 << 30
#: `host_bytes`, where it is not named, of what one process may take.
PROCESSES = 16
#: Between two looks at the other spools; s.
LOOK_S = 1.0
#: A writer says who it is every 10 s: a folder that did not change for so long is nobody's; s.
SILENT_S = 60.0
#: What a folder takes beside its segments, and a segment beyond its own bytes: whole blocks.
BESIDE, BLOCK = RESERVE_BYTES + 8_192, 4_096


class DeadSpool(NamedTuple):
    """`changed_ns`: its folder was. `gives`: when its process began, ns, where it can give way; else 0."""

    changed_ns: int
    bytes: int
    gives: int


class HostSpools:
    """All spools below a root, as they were at the last `look`. `living`, `dead`: by folder name; a living one's bytes,
    0 where they are another user's business. The dead among such ones are not seen."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock, self._looked = root, clock, float("-inf")
        self.living: dict[str, int] = {}
        self.dead: dict[str, DeadSpool] = {}

    @property
    def due(self) -> bool:
        return self._clock() - self._looked >= LOOK_S

    @property
    def dead_bytes(self) -> int:
        return sum(dead.bytes for dead in self.dead.values())

    def look(self) -> None:
        """Who writes, who is dead; those known to be are looked at again where they have changed. A root that one may
        not list is nobody else's, as far as one sees."""
        self._looked = self._clock()
        known, self.living, self.dead = self.dead, {}, {}
        with suppress(OSError), os.scandir(self._root) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    with suppress(OSError):  # gone since
                        self._see(entry, known.get(entry.name))

    def _see(self, entry: os.DirEntry[str], before: DeadSpool | None) -> None:
        about, folder = entry.stat(follow_symlinks=False), SpoolDirectory(self._root / entry.name)
        if before is not None and before.changed_ns == about.st_mtime_ns:
            self.dead[entry.name] = before
            return
        try:
            named, lock = (folder.path / IDENTITY).exists(), folder.path / LOCK
            if not named and time.time() - about.st_mtime > SILENT_S:
                return  # nobody makes one for so long
            size = folder.takes()
            if not named or not folder.gone():  # one that is being made is not touched
                self.living[entry.name] = size
                return
            gives = size > RESERVE_BYTES and about.st_uid == os.geteuid() and lock.exists()  # without lock: a copy
            self.dead[entry.name] = DeadSpool(about.st_mtime_ns, size, lock.stat().st_mtime_ns if gives else 0)
        except FileNotFoundError:  # gone since
            return
        except (OSError, BadSpool):  # another user's, or what somebody laid here
            if time.time() - about.st_mtime < SILENT_S:
                self.living[entry.name] = 0

    def give(self, wanted: int) -> bool:
        """Have the oldest dead one give way, by about `wanted` bytes. False: there is none that can."""
        can = [(dead.gives, name) for name, dead in self.dead.items() if dead.gives]
        if not can:
            return False
        began_ns, name = min(can)
        freed = evict_oldest_segments(self._root / name, wanted)
        self.dead[name] = DeadSpool(0, self.dead[name].bytes - freed, began_ns if freed else 0)  # looked at again
        return True


def bounds(path: Path, host_bytes: int) -> tuple[int, int]:
    """(bytes of all spools together, bytes that the file system of `path` can spare; < 0: others need some back).
    Raises OSError."""
    disk = os.statvfs(path)
    if not disk.f_blocks:  # a tmpfs without a size, which does not say how much there is
        return host_bytes, host_bytes
    size = disk.f_blocks * disk.f_frsize
    return min(host_bytes, int(SHARE * size)), disk.f_bavail * disk.f_frsize - min(int(FREE * size), MOST_FREE)


def part(most: int, spare: int, own: int, writers: int, others: int, dead: int) -> int:
    """Bytes that one of `writers` may take who has `own` now, and the others and the dead so many. `most`, `spare`: as
    `bounds` has them."""
    gap = max(0, most - own - others - dead)
    return max(0, min((most - dead) // writers, own + gap // writers, own + spare // writers))


class SpoolQuota:
    """What the writer of a folder may take: `limit`, as of the last `measure`; it changes with what others do. `full`:
    why that is so little. Several in one process may share `spools`."""

    def __init__(self, folder: Path, max_bytes: int, host_bytes: int, spools: HostSpools) -> None:
        self._folder, self._max_bytes, self._host_bytes, self._spools = folder, max_bytes, host_bytes, spools
        self._writers, self.limit, self.full = 1, max_bytes, ""

    @property
    def due(self) -> bool:
        return self._spools.due

    def measure(self, own: int, segments: int) -> None:
        """`own`: bytes in the writer's segments. Raises OSError."""
        if self._spools.due:
            self._spools.look()
        living, mine = self._spools.living, self._folder.name
        self._writers = len(living) + (mine not in living)
        others = sum(living.values()) - living.get(mine, 0)
        most, spare = bounds(self._folder, self._host_bytes)
        beside = BESIDE + BLOCK * (segments + 1)
        fits = part(most, spare, own + beside, self._writers, others, self._spools.dead_bytes) - beside
        self.limit = max(0, min(self._max_bytes, fits))
        self.full = f"no room: all spools of this host together may take {most / 1e6:.0f} MB"
        if spare < 0:
            self.full = "no room: less than a quarter of the file system is free"

    def clear(self, own: int, segments: int, wanted: int) -> None:
        """Have the dead give way as far as a writer needs that which has `own` bytes and wants to have `wanted`. Raises
        OSError."""
        while (short := min(wanted, self._max_bytes) - self.limit) > 0 and self._spools.give(short * self._writers):
            self.measure(own, segments)
