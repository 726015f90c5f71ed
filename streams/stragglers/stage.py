"""Per job: judge windows of steps once all live ranks and communicators are through them (gpu.straggler.v1).

Pure, like communicator_stage.py. What is emitted last for a window is a function of the rows that came, not of their
order: late or repeated rows judge the window again, and a higher revision follows only if it says something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from functools import partial
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.records import key, pack_rows
from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.stragglers.alarm import Alarm, advance, hold, stored
from drumline.streams.stragglers.analysis.baseline import read
from drumline.streams.stragglers.analysis.verdict import INFERRED, WindowVerdict, judge
from drumline.streams.stragglers.analysis.verdict_rows import WHOLE_JOB
from drumline.streams.stragglers.restore import restore_jobs
from drumline.streams.stragglers.stalled import fall_quiet, stopped_window, with_unheard
from drumline.streams.stragglers.state import NO_ROWS, JobState, Store
from drumline.streams.stragglers.verdict_batch import digest, said, verdict_batch
from drumline.streams.stragglers.window import window_table, world_size


class JobStage:
    """Reads gpu.lateness.v1, gpu.step.v1 and gpu.device.v1. Send what the methods return, keyed by job, then
    call `mark_sent`."""

    def __init__(self, store: Store, config: StragglerConfig) -> None:
        self.store, self.config = store, config
        self.states: dict[str, JobState] = restore_jobs(store, config)
        self._handed: dict[tuple[str, int], tuple[Batch, dict[str, Any], int]] = {}

    @property
    def open_windows(self) -> int:
        """Windows not judged as they are now, and verdicts not acknowledged."""
        return sum(len(state.dirty) for state in self.states.values()) + len(self._handed)

    @property
    def too_old(self) -> int:
        """Rows that came for windows already forgotten."""
        return sum(state.too_old for state in self.states.values())

    @property
    def duplicates(self) -> int:
        """Batches of steps and lateness that came again."""
        return sum(state.duplicates for state in self.states.values())

    def on_batch(self, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
        """Apply one batch; `offset` is that of its own topic and partition. What became ready with it."""
        run = batch.envelope["run"]
        if batch.topic == "gpu.step.v1":
            self._state(run).apply_steps(batch, offset, now_ns)
        elif batch.topic == "gpu.lateness.v1":
            self._state(run).apply_lateness(batch, offset, now_ns)
        else:
            if run in self.states:  # samples alone start no run
                self.states[run].apply_device(batch, offset, now_ns)
            return []
        state = self.states[run]
        last = self._through(state, now_ns)
        ready = [w for w in state.dirty if w not in state.heads and self._last_step(w) <= last]
        if ready:  # those that would be forgotten with it have no time until the next tick
            ready += [w for w in state.dirty if w in state.heads and w <= max(ready) - self._most]
        return self._judge(state, ready, now_ns)

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """Once a second: what fell silent no longer holds a window up; changed windows are judged again."""
        out = []
        for name, (batch, head, handed_ns) in list(self._handed.items()):
            if now_ns - handed_ns > self.config.resend_ns:
                del self._handed[name]
                if self._is_newest(batch):  # else it would come after, and replace, what replaced it
                    self._handed[name] = (batch, head, now_ns)
                    out.append(batch)
        for run, state in list(self.states.items()):
            sources = state.sources
            for source in sources:
                source.seen_ns, source.moved_ns = source.seen_ns or now_ns, source.moved_ns or now_ns
            stopped = caught_up and fall_quiet(state, now_ns, self.config)
            sources.frontier.unknown()
            sources.first_seen_ns = sources.first_seen_ns or now_ns
            if caught_up and now_ns - sources.first_seen_ns > self.config.idle_ns:
                state.settled = True
            if caught_up and all(now_ns - source.seen_ns > self.config.forget_ns for source in sources):
                state.forget()
                del self.states[run]
                continue
            last = self._through(state, now_ns)
            out += self._judge(state, [w for w in state.dirty if self._last_step(w) <= last], now_ns)
            if stopped and (stop := stopped_window(state, now_ns, self.config)):
                _, _, end_ns = window_table(state, stop[0] - 1)
                out += self._say(state, *stop, end_ns, end_ns, now_ns)
        return out

    def mark_sent(self, batch: Batch) -> None:
        """The broker has it: from now on this is what the window said."""
        run, window = batch.envelope["run"], self.config.window_of(int(batch.envelope["first_step"]))
        handed = self._handed.pop((run, int(batch.envelope["sequence"])), None)
        if handed is not None and run in self.states and window in self.states[run].heads:
            self.store[key("v", window, run)] = pack_rows(-1, handed[1], np.zeros(0, NO_ROWS))

    def _is_newest(self, batch: Batch) -> bool:
        run, window = batch.envelope["run"], self.config.window_of(int(batch.envelope["first_step"]))
        head = self.states[run].heads.get(window) if run in self.states else None
        return head is not None and head["revision"] == batch.envelope["revision"]

    def _state(self, run: str) -> JobState:
        if run not in self.states:
            self.states[run] = JobState(self.store, run, self.config)
        return self.states[run]

    @property
    def _most(self) -> int:
        """Windows of a run that there may be."""
        return -(-self.config.max_steps // self.config.window_steps)

    def _last_step(self, window: int) -> int:
        return (window + 1) * self.config.window_steps - 1

    def _through(self, state: JobState, now_ns: int) -> int:
        """The last step that is complete as far as anybody alive can tell."""
        lowest = state.sources.frontier.lowest()
        if lowest is None:
            return 1 << 62
        if state.awaits_others and now_ns - state.sources.first_seen_ns <= self.config.join_ns:
            return -1  # the run has just begun: its other ranks are on their way
        return lowest

    def _horizon(self, state: JobState) -> int:
        """The first window to keep: rows that come late must find what they belong to, what they changed is judged
        again at the next tick, and a verdict that nobody acknowledged yet is made again after a kill."""
        judged = max(state.heads, default=0)
        lowest = state.sources.frontier.lowest()
        through = judged if lowest is None else min(judged, self.config.window_of(lowest))
        kept, most = -(-self.config.retention_steps // self.config.window_steps), self._most
        unsaid = (self.config.window_of(int(batch.envelope["first_step"])) for batch, _, _ in self._of_run(state.run))
        changed = (max(w, judged - most) for w in state.dirty if w in state.heads)
        first = min([*unsaid, *changed], default=judged)
        return min(first, judged - most if state.awaits_others else max(through - kept, judged - most))

    def _of_run(self, run: str) -> Iterable[tuple[Batch, dict[str, Any], int]]:
        return (handed for (of_run, _), handed in self._handed.items() if of_run == run)

    def _judge(self, state: JobState, windows: Iterable[int], now_ns: int) -> list[Batch]:
        """Judge windows and those after them that rest on them (alarm, links' history); what has changed."""
        wanted = set(windows)
        out: list[Batch] = []
        for window in sorted(w for w in state.windows if wanted and w >= min(wanted)):
            if window in wanted or window in state.heads:
                out += self._judge_one(state, window, now_ns)
        state.dirty -= wanted
        if wanted:
            state.drop_before(self._horizon(state))
        return out

    def _judge_one(self, state: JobState, window: int, now_ns: int) -> list[Batch]:
        past = read((state.heads[w]["past"] for w in sorted(state.heads) if w < window), self.config)
        table, start_ns, end_ns = window_table(state, window)
        samples = partial(state.device_rows, window)
        inferred = any(source.steps_from == INFERRED for source in state.sources.ranks.values())
        verdict = judge(table, world_size(state, window), past, self.config, state.sources.hosts, samples, inferred)
        if any(row.cause.cause == "slow_compute" for row in verdict.rows):
            state.watched[window] = (start_ns, end_ns)
        return self._say(state, window, verdict, start_ns, end_ns, now_ns)

    def _say(
        self, state: JobState, window: int, verdict: WindowVerdict, start_ns: int, end_ns: int, now_ns: int
    ) -> list[Batch]:
        """The verdict on a window as a batch, unless it was said before."""
        before = max((w for w in state.heads if w < window), default=None)
        known = {"alarms": {}, "said": {}} if before is None else state.heads[before]
        alarms = {int(rank): stored(old) for rank, old in known["alarms"].items()}
        verdict = with_unheard(verdict, alarms)
        # While a rank is late the whole job's row says nothing about links and changes: no news is no good news.
        late = any(row.names_rank for row in verdict.rows)
        for row in verdict.rows:
            alarm = alarms.get(row.rank, Alarm())
            held = late and row.rank == WHOLE_JOB and row.severity == OK
            alarms[row.rank] = hold(alarm) if held else advance(alarm, row.severity, self.config, window)
        envelope: dict[str, Any] = {
            "job": state.job,
            "run": state.run,
            "world_size": state.world_size,
            "sequence": state.sequence,
            "base_time_ns": start_ns,
            "sent_ns": now_ns,
            "first_step": window * self.config.window_steps,
            "last_step": self._last_step(window),
            "window_start_ns": start_ns,
            "window_end_ns": end_ns,
        }
        spoken = {int(rank): text for rank, text in known["said"].items()}
        batch = verdict_batch(verdict, alarms, spoken, state.sources.places, self.config.window_steps, envelope)
        head = state.heads.get(window)
        kept = {
            "digest": digest(batch),
            "alarms": {str(rank): list(astuple(alarm)) for rank, alarm in alarms.items()},
            "said": known["said"] | {str(row.rank): said(row, alarms[row.rank]) for row in verdict.rows},
            "past": verdict.past,
        }
        if head is not None and head["digest"] == kept["digest"]:
            head.update(kept)
            return []
        batch.envelope["revision"] = 0 if head is None else head["revision"] + 1
        state.sequence += 1
        head = {"revision": batch.envelope["revision"], "sequence": state.sequence, **kept}
        state.heads[window] = head
        self._handed[(state.run, envelope["sequence"])] = (batch, dict(head), now_ns)
        return [batch]
