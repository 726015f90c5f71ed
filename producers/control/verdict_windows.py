"""Deep windows that verdicts ask for, and pulls of kept rows: of a rank that has become late, and of a healthy one.

Every agent reads the same record and decides by the record alone, so hosts agree on ranks, steps and limits without
talking to each other. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drumline.infra.guidance.causes import SLOW_LINK
from drumline.producers.control.steps_ahead import steps_ahead
from drumline.schemas.batch import Batch
from drumline.schemas.control import (
    MAX_PULL_NS,
    MAX_PULL_STEPS,
    MAX_WINDOW_NS,
    PULL,
    TIMES,
    WINDOW,
    BadControl,
    Control,
    compared_ranks,
    exact,
    suspect_ranks,
    with_peer,
)

#: Severity from which a rank gets a window; a test holds it equal to the stream processor's.
WARNING = 2
#: Steps of a window: the twenty of `drumline capture`.
STEPS = 20
#: Shortest time between two windows of a job, and most of them a day: 24 windows of half a minute are 0.8 % of it.
PERIOD_S, MOST_PER_DAY, DAY_S = 600.0, 24, 86_400
#: For so long a job with a suspect rank is measured in all its steps; ns.
TIMES_NS = 60_000_000_000
#: Age of a window's last step from which on its time is not believed: clocks of hosts; s.
MOST_AGE_S = 60.0
#: Jobs whose last window is remembered.
MOST_JOBS = 4_096


@dataclass(slots=True)
class _JobWindows:
    at_s: float
    day: int
    windows: int = 1


@dataclass(slots=True)
class VerdictWindows:
    """Decides which verdicts get a window, of steps to come, or a pull, of the steps that they are about.

    `kind`: WINDOW, PULL, or TIMES, for suspects too. Limits count Kafka's time, the same for all agents.
    """

    kind: str = WINDOW
    _jobs: dict[str, _JobWindows] = field(default_factory=dict)

    def window(self, batch: Batch, at_s: float) -> Control | None:
        """Return the window or pull that a record of gpu.straggler.v1 asks for, or None. `at_s`: when Kafka took it."""
        ranks = _ranks(batch) if self.kind != TIMES else []
        wanted = bool(ranks) if self.kind != TIMES else _has_suspects(batch)
        step_ns = int(batch.envelope["step_ns"])
        if not wanted or step_ns <= 0 or not self._accepts(str(batch.envelope["job"]), at_s):
            return None
        envelope, step_s = batch.envelope, step_ns / 1e9
        age_s = min(max(at_s - int(envelope["window_end_ns"]) / 1e9, 0.0), MOST_AGE_S)
        first_step, last_step = int(envelope["first_step"]), int(envelope["last_step"])
        first, length_s = steps_ahead(last_step, age_s, step_s, STEPS)
        last = first + STEPS - 1
        at_ns, length_ns = round(at_s * 1e9), min(round(length_s * 1e9), MAX_WINDOW_NS // 2)
        prefix = ""
        if self.kind == PULL:
            prefix = "pull-"
            first, last, length_ns = max(first_step, last_step - MAX_PULL_STEPS + 1), last_step, MAX_PULL_NS // 2
        if self.kind == TIMES:  # of all its ranks: they are compared in the steps that all of them have
            prefix, first, last, length_ns = "times-", -1, -1, TIMES_NS
        try:
            return Control(
                key=f"{prefix}verdict-{first_step}-{last_step}", kind=self.kind, policy="always",
                job=exact(str(envelope["job"])), run=str(envelope["run"]), ranks=tuple(ranks),
                first_step=first, last_step=last,
                start_ns=at_ns - round(MOST_AGE_S * 1e9), until_ns=at_ns + length_ns,
                requested_by="verdict", requested_ns=at_ns,
            ).checked()  # fmt: skip
        except BadControl:
            return None

    def _accepts(self, job: str, at_s: float) -> bool:
        day, limit = int(at_s // DAY_S), self._jobs.get(job)
        if limit is not None and (
            0 <= at_s - limit.at_s < PERIOD_S or (limit.day == day and limit.windows >= MOST_PER_DAY)
        ):
            return False
        windows = limit.windows + 1 if limit is not None and limit.day == day else 1
        self._jobs[job] = _JobWindows(at_s, day, windows)
        if len(self._jobs) > MOST_JOBS:
            del self._jobs[min(self._jobs, key=lambda name: self._jobs[name].at_s)]
        return True


def _has_suspects(batch: Batch) -> bool:
    """Return whether a rank is named, or may be soon, or the job's network is: its transfers show which link."""
    ranks, severities = (batch.columns[name].tolist() for name in ("rank", "severity"))
    causes = batch.strings("cause", "causes").tolist()
    links = (severity > 0 for severity, cause in zip(severities, causes, strict=True) if cause == SLOW_LINK)
    return any(links) or bool(suspect_ranks(ranks, severities, batch.strings("evidence_json", "evidence").tolist()))


def _ranks(batch: Batch) -> list[int]:
    """Return the rank that cost most of those that have become late with this window, and a healthy one; or none."""
    columns: Mapping[str, Any] = {
        name: batch.columns[name].tolist() for name in ("rank", "severity", "changed", "lost_ns")
    }
    hosts = batch.strings("host", "hosts").tolist()
    rows = list(zip(columns["rank"], columns["severity"], columns["changed"], columns["lost_ns"], hosts, strict=True))
    late = [(-lost, rank, at) for at, (rank, severity, changed, lost, _) in enumerate(rows)
            if rank >= 0 and severity >= WARNING and changed]  # fmt: skip
    if not late:
        return []
    _, culprit, at = min(late)
    healthy = [(rank, place) for rank, severity, _, _, place in rows if severity == 0]
    return with_peer(culprit, hosts[at], healthy, compared_ranks(batch.strings("evidence_json", "evidence")[at]))
