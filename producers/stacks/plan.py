"""Decides when a process of this host is sampled: limits of each job and of the host. Time is an argument."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from drumline.producers.host.targets import RecordedProcess
from drumline.producers.stacks.verdicts import CAPTURE, SUSPECT, Verdict

#: Shortest time between two verdicts of a job and kind that are followed; s of Kafka's time, the same for all agents.
#: A hang is not refused for a straggler before it: who is paged has its line.
PERIOD_S = 60.0
#: A healthy job has suspects by chance, some jobs many. Odds from which a job's first suspect is followed; each that is
#: followed multiplies what the next one needs, which falls by as much again in this time: so there is one in it.
FIRST_ODDS, MORE_ODDS, SUSPECTS_PERIOD_S = 3.0, 3.0, 600.0
#: Age at which a verdict is too old: stacks that are sampled now would not show what it is about; s.
MOST_AGE_S = 60.0
#: Verdicts of a job and kind that are followed a day: 24 minutes of sampling at most.
MOST_PER_DAY = 240
#: Samplings of this host a day, whatever jobs it has.
MOST_SAMPLINGS_PER_DAY = 960
#: Jobs and kinds whose last verdict is remembered.
MOST_JOBS = 4_096
DAY_S = 86_400
CULPRIT, PEER, OF_SUSPECT = "culprit", "peer", "suspect"


@dataclass(frozen=True, slots=True)
class Sampling:
    """One process to sample now."""

    verdict: Verdict
    role: str
    named_rank: int
    process: RecordedProcess


@dataclass(slots=True)
class _Limit:
    at_s: float
    day: int
    odds: float = FIRST_ODDS
    followed: int = 0


@dataclass(slots=True)
class SamplingPlan:
    """Decides which verdicts are followed. Not thread-safe.

    Limits of a job count the verdicts, by Kafka's time, also where no process of this host is concerned: so agents of
    several hosts follow the same ones. `skipped`: samplings left out, by reason.
    """

    skipped: dict[str, int] = field(default_factory=dict)
    _limits: dict[tuple[str, str], _Limit] = field(default_factory=dict)
    _day: int = -1
    _sampled: int = 0

    def samplings(self, verdict: Verdict, processes: Sequence[RecordedProcess], now_s: float) -> list[Sampling]:
        """Return what this host samples for a verdict, culprits first. `now_s`: since the epoch, of this host."""
        if verdict.kind == CAPTURE:
            return self._within_budget(_captured(verdict, processes), now_s)
        if not verdict.named or not self._accepts(verdict):
            return []
        role = OF_SUSPECT if verdict.kind == SUSPECT else CULPRIT
        roles = [(rank, role, rank) for rank in verdict.named]
        if verdict.peer >= 0 and verdict.named:
            roles.append((verdict.peer, PEER, verdict.named[0]))
        wanted = []
        for rank, role, named_rank in roles:
            process = _process_with(verdict, rank, processes)
            if process is not None:
                wanted.append(Sampling(verdict, role, named_rank, process))
        if wanted and now_s - verdict.at_s > MOST_AGE_S:
            return self._skip("old", len(wanted))
        return self._within_budget(wanted, now_s)

    def _accepts(self, verdict: Verdict) -> bool:
        """Count the verdict for its job and kind, and return whether their limits allow it."""
        day, key = int(verdict.at_s // DAY_S), (verdict.job, verdict.kind)
        limit = self._limits.get(key, _Limit(-math.inf, day))
        since_s = verdict.at_s - limit.at_s
        followed = limit.followed if limit.day == day else 0
        if 0 <= since_s < PERIOD_S or followed >= MOST_PER_DAY:
            return False
        needed = max(FIRST_ODDS, limit.odds * MORE_ODDS ** (-max(since_s, 0.0) / SUSPECTS_PERIOD_S))
        if verdict.kind == SUSPECT and verdict.odds < needed:
            return False
        self._limits[key] = _Limit(verdict.at_s, day, needed * MORE_ODDS, followed + 1)
        if len(self._limits) > MOST_JOBS:
            del self._limits[min(self._limits, key=lambda oldest: self._limits[oldest].at_s)]
        return True

    def _within_budget(self, wanted: list[Sampling], now_s: float) -> list[Sampling]:
        if (day := int(now_s // DAY_S)) != self._day:
            self._day, self._sampled = day, 0
        if self._sampled + len(wanted) > MOST_SAMPLINGS_PER_DAY:
            return self._skip("budget", len(wanted))
        self._sampled += len(wanted)
        return wanted

    def _skip(self, reason: str, samplings: int) -> list[Sampling]:
        self.skipped[reason] = self.skipped.get(reason, 0) + samplings
        return []


def _captured(verdict: Verdict, processes: Sequence[RecordedProcess]) -> list[Sampling]:
    """Return the processes that a deep window is about."""
    of_run = [p for p in processes if p.record.get("job") == verdict.job and p.record.get("run") == verdict.run]
    ranks = {int(process.record.get("rank", -1)) for process in of_run}
    named = sorted(ranks if verdict.of_all else ranks.intersection(verdict.named))
    candidates = [(rank, _process_with(verdict, rank, processes)) for rank in named]
    return [Sampling(verdict, CULPRIT, rank, process) for rank, process in candidates if process is not None]


def _process_with(verdict: Verdict, rank: int, processes: Sequence[RecordedProcess]) -> RecordedProcess | None:
    """Return the process of a rank on this host: of several, the first one that started."""
    candidates = [
        process
        for process in processes
        if process.record.get("job") == verdict.job
        and process.record.get("run") == verdict.run
        and process.record.get("rank") == rank
        and process.pid > 0
    ]
    return min(candidates, key=lambda process: int(process.record.get("start_ns", 0)), default=None)
