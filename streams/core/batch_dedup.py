"""Which batches of a process were applied: a producer that restarts may publish one again, at another offset."""

from __future__ import annotations

from bisect import bisect_right

#: Runs of consecutive numbers that are told apart. Beyond it the oldest gap counts as filled: what would still come
#: for it is taken for a repetition.
MAX_RUNS = 64


class Sequences:
    """A set of sequence numbers, as runs [first, last]; `runs` is what is stored."""

    def __init__(self, runs: list[list[int]] | None = None) -> None:
        self.runs = [list(run) for run in runs or []]

    def __contains__(self, number: int) -> bool:
        i = bisect_right(self.runs, [number, 1 << 63]) - 1
        return i >= 0 and self.runs[i][0] <= number <= self.runs[i][1]

    def add(self, number: int) -> bool:
        """False if it was there."""
        if number in self:
            return False
        i = bisect_right(self.runs, [number, 1 << 63])
        after = i < len(self.runs) and self.runs[i][0] == number + 1
        if i > 0 and self.runs[i - 1][1] == number - 1:
            self.runs[i - 1][1] = self.runs.pop(i)[1] if after else number
        elif after:
            self.runs[i][0] = number
        else:
            self.runs.insert(i, [number, number])
        if len(self.runs) > MAX_RUNS:
            self.runs[0:2] = [[self.runs[0][0], self.runs[1][1]]]
        return True
