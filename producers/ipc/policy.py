"""Collection policies: their text form, and the times at which each of them records.

light         collectives and steps, from NCCL's profiler interface and the job's own marks; CUPTI is never attached
auto          as light; and while the host's control file holds one of the next three, CUPTI too (a deep window). It is
              attached at the first of them, not before, and its rows replace none of the ring's
counts        as light; and launches and copies are counted, by kernel, from CUPTI's callbacks: no records, no times
always        every kernel, copy and range, all the time
collectives   records the same, but publishes only communication kernels: steps, budgets and verdicts from little data
duty          records windows of W in every P, e.g. 0.2s/10s. Windows begin where the clock is a multiple of P, so all
              ranks record the same steps. Between windows CUPTI keeps part of its cost
rollup        as always, but kernels, copies and ranges stay on the host, which publishes windows of them; chosen when a
              process starts
off           nothing
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from drumline.producers.ipc.plain_file import NotTrusted, open_trusted

MODES = ("off", "always", "collectives", "duty", "light", "auto", "rollup", "counts")
OFF, ALWAYS, COLLECTIVES, DUTY, LIGHT, AUTO, ROLLUP, COUNTS = range(8)
#: Policy of `drumline run` where none is chosen.
DEFAULT = "auto"
#: Longest period: the shared header has 64-bit fields, and a window that never comes is no policy.
MAX_PERIOD_NS = 86_400_000_000_000
_UNITS = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_DUTY = re.compile(r"duty(?:[ :]+([0-9.]+)(ms|s|m)/([0-9.]+)(ms|s|m))?$")


class BadPolicy(ValueError):
    """A text that names no policy; the message lists those that exist."""


@dataclass(frozen=True)
class Policy:
    """States when to record. `mode`: index into MODES. DUTY records `window_ns` in every `period_ns`; ns."""

    mode: int = ALWAYS
    window_ns: int = 200_000_000
    period_ns: int = 10_000_000_000

    def __str__(self) -> str:
        if self.mode != DUTY:
            return MODES[self.mode]
        return f"duty {self.window_ns / 1e9:g}s/{self.period_ns / 1e9:g}s"

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
        """True where CUPTI records, now or at times."""
        return self.mode in (ALWAYS, COLLECTIVES, DUTY, ROLLUP)

    @property
    def counts(self) -> bool:
        """True where launches are counted while CUPTI does not record them."""
        return self.mode == COUNTS

    def on_at(self, now_ns: int) -> bool:
        """Return whether CUPTI records at a time (ns since the epoch)."""
        if self.mode == DUTY:
            return now_ns % self.period_ns < self.window_ns
        return self.records

    def changes_in(self, now_ns: int) -> float:
        """Return the seconds until `on_at` changes; infinity if it never does."""
        if self.mode != DUTY or self.window_ns >= self.period_ns:
            return float("inf")
        into = now_ns % self.period_ns
        return ((self.window_ns if into < self.window_ns else self.period_ns) - into) / 1e9


def parse(text: str) -> Policy:
    """Parse the name of a mode, or `duty 0.2s/10s`. Raises BadPolicy."""
    name = text.strip().lower()
    if name in MODES and name != "duty":
        return Policy(MODES.index(name))
    match = _DUTY.match(name)
    if not match:
        raise BadPolicy(
            f"{text.strip()!r} is no policy: light, auto, counts, always, rollup, collectives, off, duty or with units "
            "(ms, s, m), as duty 200ms/10s"
        )
    if not match.group(1):
        return Policy(DUTY)
    try:
        window, period = (int(float(match.group(i)) * _UNITS[match.group(i + 1)]) for i in (1, 3))
    except (ValueError, OverflowError):
        raise BadPolicy(f"{text.strip()!r}: not a number") from None
    if not 0 < window < period <= MAX_PERIOD_NS:
        raise BadPolicy(f"{text.strip()!r}: the window must be shorter than the period, and that a day at most")
    return Policy(DUTY, window, period)


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
