"""The newest verdict and the newest standstill of one run. No I/O; the clock is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.batch import Batch
from drumline.streams.core.thresholds import CRITICAL, INSUFFICIENT, OK, SUSPECT, WARNING

#: Rank of the row about the job as a whole.
WHOLE_JOB = -1
#: State of an alarm -> its level, by which ranks are ordered.
LEVELS = {
    "insufficient_data": INSUFFICIENT, "ok": OK, "cleared": OK, "suspect": SUSPECT, "warning": WARNING,
    "critical": CRITICAL,
}  # fmt: skip
#: States of gpu.hang.v1 in which the job stands still.
STANDING, HUNG = "standing", "hung"
NO_DATA = "insufficient_data"
#: A standstill without a further record counts for this long: its worker would report the end; ns.
STANDSTILL_NS = 24 * 3_600 * 1_000_000_000
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RankRow:
    """Holds what the newest window states about a rank, or a standstill that names it.

    Attributes:
        severity: of the window on its own, -1 to 3; 3 where the job hangs and waits for the rank.
        lost_ratio: share of the job's time that it lost to this rank, 0..1.
        lateness_s: mean lateness in a step; s.
        gpu_lost_s: GPU time that the other ranks lost in the window; s.
    """

    rank: int
    host: str = ""
    gpu_uuid: str = ""
    state: str = NO_DATA
    cause: str = NO_DATA
    detail: str = ""
    severity: int = INSUFFICIENT
    lost_ratio: float = 0.0
    lateness_s: float = 0.0
    gpu_lost_s: float = 0.0


class Window:
    """Holds one gpu.straggler.v1 batch, its rows as columns. `ranks`: rows of ranks, without that of the whole job."""

    def __init__(self, batch: Batch) -> None:
        self.envelope, self._columns = batch.envelope, batch.columns
        rank = batch.columns["rank"]
        self.ranks: NDArray[np.intp] = np.flatnonzero(rank != WHOLE_JOB)
        whole = np.flatnonzero(rank == WHOLE_JOB)
        self.whole: int | None = int(whole[0]) if len(whole) else None
        levels = [LEVELS.get(state, INSUFFICIENT) for state in self.envelope["states"]]
        state = np.array([*levels, INSUFFICIENT], np.int64)[batch.columns["state"]]
        # A window without data is that, whatever alarm was in force before it.
        self.levels: NDArray[np.int64] = np.where(batch.columns["severity"] == INSUFFICIENT, INSUFFICIENT, state)

    @property
    def end_ns(self) -> int:
        """Return the end of the window, in the time of the job's hosts; ns since the epoch."""
        return int(self.envelope["window_end_ns"])

    def number(self, name: str) -> Any:
        """Return a column of the rows."""
        return self._columns[name]

    def supersedes(self, other: Window) -> bool:
        """Return whether this window, which came later, counts instead of another one of the run.

        Of one window and evaluation the higher revision counts, else the window that ended later: its steps may count
        from 0 again, in another attempt.
        """
        same = ("attempt_start_ns", "evaluation", "first_step", "last_step")
        if all(self.envelope[name] == other.envelope[name] for name in same):
            return int(self.envelope["revision"]) >= int(other.envelope["revision"])
        return self.end_ns >= other.end_ns

    def by_badness(self) -> NDArray[np.intp]:
        """Return the rows of ranks, the worst alarm first, then the most lost time, then the latest."""
        of = self.ranks
        columns = (self.number("rank"), -self.number("lateness_ns"), -self.number("gpu_seconds_lost"), -self.levels)
        return of[np.lexsort([column[of] for column in columns])]

    def row(self, at: int) -> RankRow:
        """Return a row. Dictionary columns become text."""
        texts = {
            name: self.envelope[values][self._columns[name][at]]
            for name, values in (("host", "hosts"), ("gpu_uuid", "gpu_uuids"), ("state", "states"), ("cause", "causes"),
                                 ("detail", "details"))
        }  # fmt: skip
        severity = int(self._columns["severity"][at])
        if severity == INSUFFICIENT:
            texts["state"] = NO_DATA
        return RankRow(
            rank=int(self._columns["rank"][at]),
            severity=severity,
            lost_ratio=float(self._columns["lost_share"][at]),
            lateness_s=self.lateness_s(int(self._columns["lateness_ns"][at])),
            gpu_lost_s=float(self._columns["gpu_seconds_lost"][at]),
            **texts,
        )

    def lateness_s(self, summed_ns: int) -> float:
        """Return the mean lateness in a step, of the sum over the steps compared; s."""
        return float(summed_ns) / max(int(self.envelope["steps_used"]), 1) / SECOND_NS


