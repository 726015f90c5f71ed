"""Signs that something has stopped: a number that does not move, steps without kernels. Pure. Standard library only:
this runs inside the job."""

from __future__ import annotations

#: Without a kernel for so long while steps go on, recording begins anew; then twice as long, up to MOST_NS, as a job
#: may do without, until for so long no step was without. Copies and markers come all the same, so nothing but steps
#: tells of it. A step of a large model takes less, and beginning anew a millisecond. ns.
BLIND_NS = 10_000_000_000
MOST_NS = 600_000_000_000


class StallDetector:
    """For how long a number has not changed; s of our own turns, `turn_s` each: a job may be stopped and go on."""

    def __init__(self, turn_s: float) -> None:
        self._turn_s, self._number, self._seconds = turn_s, 0, 0.0

    def turn(self, number: int) -> float:
        self._seconds = 0.0 if number != self._number else self._seconds + self._turn_s
        self._number = number
        return self._seconds


class MissingKernelDetector:
    """Whether recording should begin anew, as CUPTI may have no kernel of this process."""

    def __init__(self) -> None:
        self._patience_ns, self._begun_ns, self._took_ns = BLIND_NS, 0, 0

    def begun(self, now_ns: int) -> None:
        """ActivityRecorder begins: what was heard of steps is of another time."""
        self._begun_ns = now_ns

    def turn(self, since_ns: int, now_ns: int) -> bool:
        """While it is recorded. `since_ns`: since when no step has had a kernel, 0 = they have; heard a second late."""
        took_ns = now_ns - max(since_ns, self._begun_ns)
        if not since_ns:  # of a step that had begun already, and of the next, one hears at its end
            if took_ns > self._patience_ns + 2 * self._took_ns:
                self._patience_ns = BLIND_NS
            return False
        if took_ns < self._patience_ns:
            return False
        self._took_ns = took_ns
        self._patience_ns = min(2 * self._patience_ns, MOST_NS)
        return True
