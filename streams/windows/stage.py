"""Rolling windows of one process: panes, watermark, late rows, revisions, silence. What is summed is the reducer's.

Pure: the store is any mapping of bytes, the clock is an argument. Replaying a batch changes nothing, and because the
panes of a batch are written before its progress, neither does a crash between those writes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.records import key
from drumline.streams.windows.panes import Array, Pane, coarsen, combine, pack_pane, unpack_pane
from drumline.streams.windows.process_state import Names, Progress, Store, Window, identity_of, load
from drumline.streams.windows.watermark import WindowConfig, accepted, advanced, latest_plausible

Key = tuple[str, str]


class Reducer(Protocol):
    """What is counted, and as what. `source`, `target`: topics."""

    source: str
    target: str

    def pane(self, batch: Batch, rows: Array | slice, names: Names) -> Pane:
        """The chosen rows of a batch as one pane."""

    def result(self, pane: Pane, names: Names) -> tuple[dict[str, object], dict[str, Array], int]:
        """A window as (dictionaries of the envelope, columns, rows)."""


class ProcessWindows:
    """One stage for one partition. Send what `on_batch` and `on_tick` return, keyed by process, then call
    `mark_sent` for each: until then a window is not handed out again, after a restart it is."""

    def __init__(self, store: Store, config: WindowConfig, reducer: Reducer) -> None:
        self.store, self.config, self.reducer = store, config, reducer
        self.processes: dict[Key, Progress] = {}
        self.duplicates = 0  # batches that came again, since this stage was built
        self.too_old = 0  # rows that no window takes, since this stage was built
        panes: dict[Key, set[int]] = {}
        for name in list(store):
            kind, rest = name.split("|", 1)
            if kind == "p":
                process, run = rest.split("|", 1)
                self._progress(process, run)
            elif kind == "w":
                start, process, run = rest.split("|", 2)
                panes.setdefault((process, run), set()).add(int(start))
        for where, starts in panes.items():
            self._progress(*where).panes = starts

    @property
    def open_windows(self) -> int:
        """Windows, and counts of late rows, that have not been sent as they are now."""
        return sum(
            sum(window.dirty for window in p.windows.values()) + (p.late != p.late_said)
            for p in self.processes.values()
        )

    def on_batch(self, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
        """Apply one batch; the windows that its watermark closes, and closed ones that late rows changed."""
        progress = self._progress(batch.envelope["process_id"], batch.envelope["run"])
        progress.seen_ns = now_ns
        if offset > progress.offset and progress.applied.add(int(batch.envelope["sequence"])):
            self._apply(progress, batch, offset, now_ns)
            self._save(progress)
        else:
            self.duplicates += 1
        return self._emit(progress, progress.watermark_ns, now_ns)

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """Close what has been silent. Without `caught_up` nothing is: the worker may just be slow."""
        out: list[Batch] = []
        for where, progress in list(self.processes.items()):
            progress.seen_ns = progress.seen_ns or now_ns
            silent_ns = now_ns - progress.seen_ns
            if not caught_up or silent_ns <= self.config.idle_ns:
                continue
            out += self._emit(progress, None, now_ns)
            if progress.late != progress.late_said and not progress.late_handed and not _on_the_way(progress):
                out.append(self._late_only(progress, now_ns))
            if silent_ns > self.config.retire_ns and not any(w.dirty for w in progress.windows.values()):
                self._retire(progress)
            if silent_ns > self.config.forget_ns and progress.late == progress.late_said:
                self._forget(where)
        return out

    def mark_sent(self, batch: Batch) -> None:
        """The broker has it."""
        envelope = batch.envelope
        progress = self.processes.get((envelope["process_id"], envelope["run"]))
        if progress is None:
            return
        window = progress.windows.get(int(envelope["window_start_ns"]))
        if batch.rows and window is not None and window.handed >= 0:
            window.revision = int(envelope["revision"]) + 1
            window.dirty, window.handed = window.changes != window.handed, -1
        if not batch.rows:
            progress.late_handed = False
        progress.sent = max(progress.sent, int(envelope["sequence"]) + 1)
        progress.late_said = max(progress.late_said, int(envelope["late_rows"]))
        self._save(progress)

    def _progress(self, process: str, run: str) -> Progress:
        where = (process, run)
        if where not in self.processes:
            self.processes[where] = load(self.store, process, run, Names(self.store, process, run))
        return self.processes[where]

    def _apply(self, progress: Progress, batch: Batch, offset: int, now_ns: int) -> None:
        config, starts = self.config, batch.columns["start_ns"]
        latest = latest_plausible(batch, now_ns, config)
        good = accepted(starts, latest, progress.watermark_ns, config)
        all_good = bool(good.all())
        pane_of_row = config.pane_of(starts)
        for start in np.unique(pane_of_row if all_good else pane_of_row[good]).tolist():
            rows = pane_of_row == start
            if not all_good:
                rows &= good
            self._add(
                progress, start, self.reducer.pane(batch, slice(None) if rows.all() else rows, progress.names), offset
            )
        late = len(starts) - int(np.count_nonzero(good))
        progress.late += late
        self.too_old += late
        progress.identity = identity_of(batch)
        progress.offset = offset
        progress.watermark_ns = advanced(progress.watermark_ns, batch, latest)

    def _add(self, progress: Progress, start: int, part: Pane, offset: int) -> None:
        name = progress.pane_key(start)
        data = self.store.get(name)
        if data is not None:
            pane, applied = unpack_pane(data)
            part = combine([pane, part]) if offset > applied else pane
        if data is None or offset > applied:
            self.store[name] = pack_pane(coarsen(part), offset)
        progress.panes.add(start)
        progress.touch(self.config.windows_of(start))

    def _save(self, progress: Progress) -> None:
        """Store progress, then drop panes that nothing can need any more: never the other way round, since a crash in
        between must not leave a window to be sent whose panes are gone."""
        config, watermark = self.config, progress.watermark_ns
        for start, window in list(progress.windows.items()):
            if not window.dirty and start + config.window_ns + config.grace_ns <= watermark:
                del progress.windows[start]
        progress.save(self.store)
        needed = {pane for w, window in progress.windows.items() if window.dirty for pane in config.panes_of(w)}
        for pane in [p for p in progress.panes if config.pane_is_done(p, watermark) and p not in needed]:
            progress.panes.discard(pane)
            self.store.pop(progress.pane_key(pane), None)

    def _emit(self, progress: Progress, watermark_ns: int | None, now_ns: int) -> list[Batch]:
        """Windows that changed and are over at this watermark; None = all that changed."""
        length = self.config.window_ns
        due = [w for w in progress.dirty if watermark_ns is None or w + length <= watermark_ns]
        return [self._window(progress, start, progress.windows[start], now_ns) for start in due]

    def _window(self, progress: Progress, start: int, window: Window, now_ns: int) -> Batch:
        found = [
            unpack_pane(self.store[progress.pane_key(p)])[0] for p in self.config.panes_of(start) if p in progress.panes
        ]
        dictionaries, columns, rows = self.reducer.result(combine(found), progress.names)
        window.handed = window.changes
        return self._batch(progress, start, window.revision, now_ns, rows, dictionaries, columns)

    def _late_only(self, progress: Progress, now_ns: int) -> Batch:
        """No rows: only says how many came too late. Its window is the newest one known."""
        progress.late_handed = True
        start = max(progress.windows, default=progress.watermark_ns // self.config.hop_ns * self.config.hop_ns)
        revision = progress.windows[start].revision if start in progress.windows else 0
        return self._batch(progress, start, revision, now_ns, 0, {}, {})

    def _batch(
        self, progress: Progress, start: int, revision: int, now_ns: int, rows: int, words: object, columns: object
    ) -> Batch:
        envelope = {
            **progress.identity,
            "sequence": progress.sequence,
            "rows": rows,
            "watermark_ns": progress.watermark_ns,
            "sent_ns": now_ns,
            "window_start_ns": start,
            "window_end_ns": start + self.config.window_ns,
            "revision": revision,
            "late_rows": progress.late,
        }
        progress.sequence += 1
        assert isinstance(words, dict)
        assert isinstance(columns, dict)
        return Batch(self.reducer.target, {**envelope, **words}, columns)

    def _retire(self, progress: Progress) -> None:
        """Silent for long: its panes go, and rows that would still fall into them are late from now on."""
        if progress.panes:
            end = max(progress.panes) + self.config.window_ns + self.config.grace_ns
            progress.watermark_ns = max(progress.watermark_ns, end)
            self._save(progress)

    def _forget(self, where: Key) -> None:
        progress = self.processes.pop(where)
        progress.names.drop()
        self.store.pop(key("p", *where), None)


def _on_the_way(progress: Progress) -> bool:
    return any(window.handed >= 0 for window in progress.windows.values())