class RunState:
    """Keeps the newest window and the newest standstill of a run."""

    def __init__(self) -> None:
        self.window: Window | None = None
        self.hang: Batch | None = None

    def take_window(self, batch: Batch) -> bool:
        """Take a gpu.straggler.v1 batch; return whether it counts."""
        window = Window(batch)
        if self.window is not None and not window.supersedes(self.window):
            return False
        self.window = window
        return True

    def take_hang(self, batch: Batch) -> bool:
        """Take a gpu.hang.v1 batch; return whether it counts."""

        def order(of: Batch) -> tuple[int, ...]:
            return tuple(int(of.envelope[n]) for n in ("attempt_start_ns", "time_ns", "episode", "revision"))

        if self.hang is not None and order(batch) < order(self.hang):
            return False
        self.hang = batch
        return True

    def standstill(self, now_ns: int) -> str:
        """Return standing or hung while the job stands still, else ""."""
        hang = self.hang
        if hang is None or now_ns - int(hang.envelope["time_ns"]) > STANDSTILL_NS:
            return ""
        state = str(hang.envelope["state"])
        return state if state in (STANDING, HUNG) else ""

    def is_live(self, now_ns: int, expire_ns: int) -> bool:
        """Return whether the run stands still, or had a window within `expire_ns`."""
        if self.standstill(now_ns):
            return True
        return self.window is not None and now_ns - self.window.end_ns <= expire_ns

    def awaited(self, now_ns: int) -> dict[int, RankRow]:
        """Return the ranks that a standstill names; they outrank what the window states about them."""
        state, hang = self.standstill(now_ns), self.hang
        if not state or hang is None:
            return {}
        texts = {name: hang.strings(name, values) for name, values in _HANG_TEXTS}
        severity = CRITICAL if state == HUNG else SUSPECT
        rows = (
            RankRow(int(rank), str(texts["host"][at]), str(texts["gpu_uuid"][at]), state, str(texts["reason"][at]),
                    severity=severity)
            for at, rank in enumerate(hang.columns["rank"])
        )  # fmt: skip
        return {row.rank: row for row in rows if row.rank != WHOLE_JOB and row.cause}

    def verdict(self, now_ns: int) -> RankRow:
        """Return the state of the run as a whole: a standstill, else its worst alarm, else whether it was evaluated.

        `rank` is that of the worst alarm, -1 for the job as a whole.
        """
        if state := self.standstill(now_ns):
            assert self.hang is not None
            reasons = self.hang.strings("reason", "reasons")[self.hang.columns["rank"] == WHOLE_JOB]
            severity = CRITICAL if state == HUNG else SUSPECT
            return RankRow(WHOLE_JOB, state=state, cause=str(next(iter(reasons), "")), severity=severity)
        window = self.window
        if window is None or not len(window.levels):
            return RankRow(WHOLE_JOB)
        lost = window.number("gpu_seconds_lost")
        rows = window.by_badness()[:1].tolist() + ([window.whole] if window.whole is not None else [])
        worst = max(rows, key=lambda at: (window.levels[at], window.number("rank")[at] != WHOLE_JOB, lost[at]))
        if window.levels[worst] <= OK and window.whole is not None:
            worst = window.whole
        return window.row(worst)


_HANG_TEXTS = (("host", "hosts"), ("gpu_uuid", "gpu_uuids"), ("reason", "reasons"))
