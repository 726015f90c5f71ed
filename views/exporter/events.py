"""Events: what changed in a fleet since the last time. No I/O; the clock is an argument."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

from drumline.infra.guidance.causes import guidance
from drumline.infra.guidance.hangs import hang_guidance
from drumline.schemas.batch import Batch
from drumline.streams.core.thresholds import CRITICAL, OK, SUSPECT
from drumline.views.exporter.live_runs import LiveRuns, LostGpu, Run
from drumline.views.exporter.run_state import WHOLE_JOB, RankRow, RunState, Window

#: Kinds of events.
VERDICT, HANG, GPU_LOST = "verdict", "hang", "gpu_lost"
#: Ranks of a run that have events of their own at a time, the worst.
MOST_RANKS = 64
_IDS = uuid.UUID("0e2d0b52-7a0a-5c8f-8b5e-3f1c9b6f6a10")


@dataclass(frozen=True, slots=True)
class VerdictEvent:
    """Describes one change.

    Attributes:
        id: the same for the same change, also after a restart: receivers recognise what they know.
        kind: verdict, hang or gpu_lost.
        state: of the alarm or standstill; ok, moving or answers where `is_over`.
        severity: 0 (over) to 3.
        time_ns: when it became known, or in event time where that is known; ns since the epoch.
        text: a sentence.
    """

    id: str
    kind: str
    state: str
    severity: int
    time_ns: int
    text: str
    job: str
    run: str
    row: RankRow
    is_over: bool = False

    def attributes(self) -> dict[str, str | int | float]:
        """Return name -> value of what the event is about."""
        row = self.row
        of_drumline: dict[str, str | int | float] = {
            "kind": self.kind, "state": self.state, "job": self.job, "run": self.run, "rank": row.rank,
            "gpu_uuid": row.gpu_uuid, "cause": row.cause, "detail": row.detail, "lost_ratio": row.lost_ratio,
            "event_id": self.id,
        }  # fmt: skip
        return {"host.name": row.host, **{f"drumline.{name}": value for name, value in of_drumline.items()}}


#: Kind, job, run, and rank, or host and GPU -> the alarm, standstill or loss that is open.
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _RunEvents:
    """Holds the open events of a run, and what they are of."""

    window: Window | None
    hang: Batch | None
    standstill: str
    events: dict[Key, VerdictEvent]


class EventLog:
    """Compares a fleet with what it was before. After a restart what is open is an event again, with the same id."""

    def __init__(self) -> None:
        self._open: dict[Key, VerdictEvent] = {}
        self._of_runs: dict[Run, _RunEvents] = {}

    def advance(self, fleet: LiveRuns, now_ns: int) -> list[VerdictEvent]:
        """Return what changed: alarms and standstills that began, became another, or are over; lost GPUs."""
        self._of_runs = {run: self._run_events(run, state, now_ns) for run, state in fleet.runs.items()}
        now = {key: event for of_run in self._of_runs.values() for key, event in of_run.events.items()}
        now |= {(GPU_LOST, loss.host, loss.gpu_uuid): _loss(loss) for loss in fleet.lost.values()}
        changed = [event for key, event in now.items() if not _is_same(self._open.get(key), event)]
        over = [_over(event, now_ns) for key, event in self._open.items() if key not in now]
        self._open = now
        return [*changed, *over]

    def _run_events(self, run: Run, state: RunState, now_ns: int) -> _RunEvents:
        """Return the open events of a run; those of before while it has no newer window and standstill."""
        standstill, before = state.standstill(now_ns), self._of_runs.get(run)
        is_same = before is not None and before.window is state.window and before.hang is state.hang
        if before is not None and is_same and before.standstill == standstill:
            return before
        events = {**dict(_alarms(run, state)), **dict(_standstill(run, state, now_ns))}
        return _RunEvents(state.window, state.hang, standstill, events)

    def at_host(self, host: str) -> list[VerdictEvent]:
        """Return the open events of a host, the worst first."""
        events = [event for event in self._open.values() if event.row.host == host]
        return sorted(events, key=lambda event: -event.severity)


def _is_same(before: VerdictEvent | None, now: VerdictEvent) -> bool:
    return before is not None and before.id == now.id


def _alarms(run: Run, state: RunState) -> Iterator[tuple[Key, VerdictEvent]]:
    window = state.window
    if window is None:
        return
    of = window.by_badness()[:MOST_RANKS].tolist() + ([window.whole] if window.whole is not None else [])
    for at in of:
        if window.levels[at] < SUSPECT:
            continue
        row, episode = window.row(at), int(window.number("episode_first_step")[at])
        parts = (VERDICT, *run, str(row.rank))
        number = _id(*parts, str(window.envelope["attempt_start_ns"]), str(episode), row.state, row.cause, row.detail)
        yield (
            parts,
            VerdictEvent(
                number, VERDICT, row.state, int(window.levels[at]), window.end_ns, _verdict(run, row), *run, row
            ),
        )


def _standstill(run: Run, state: RunState, now_ns: int) -> Iterator[tuple[Key, VerdictEvent]]:
    name = state.standstill(now_ns)
    if not name or state.hang is None:
        return
    of = state.hang.envelope
    verdict = state.verdict(now_ns)
    awaited = sorted(state.awaited(now_ns).values(), key=lambda row: row.rank)
    row = verdict if len(awaited) != 1 else awaited[0]
    entry = hang_guidance(verdict.cause)
    reason = f": {entry.meaning}" if entry else ""
    ranks = ", ".join(str(rank.rank) for rank in awaited[:8]) + ", ..." * (len(awaited) > 8)
    named = f", it waits for rank{'s' * (len(awaited) > 1)} {ranks}" if awaited else ""
    text = f"{_subject(run)} is {name}{named}{reason}"
    parts = (HANG, *run)
    number = _id(*parts, str(of["attempt_start_ns"]), str(of["episode"]), name, verdict.cause, ranks)
    yield parts, VerdictEvent(number, HANG, name, verdict.severity, int(of["time_ns"]), text, *run, row)


def _loss(loss: LostGpu) -> VerdictEvent:
    run = f" of {_subject((loss.job, loss.run))}" if loss.job else ""
    text = f"GPU {loss.gpu_uuid} of host {loss.host} does not answer{run}"
    row = RankRow(WHOLE_JOB, loss.host, loss.gpu_uuid, state="lost", cause="lost", severity=CRITICAL)
    number = _id(GPU_LOST, loss.host, loss.gpu_uuid, str(loss.first_ns))
    return VerdictEvent(number, GPU_LOST, "lost", CRITICAL, loss.first_ns, text, loss.job, loss.run, row)


def _over(event: VerdictEvent, now_ns: int) -> VerdictEvent:
    subject = {GPU_LOST: f"GPU {event.row.gpu_uuid} of host {event.row.host} is not reported as lost any more",
               HANG: f"{_subject((event.job, event.run))} does not stand still any more",
               VERDICT: f"the alarm of {_named(event)} is over"}[event.kind]  # fmt: skip
    state = {GPU_LOST: "answers", HANG: "moving", VERDICT: "ok"}[event.kind]
    return replace(
        event, id=_id(event.id, "over"), state=state, severity=OK, time_ns=now_ns, text=subject, is_over=True
    )


def _named(event: VerdictEvent) -> str:
    rank = "" if event.row.rank == WHOLE_JOB else f"rank {event.row.rank} of "
    return rank + _subject((event.job, event.run))


def _subject(run: Run) -> str:
    return f"job {run[0]}, run {run[1]}"


def _verdict(run: Run, row: RankRow) -> str:
    entry = guidance(row.cause, row.detail)
    cause = " ".join(part.replace("_", " ") for part in (row.cause, row.detail) if part)
    meaning = f", {entry.meaning}" if entry else ""
    host = f" on host {row.host}" if row.host else ""
    subject = "the job as a whole" if row.rank == WHOLE_JOB else f"rank {row.rank}{host}"
    return f"{_subject(run)}: {subject} is {row.state}, {row.lost_ratio:.0%} of the time is lost: {cause}{meaning}"


def _id(*parts: str) -> str:
    return str(uuid.uuid5(_IDS, "\n".join(parts)))
