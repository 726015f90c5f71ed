"""Tells whether collectives and steps of the recorded process come from its ring; the decoder then publishes none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from drumline.producers.ipc.plain_file import open_plain
from drumline.producers.ipc.policy import BadPolicy, parse
from drumline.producers.nccl_profiler.library import TIMED_INTERFACE
from drumline.producers.rings.ring_file import HeaderField
from drumline.producers.spool.location import rings_folder


class RingSource:
    """Looks at the ring of one process, which NCCL's plugin in it creates. Reads a word of a file at a time.

    `is_expected`: the process's policy has a ring, and CUPTI in deep windows only.
    """

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        self._environment, self._pid = environment, pid
        self._is_used = self.is_expected = False
        with suppress(BadPolicy):
            self.is_expected = parse(environment.get("DRUMLINE_COLLECT__POLICY") or "off").uses_ring

    def is_used(self) -> bool:
        """Return whether the ring has, or will have, the process's collectives: NCCL reports GPU times to it."""
        if self._is_used:  # for good: the folder has the rings of all processes
            return True
        with suppress(OSError):
            rings = rings_folder(self._environment).glob(f"{self._pid}-*.ring") if self.is_expected else ()
            self._is_used = any(_interface(path) >= TIMED_INTERFACE for path in rings)
        return self._is_used


def _interface(path: Path) -> int:
    descriptor = open_plain(path)
    try:
        return int.from_bytes(os.pread(descriptor, 8, HeaderField.INTERFACE * 8), "little")
    finally:
        os.close(descriptor)
