"""Collection policies: their text form, and what each of them records.

light         collectives and steps, from NCCL's profiler interface and the job's own marks; CUPTI is never attached
auto          as light; and while the host's control file holds one of the next two, CUPTI too (a deep window). It is
              attached at the first of them, not before, and its rows replace none of the ring's
counts        as light; and launches and copies are counted, by kernel, from CUPTI's callbacks: no records, no times
always        every kernel, copy and range, all the time
rollup        as always, but kernels, copies and ranges stay on the host, which publishes windows of them; chosen when a
              process starts
off           nothing
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from drumline.producers.ipc.plain_file import NotTrusted, open_trusted

MODES = ("off", "always", "light", "auto", "rollup", "counts")
OFF, ALWAYS, LIGHT, AUTO, ROLLUP, COUNTS = range(6)
#: Policy of `drumline run` where none is chosen.
DEFAULT = "auto"


class BadPolicy(ValueError):
    """A text that names no policy; the message lists those that exist."""


@dataclass(frozen=True)
class Policy:
    """States what to record. `mode`: index into MODES."""

    mode: int = ALWAYS

    def __str__(self) -> str:
        return MODES[self.mode]

    @property
    def uses_ring(self) -> bool:
        """True where NCCL's plugin and the job's marks are the source of collectives and steps."""
        return self.mode in (LIGHT, AUTO, COUNTS)

    @property
    def uses_cupti(self) -> bool:
        """True where CUPTI is attached, to record or to count."""
        return self.records or self.counts

    @property
    def records(self) -> bool:
        """True where CUPTI records."""
        return self.mode in (ALWAYS, ROLLUP)

    @property
    def counts(self) -> bool:
        """True where launches are counted while CUPTI does not record them."""
        return self.mode == COUNTS


def parse(text: str) -> Policy:
    """Parse the name of a mode. Raises BadPolicy."""
    name = text.strip().lower()
    if name not in MODES:
        raise BadPolicy(f"{text.strip()!r} is no policy: light, auto, counts, always, rollup or off")
    return Policy(MODES.index(name))


def read_policy_text(path: Path) -> str:
    """Return the first line of a control file, "" without one that counts. Raises OSError where it may not be read.

    Any user may lay a file in its place, and its text is quoted in warnings: see open_trusted; only its start is read.
    """
    try:
        descriptor = open_trusted(path)
    except (FileNotFoundError, NotADirectoryError, NotTrusted):
        return ""
    try:
        return os.read(descriptor, 256).decode(errors="replace").partition("\n")[0].strip()
    finally:
        os.close(descriptor)
