"""What is collected, and when. Standard library only: this runs inside the job.

always        every kernel, copy and range, all the time
collectives   the same is recorded, but of kernels only communication is kept: steps, budgets, verdicts, little data
duty          windows of W in every P, e.g. 0.2s/10s; nothing in between. Windows begin where the clock is a multiple
              of P, so that all ranks record the same steps. CUPTI keeps part of its cost between them
off           nothing
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

MODES = ("off", "always", "collectives", "duty")
OFF, ALWAYS, COLLECTIVES, DUTY = range(4)
#: Of a period: the shared words have 64 bits, and a window that never comes is no policy.
MOST_NS = 86_400_000_000_000
_UNITS = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_DUTY = re.compile(r"duty(?:[ :]+([0-9.]+)(ms|s|m)/([0-9.]+)(ms|s|m))?$")


class BadPolicy(ValueError):
    """Text that names no policy."""


@dataclass(frozen=True)
class Policy:
    """`mode`: index into MODES. `window_ns` in every `period_ns`, for DUTY only."""

    mode: int = ALWAYS
    window_ns: int = 200_000_000
    period_ns: int = 10_000_000_000

    def __str__(self) -> str:
        if self.mode != DUTY:
            return MODES[self.mode]
        return f"duty {self.window_ns / 1e9:g}s/{self.period_ns / 1e9:g}s"

    def on_at(self, now_ns: int) -> bool:
        """Whether to record at a time (ns since the epoch)."""
        if self.mode == DUTY:
            return now_ns % self.period_ns < self.window_ns
        return self.mode != OFF

    def changes_in(self, now_ns: int) -> float:
        """Seconds until on_at changes; infinity = never by itself."""
        if self.mode != DUTY or self.window_ns >= self.period_ns:
            return float("inf")
        into = now_ns % self.period_ns
        return ((self.window_ns if into < self.window_ns else self.period_ns) - into) / 1e9


def parse(text: str) -> Policy:
    """`always`, `collectives`, `off`, `duty` or `duty 0.2s/10s`. Raises BadPolicy saying what is possible."""
    word = text.strip().lower()
    if word in MODES and word != "duty":
        return Policy(MODES.index(word))
    found = _DUTY.match(word)
    if not found:
        raise BadPolicy(
            f"{text.strip()!r} is no policy: always, collectives, off, duty or with units (ms, s, m), as duty 200ms/10s"
        )
    if not found.group(1):
        return Policy(DUTY)
    try:
        window, period = (int(float(found.group(i)) * _UNITS[found.group(i + 1)]) for i in (1, 3))
    except (ValueError, OverflowError):
        raise BadPolicy(f"{text.strip()!r}: not a number") from None
    if not 0 < window < period <= MOST_NS:
        raise BadPolicy(f"{text.strip()!r}: the window must be shorter than the period, and that a day at most")
    return Policy(DUTY, window, period)


def written(path: Path) -> str:
    """The first line of a control file; "" where there is none in it, or no file. Anybody may write it, and what
    is no policy is said to all: nothing but a plain file is opened, and little of it read. Raises OSError where it may
    not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no plain file")
        return os.read(descriptor, 256).decode(errors="replace").partition("\n")[0].strip()
    finally:
        os.close(descriptor)
