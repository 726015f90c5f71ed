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
    """Looks at the ring of one process, which NCCL's plugin in it creates. Reads a word of a file at a time."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        self._environment, self._pid = environment, pid

    def is_used(self) -> bool:
        """Return whether the ring has, or will have, the process's collectives: NCCL reports GPU times to it."""
        with suppress(BadPolicy, OSError):
            if parse(self._environment.get("DRUMLINE_COLLECT__POLICY") or "off").uses_ring:
                rings = rings_folder(self._environment).glob(f"{self._pid}-*.ring")
                return any(_interface(path) >= TIMED_INTERFACE for path in rings)
        return False


def _interface(path: Path) -> int:
    descriptor = open_plain(path)
    try:
        return int.from_bytes(os.pread(descriptor, 8, HeaderField.INTERFACE * 8), "little")
    finally:
        os.close(descriptor)
