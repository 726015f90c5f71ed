"""The straggler stage: evaluates a job's windows of steps and publishes a verdict for each (gpu.straggler.v1).

A window is evaluated once all live ranks and communicators have completed its steps. The last verdict of a window
depends on the rows that arrived, not on their order: late or repeated rows cause another evaluation, and a higher
revision follows only if its result differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.keys import derived_process_id
from drumline.schemas.parts.joining import allowance_ns
from drumline.schemas.record_table import Ints, RecordTable
from drumline.schemas.topics import Topic
from drumline.streams.core.attempts import Attempts, leads_of
from drumline.streams.core.in_flight import InFlight
from drumline.streams.core.input_counts import InputCounts
from drumline.streams.core.isolation import IsolatedStage, Work, by_unit
from drumline.streams.core.records import NO_ROWS, key, pack_rows, run_key, split_run_key
from drumline.streams.core.state_budget import StateBudget
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.verdict import WindowVerdict
from drumline.streams.stragglers.open_windows import NEVER, first_kept, last_complete_step, window_of
from drumline.streams.stragglers.restore import restore_key, unit_of_key
from drumline.streams.stragglers.stalled import mark_silent, stalled_window
from drumline.streams.stragglers.state import JobState, Store
from drumline.streams.stragglers.window import load_window
from drumline.streams.stragglers.window_verdict import evaluate_stored, publish_verdict

#: For so long after a restart published windows are not evaluated again: records since the last checkpoint come once
#: more, and without them a verdict would be replaced by an older one; ns. A checkpoint is made every 10 s at least.
READ_BACK_NS = 20_000_000_000
#: A rank as Python objects: its source, and what it reported in the open windows. The head of a published verdict,
#: whose ranks are nearly all alike.
RANK_BYTES, HEAD_BYTES = 1_000, 4_000
#: A flow's rate in the head of a published verdict.
FLOW_BYTES = 250


class JobStage(IsolatedStage[str, JobState]):
    """Evaluates the windows of each run: of its steps and lateness, transfers, and samples of GPUs, hosts and stacks.

    A `Stage`. Publish the batches that the methods return, keyed by job, then call `mark_sent` for each. `app_id`: the
    worker's; with the steps of a window it identifies the evaluation that verdicts are part of.
    """

    def __init__(
        self, store: Store, config: StragglerConfig, budget: StateBudget | None = None, app_id: str = ""
    ) -> None:
        super().__init__(store, budget)
        self.config, self.counts = config, InputCounts()
        self._evaluation = f"{app_id}/{config.window_steps}" if app_id else ""
        self._in_flight: InFlight[str, tuple[Batch, dict[str, Any]]] = InFlight()  # with the head to store
        self.attempts = Attempts(self.store)
        self._restore()
        self._reads_back, self._first_tick_ns = bool(self.states), 0
        for state in self.states.values():
            state.dirty = state.windows_with_rows()

    @property
    def open_windows(self) -> int:
        """Return the number of windows with changes not evaluated yet, and of verdicts not acknowledged."""
        return sum(len(state.dirty) for state in self.states.values()) + len(self._in_flight)

    @property
    def too_old(self) -> int:
        """Return the number of rows that came for windows already dropped."""
        return self.counts.too_old

    @property
    def duplicates(self) -> int:
        """Return the number of batches of steps and lateness that were applied before."""
        return self.counts.duplicates

    def _unit_of(self, batch: Batch) -> str:
        return self.attempts.unit_of_result(batch.envelope)

    def _unit_of_key(self, name: str) -> str | None:
        return unit_of_key(name)

    def _memory_of(self, state: JobState) -> int:
        newest: dict[str, Any] = next(reversed(state.published.values()), {"baseline": {}})
        flows = len(newest["baseline"].get("flows", ()))
        return RANK_BYTES * len(state.sources.ranks) + (HEAD_BYTES + FLOW_BYTES * flows) * len(state.published)

    def _run_key_of(self, unit: str) -> str:
        return unit

    def _restore_key(self, unit: str, name: str) -> None:
        restore_key(self._state(unit), name)

    def _work_of(self, table: RecordTable, offsets: Ints, now_ns: int) -> Iterator[Work[str]]:
        """Yield the parts of each attempt; samples of GPUs that no job uses belong to none."""
        if table.topic == Topic.STEP:
            units = self.attempts.units_of_ranks(table)
        elif table.topic == Topic.LATENESS:
            units = self.attempts.units_of(table, leads_of(table))
        else:
            units = self.attempts.units_at(table)  # samples begin no run
        for unit, parts, of_parts, records in by_unit(table, offsets, units):
            if table.topic != Topic.DEVICE or split_run_key(unit)[0]:
                yield Work(unit, parts.rows, partial(self._apply, unit, parts, of_parts, now_ns), records)

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """Close what has timed out (see `Stage`)."""
        self._first_tick_ns = self._first_tick_ns or now_ns
        self._reads_back &= not caught_up and now_ns - self._first_tick_ns < READ_BACK_NS
        out = super().on_tick(now_ns, caught_up)
        self.attempts.keep(self.states, self.quarantine)
        return out

    def _apply(self, unit: str, table: RecordTable, offsets: Ints, now_ns: int) -> list[Batch]:
        """Apply the parts of a run and return the verdicts of windows that they complete."""
        if table.topic == Topic.STEP:
            self._state(unit).apply_steps(table, offsets, now_ns)
        elif table.topic == Topic.LATENESS:
            self._state(unit).apply_lateness(table, offsets, now_ns)
        else:
            state = self.states.get(unit)  # samples do not begin a run
            if state is not None and table.topic == Topic.TRANSFER:
                state.apply_transfers(table, offsets)
            elif state is not None and table.topic == Topic.STACK:
                state.apply_stacks(table, offsets)
            elif state is not None:
                state.apply_samples(table, offsets)
            return []
        return self._evaluate_ready(self.states[unit], now_ns)

    def _evaluate_ready(self, state: JobState, now_ns: int) -> list[Batch]:
        """Return the verdicts of windows that are complete."""
        last = last_complete_step(state, now_ns)
        if not state.decide_windows(self.config.window_steps <= last + 1 < NEVER):
            return []
        through = state.lengths.through(last)
        ready = [w for w in state.dirty if w not in state.published and w <= through]
        if ready:  # published windows that would be dropped with it cannot wait for the next tick
            oldest = state.lengths.before(max(ready), self.config.max_steps)
            ready += [w for w in state.dirty if w in state.published and w <= oldest]
        return self._evaluate(state, ready, now_ns)

    def _tick(self, unit: str, now_ns: int, caught_up: bool) -> list[Batch]:
        """Mark silent sources, then return the verdicts of completed and of changed windows."""
        state = self.states[unit]
        sources = state.sources
        for source in sources:
            source.seen_ns, source.moved_ns = source.seen_ns or now_ns, source.moved_ns or now_ns
        stopped = caught_up and mark_silent(state, now_ns, self.config)
        sources.frontier.invalidate()
        sources.first_seen_ns = sources.first_seen_ns or now_ns
        if caught_up and now_ns - sources.first_seen_ns > self.config.idle_ns + allowance_ns(state.world_size):
            state.settled = True
        forget_ns = self.forget_after(self.config.forget_ns)
        if caught_up and all(now_ns - source.seen_ns > forget_ns for source in sources):
            state.forget()
            del self.states[unit]
            return []
        last = last_complete_step(state, now_ns)
        if not state.decide_windows(stopped or self.config.window_steps <= last + 1 < NEVER):
            return []
        through = state.lengths.through(last)
        held = {w for w in state.published if self._reads_back or self._rests(state, w, now_ns)}
        ready = [w for w in state.dirty if w <= through and w not in held]
        out = self._evaluate(state, ready, now_ns)
        is_last = not self.attempts.is_over(unit)  # that a job stopped which restarted is no news
        if stopped and is_last and (stop := stalled_window(state, now_ns, self.config)):
            _, end_ns = load_window(state, stop[0] - 1).span_ns
            out += self._publish(state, *stop, (end_ns, end_ns), now_ns)
        return out

    def _rests(self, state: JobState, window: int, now_ns: int) -> bool:
        """Return whether a published window is not evaluated again yet: hosts of a large job send their samples within
        the time that they join them, a window takes seconds then, and its last verdict is the same.
        """
        return now_ns - state.evaluated_ns.get(window, 0) < allowance_ns(state.world_size)

    def _mark_sent(self, unit: str, batch: Batch) -> None:
        """Store the batch as its window's published verdict."""
        sent, state = self._in_flight.settle(unit, int(batch.envelope["sequence"])), self.states.get(unit)
        if sent is not None and state is not None and (window := window_of(state, batch)) in state.published:
            self.store[key("v", window, unit)] = pack_rows(-1, sent[1], np.zeros(0, NO_ROWS))

    def _resend(self, now_ns: int) -> list[Batch]:
        """Return the batches that were not acknowledged for too long; a superseded one must not follow the newer."""
        out = []
        for unit, sequence, (batch, head) in self._in_flight.expired(now_ns - self.config.resend_ns):
            self._in_flight.settle(unit, sequence)
            if self._is_newest(batch):
                self._in_flight.add(unit, sequence, (batch, head), now_ns)
                out.append(batch)
        return out

    def _is_newest(self, batch: Batch) -> bool:
        state = self.states.get(self._unit_of(batch))
        head = None if state is None else state.published.get(window_of(state, batch))
        return head is not None and head["revision"] == batch.envelope["revision"]

    def _state(self, unit: str) -> JobState:
        if unit not in self.states:
            self.states[unit] = JobState(self.store, self.attempts.of_unit(unit), self.config, self.counts)
        return self.states[unit]

    def _evaluate(self, state: JobState, windows: Iterable[int], now_ns: int) -> list[Batch]:
        """Evaluate windows, and later ones that depend on them (alarm, baseline); return what changed."""
        wanted = set(windows)
        out: list[Batch] = []
        later = {w for w in state.published if wanted and w >= min(wanted)}
        for window in sorted(w for w in wanted | later if state.has_rows(w)):
            out += self._evaluate_window(state, window, now_ns)
        state.dirty -= wanted
        is_pressed = self.budget.presses(state.job)
        if wanted or is_pressed:
            unacked = (window_of(state, batch) for batch, _ in self._in_flight.of(state.run_key))
            state.drop_before(first_kept(state, unacked, is_pressed))
        return out

    def _evaluate_window(self, state: JobState, window: int, now_ns: int) -> list[Batch]:
        state.evaluated_ns[window] = now_ns
        verdict, span_ns = evaluate_stored(state, window)
        state.lengths.note_window(window, verdict.step_ns, max(state.blocks))
        return self._publish(state, window, verdict, span_ns, now_ns)

    def _publish(
        self, state: JobState, window: int, verdict: WindowVerdict, span_ns: tuple[int, int], now_ns: int
    ) -> list[Batch]:
        """Return the verdict on a window as a batch, or nothing if it is the published one. `span_ns`: host times."""
        batch = publish_verdict(state, window, verdict, span_ns, now_ns)
        if batch is None:
            return []
        if self._evaluation:
            run_name = run_key(state.job, state.run, int(batch.envelope["attempt_start_ns"]))
            process = derived_process_id(Topic.STRAGGLER, run_name, self._evaluation)
            batch.envelope.update(evaluation=self._evaluation, process_id=process)
        sent = batch, dict(state.published[window])
        self._in_flight.add(state.run_key, batch.envelope["sequence"], sent, now_ns)
        return [batch]
