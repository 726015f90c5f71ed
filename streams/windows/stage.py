"""The windows stage: rolling windows of each process, with watermark, late rows, revisions and silence.

A `Reducer` defines the sums. The store is any mapping of bytes, in production a Faust table. Replaying a batch changes
nothing. Neither does a crash between two writes, because the panes of a batch are written before the process state:
at once, or by checkpoints in the same order (process_state.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.record_table import Ints, RecordTable
from drumline.streams.core.batch_dedup import Arrival
from drumline.streams.core.isolation import IsolatedStage, Work, by_unit
from drumline.streams.core.records import key, run_key, run_keys, unit_parts
from drumline.streams.core.state_budget import StateBudget
from drumline.streams.windows.config import WindowConfig
from drumline.streams.windows.panes import Array, Pane, coarsen, combine, pack_pane, unpack_pane
from drumline.streams.windows.process_state import Names, ProcessState, RollingWindow, Store, identity_of, load_process
from drumline.streams.windows.watermark import accepted, advanced, latest_plausible

Key = tuple[str, str]
#: A kernel name as Python objects: a text, and its entries in a list and a dictionary. Measured.
NAME_BYTES = 200
#: Kind of a key -> number of its parts before process and `run_key` (process_state.py).
_UNIT_AT = {"p": 1, "n": 2, "w": 2}
#: A window as (dictionaries of the envelope, columns, number of rows).
WindowResult = tuple[dict[str, object], dict[str, Array], int]


class Reducer(Protocol):
    """Defines the measures of a windows stage. `source`, `target`: topics."""

    source: str
    target: str

    def pane(self, batch: Batch, rows: Array | slice, names: Names) -> Pane:
        """Return the chosen rows of a batch as one pane."""

    def result(self, pane: Pane, names: Names) -> WindowResult:
        """Return a window as the content of a batch."""


class ProcessWindows(IsolatedStage[Key, ProcessState]):
    """Counts the rows of each process in rolling windows, as a reducer defines it. A `Stage`.

    Publish the batches that the methods return, keyed by process, then call `mark_sent` for each. Until then a window
    is not returned again; after a restart it is.

    Attributes:
        processes: (process id, `run_key`) -> state.
        duplicates: batches that were applied before, since the stage was built.
        conflicts: batches that were applied beside another one of their sequence.
        repeated_rows: rows dropped, since a batch of their sequence was applied too long ago to compare them.
        too_old: rows that no window takes, since the stage was built.
    """

    def __init__(self, store: Store, config: WindowConfig, reducer: Reducer, budget: StateBudget | None = None) -> None:
        super().__init__(store, budget)
        self.config, self.reducer = config, reducer
        self.processes = self.states
        self.duplicates, self.conflicts, self.repeated_rows = 0, 0, 0
        self.too_old = 0
        self._unloaded: dict[Key, int] = {}  # when last seen
        self._restore()

    @property
    def open_windows(self) -> int:
        """Return the number of windows and of late-row counts with changes that are not acknowledged."""
        return sum(
            sum(window.dirty for window in p.windows.values()) + (p.late != p.late_published)
            for p in self.processes.values()
        )

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """Close what has timed out, and forget processes that were silent for very long."""
        out = super().on_tick(now_ns, caught_up)
        for unit in [u for u, seen_ns in self._unloaded.items() if now_ns - seen_ns > self.config.forget_ns]:
            del self._unloaded[unit]
            self.store.job = self._job_of(unit)
            self.store.pop(key("p", *unit), None)
        return out

    def _drop(self, unit: Key) -> None:
        super()._drop(unit)
        self._unloaded.pop(unit, None)

    def _is_new(self, unit: Key) -> bool:
        return unit not in self.states and unit not in self._unloaded

    def _unit_of(self, batch: Batch) -> Key:
        return batch.envelope["process_id"], run_key(batch.envelope["job"], batch.envelope["run"])

    def _unit_of_key(self, name: str) -> Key | None:
        parts = unit_parts(name, _UNIT_AT, 2)
        return None if parts is None else (parts[0], parts[1])

    def _memory_of(self, state: ProcessState) -> int:
        return NAME_BYTES * len(state.names.texts) + state.applied.contents.nbytes

    def _run_key_of(self, unit: Key) -> str:
        return unit[1]

    def _restore_key(self, unit: Key, name: str) -> None:
        process = self._process(unit)
        if name[0] == "w":
            process.panes.add(int(name.split("|", 2)[1]))

    def _work_of(self, table: RecordTable, offsets: Ints, now_ns: int) -> Iterator[Work[Key]]:
        runs, processes = run_keys(table), table.text("process_id")
        units = [*zip(processes, runs if len(runs) > 1 else runs * len(processes), strict=True)]
        for unit, parts, of_parts, records in by_unit(table, offsets, units):
            yield Work(unit, parts.rows, partial(self._apply, unit, parts, of_parts, now_ns), records)

    def _apply(self, unit: Key, table: RecordTable, offsets: Ints, now_ns: int) -> list[Batch]:
        """Return the windows that a batch's watermark closes, and closed ones that late rows changed."""
        process, parts = self._process(unit), zip(table.batches(), offsets.tolist(), strict=True)
        return [result for batch, offset in parts for result in self._apply_batch(process, batch, offset, now_ns)]

    def _apply_batch(self, process: ProcessState, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
        process.seen_ns = now_ns
        arrival = Arrival.DUPLICATE
        if offset > process.offset:
            content = batch.content if batch.rows else 0
            arrival = process.applied.add(int(batch.envelope["sequence"]), content)
        if arrival in (Arrival.NEW, Arrival.CONFLICT):
            self._count(process, batch, offset, now_ns)
            self._save(process)
        self.duplicates += arrival is Arrival.DUPLICATE
        self.conflicts += arrival is Arrival.CONFLICT
        self.repeated_rows += batch.rows if arrival is Arrival.FORGOTTEN else 0
        return self._emit(process, process.watermark_ns, now_ns)

    def _tick(self, unit: Key, now_ns: int, caught_up: bool) -> list[Batch]:
        """Return the open windows of a silent process, and delete the state of a long silent one."""
        process, out = self.processes[unit], []
        process.seen_ns = process.seen_ns or now_ns
        silent_ns = now_ns - process.seen_ns
        if not caught_up or silent_ns <= self.config.idle_ns:
            return []
        out += self._emit(process, None, now_ns)
        if process.late != process.late_published and not process.late_in_flight and not _in_flight(process):
            out.append(self._late_only(process, now_ns))
        is_open = any(w.dirty for w in process.windows.values())
        if silent_ns > self.config.retire_ns and not is_open:
            self._retire(process)
        is_published = not is_open and process.late == process.late_published
        if is_published and silent_ns > self.forget_after(self.config.forget_ns):
            self._unload(unit)
        return out

    def _mark_sent(self, unit: Key, batch: Batch) -> None:
        """Store the next revision and sequence of the batch's process."""
        envelope = batch.envelope
        process = self.processes.get(unit)
        if process is None:
            return
        window = process.windows.get(int(envelope["window_start_ns"]))
        if batch.rows and window is not None and window.in_flight >= 0:
            window.revision = int(envelope["revision"]) + 1
            window.dirty, window.in_flight = window.changes != window.in_flight, -1
        if not batch.rows:
            process.late_in_flight = False
        process.sent = max(process.sent, int(envelope["sequence"]) + 1)
        process.late_published = max(process.late_published, int(envelope["late_rows"]))
        self._save(process)

    def _process(self, unit: Key) -> ProcessState:
        if unit not in self.processes:
            self._unloaded.pop(unit, None)
            self.processes[unit] = load_process(self.store, *unit, Names(self.store, *unit))
        return self.processes[unit]

    def _count(self, process: ProcessState, batch: Batch, offset: int, now_ns: int) -> None:
        config, starts = self.config, batch.columns["start_ns"]
        latest = latest_plausible(batch, now_ns, config)
        good = accepted(starts, latest, process.watermark_ns, config)
        all_good = bool(good.all())
        pane_of_row = config.pane_of(starts)
        for start in np.unique(pane_of_row if all_good else pane_of_row[good]).tolist():
            rows = pane_of_row == start
            if not all_good:
                rows &= good
            pane = self.reducer.pane(batch, slice(None) if rows.all() else rows, process.names)
            self._add(process, start, pane, offset)
        late = len(starts) - int(np.count_nonzero(good))
        process.late += late
        self.too_old += late
        process.identity = identity_of(batch)
        process.offset = offset
        process.watermark_ns = advanced(process.watermark_ns, batch, latest)

    def _add(self, process: ProcessState, start: int, part: Pane, offset: int) -> None:
        name = process.pane_key(start)
        data = self.store.get(name)
        if data is not None:
            pane, applied = unpack_pane(data)
            part = combine([pane, part]) if offset > applied else pane
        if data is None or offset > applied:
            self.store[name] = pack_pane(coarsen(part), offset)
        process.panes.add(start)
        process.touch(self.config.windows_of(start))

    def _save(self, process: ProcessState) -> None:
        """Store the process, then delete panes that no window needs.

        This order matters: a crash in between must not leave a window to emit without its panes.
        """
        config, watermark = self.config, process.watermark_ns
        for start, window in list(process.windows.items()):
            if not window.dirty and start + config.window_ns + config.grace_ns <= watermark:
                del process.windows[start]
        process.save(self.store)
        needed = {pane for w, window in process.windows.items() if window.dirty for pane in config.panes_of(w)}
        for pane in [p for p in process.panes if config.pane_is_done(p, watermark) and p not in needed]:
            process.panes.discard(pane)
            self.store.pop(process.pane_key(pane), None)

    def _emit(self, process: ProcessState, watermark_ns: int | None, now_ns: int) -> list[Batch]:
        """Return the changed windows that end at or before the watermark; None = all changed windows."""
        length = self.config.window_ns
        due = [w for w in process.dirty if watermark_ns is None or w + length <= watermark_ns]
        return [self._window(process, start, process.windows[start], now_ns) for start in due]

    def _window(self, process: ProcessState, start: int, window: RollingWindow, now_ns: int) -> Batch:
        keys = [process.pane_key(pane) for pane in self.config.panes_of(start) if pane in process.panes]
        panes = [unpack_pane(self.store[name])[0] for name in keys]
        result = self.reducer.result(combine(panes), process.names)
        window.in_flight = window.changes
        return self._batch(process, start, window.revision, result, now_ns)

    def _late_only(self, process: ProcessState, now_ns: int) -> Batch:
        """Return a batch without rows that reports the number of late rows. Its window is the newest one."""
        process.late_in_flight = True
        start = max(process.windows, default=process.watermark_ns // self.config.hop_ns * self.config.hop_ns)
        revision = process.windows[start].revision if start in process.windows else 0
        return self._batch(process, start, revision, ({}, {}, 0), now_ns)

    def _batch(self, process: ProcessState, start: int, revision: int, result: WindowResult, now_ns: int) -> Batch:
        dictionaries, columns, rows = result
        envelope = {
            **process.identity,
            "sequence": process.sequence,
            "rows": rows,
            "watermark_ns": process.watermark_ns,
            "sent_ns": now_ns,
            "window_start_ns": start,
            "window_end_ns": start + self.config.window_ns,
            "revision": revision,
            "late_rows": process.late,
        }
        process.sequence += 1
        return Batch(self.reducer.target, {**envelope, **dictionaries}, columns)

    def _retire(self, process: ProcessState) -> None:
        """Delete the panes of a long silent process; rows that would fall into them are late from now on."""
        if process.panes:
            end = max(process.panes) + self.config.window_ns + self.config.grace_ns
            process.watermark_ns = max(process.watermark_ns, end)
            self._save(process)

    def _unload(self, unit: Key) -> None:
        """Keep only the stored watermark and counts: a process that returns must not replace a window by a part."""
        process = self.processes[unit]
        self._retire(process)
        process.names.drop()
        del self.processes[unit]
        self._unloaded[unit] = process.seen_ns


def _in_flight(process: ProcessState) -> bool:
    return any(window.in_flight >= 0 for window in process.windows.values())
