"""Times of AMD's GPUs, whose clock counts ticks where NVIDIA's counts ns (RCCL; not tried on hardware). Pure.

How fast it counts is measured by the host's clock: RCCL's thread sees the end of an operation up to some ms after it.
Within seconds that shows the frequency of the crystal (100 MHz), a whole number of MHz, which is then exact.
"""

from __future__ import annotations

import numpy as np

from drumline.schemas.columns import Array

#: Time over which ticks are counted; ns. Reports that are 5 ms late make an error of 0.25 % in it.
LEAST_NS = 2_000_000_000
#: Largest difference from a whole number of MHz, and frequencies that a clock may have.
MOST_ERROR, FREQUENCIES_MHZ = 0.005, (1, 2_000)
_UNSEEN = np.uint64((1 << 64) - 1)


class TickClock:
    """Measures the clock of one ring. State: `first` (host's time, ticks) and `mhz`, 0 = not known, -1 = none fits."""

    def __init__(self, saved: list[int]) -> None:
        """`saved`: what `saved` was, which may be empty."""
        self.first, self.mhz = (saved[0], saved[1]) if saved else (0, 0), saved[2] if saved else 0

    @property
    def saved(self) -> list[int]:
        """Return the state as JSON values; [] before the first operation."""
        return [*self.first, self.mhz] if self.first[1] else []

    def converted(self, records: Array, known: Array) -> tuple[Array, Array]:
        """Return operations with times in ns, and which of them ran at known times. `known`: those that RCCL states.

        RCCL states 0 for the stop of channels but the first. An operation of others alone has no times, and none has
        before the frequency is known.
        """
        seen, stop = records["seen_ns"], records["gpu_stop_ns"]
        known = known & (seen > 0) & (stop > 0)
        self._measure(seen[known], stop[known])
        if self.mhz <= 0:
            return records, np.zeros(len(records), bool)
        records = records.copy()
        for name in ("gpu_start_ns", "gpu_stop_ns"):
            times = records[name]
            records[name] = np.where(times != _UNSEEN, _as_ns(times, self.mhz), times)
        return records, known

    def _measure(self, seen: Array, stop: Array) -> None:
        if self.mhz or not len(seen):
            return
        if not self.first[1]:
            self.first = int(seen[0]), int(stop[0])
        host_ns, ticks = int(seen[-1]) - self.first[0], int(stop[-1]) - self.first[1]
        if host_ns < LEAST_NS:
            return
        measured = ticks * 1_000 / host_ns
        near, (least, most) = round(measured), FREQUENCIES_MHZ
        fits = least <= near <= most and abs(measured - near) <= MOST_ERROR * near
        self.mhz = near if fits else -1


def _as_ns(times: Array, mhz: int) -> Array:
    """Return ticks as ns: whole us and the rest apart, so that no product is too large."""
    whole, rest = np.divmod(times, np.uint64(mhz))
    return np.asarray(whole * np.uint64(1_000) + rest * np.uint64(1_000) // np.uint64(mhz))
