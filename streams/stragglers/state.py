"""The state of one run for its verdicts: step budgets by rank, lateness by communicator, published verdicts.

Keys of the store:

- s|window|rank|run_key: the rows of gpu.step.v1 of one rank in one window.
- l|step|communicator|run_key: the rows of gpu.lateness.v1 of one step; l|step.slice|... of one slice of its ranks.
- c|communicator|run_key: progress and ranks of a communicator.
- v|window|run_key: the head of the published verdict.
- h|run_key: the horizon. Rows of windows before it are being deleted one by one, and are incomplete.

Keys of samples: sample_state.py. A batch rewrites only the values that its rows fall in. The index in memory is
rebuilt by `restore_jobs`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.core.input_counts import InputCounts
from drumline.streams.core.records import (
    Rows,
    StateRecord,
    differs,
    key,
    newest_steps,
    pack_rows,
    split_run_key,
    stacked,
    unpack_rows,
)
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_join import LATENESS_ROW, PIPELINE
from drumline.streams.stragglers.lateness_rows import WHOLE, lateness_rows, lists_of_steps, part_of
from drumline.streams.stragglers.sample_state import DEVICE, HOST, SampleState
from drumline.streams.stragglers.sources import Place, Sources
from drumline.streams.stragglers.step_rows import STEP_ROW, latest_steps, step_rows

Store = MutableMapping[str, bytes]
NO_ROWS = np.dtype([("none", "u1")])
#: Kinds of keys as a checkpoint writes them (worker/partition_store.py): the progress of a communicator follows its
#: rows, and the epoch of a worker the results that came before it (worker/stage_runner.py).
CHECKPOINT_KINDS = "hlcsdpx"
#: What was published: no record that is read again tells it.
AT_ONCE_KINDS = "v"
#: Values of lateness rows that are read together: some MB.
PART_VALUES = 4096
#: Interval of a sample of a process that still counts, ns; of a longer one nobody knows which part is the window's.
LONGEST_SAMPLE_NS = 10_000_000_000
#: Time behind a window whose readings of a GPU are about it too: NVML's are means of up to a second; ns.
DEVICE_BEHIND_NS = 1_000_000_000


@dataclass(slots=True)
class Cells:
    """Indexes the stored rows of a window: ranks with step rows, (step, communicator) -> parts with lateness rows."""

    ranks: set[int] = field(default_factory=set)
    lateness: dict[tuple[int, str], tuple[int, ...]] = field(default_factory=dict)


class JobState:
    """Keeps the state of one run: the index in memory, and access to the store.

    Built by `JobStage`; `restore_jobs` fills the index after a restart.

    Attributes:
        settled: since the restart the worker had no lag once, so a source that is missing is not in Kafka either.
        members: communicator -> its ranks.
        pipelines: communicators in which one rank sends what another receives -> their ranks.
        windows: window -> its stored rows.
        dirty: windows to evaluate.
        published: window -> head of the verdict that was returned last (`JobStage`).
        watched: window -> (start, end) in ns, for windows whose cause depends on samples.
        horizon: first window that still takes rows.
        counts: of the stage; rows for dropped windows are too old.
    """

    def __init__(self, store: Store, run_key: str, config: StragglerConfig, counts: InputCounts) -> None:
        self.store, self.run_key, self.config, self.counts = store, run_key, config, counts
        self.job, self.run = split_run_key(run_key)
        self.world_size, self.sequence = 0, 0
        self.settled = False
        self.sources = Sources()
        self.members: dict[str, tuple[int, ...]] = {}
        self._key_ends: dict[str, str] = {}  # of communicators
        self.pipelines: dict[str, frozenset[int]] = {}
        self.windows: dict[int, Cells] = {}
        self.dirty: set[int] = set()
        self.published: dict[int, dict[str, Any]] = {}
        self.samples = {kind.key: SampleState(store, run_key, kind) for kind in (DEVICE, HOST)}
        self.watched: dict[int, tuple[int, int]] = {}
        self.horizon = 0

    @property
    def awaits_sources(self) -> bool:
        """Return whether ranks or communicators are missing whose batches may still be in Kafka."""
        sources = self.sources
        missing = len(sources.ranks) < self.world_size or (self.world_size != 1 and not sources.communicators)
        return missing and not self.settled

    def rank_rows(self, window: int, rank: int) -> StateRecord | None:
        """Return the STEP_ROW rows of a rank in a window."""
        data = self.store.get(key("s", window, rank, self.run_key))
        return None if data is None else unpack_rows(data, STEP_ROW)

    def lateness_rows(self, step: int, communicator: str, part: int = WHOLE) -> StateRecord | None:
        """Return the LATENESS_ROW rows of a part of a communicator in a step."""
        data = self.store.get(self._lateness_key(step, communicator, part))
        return None if data is None else unpack_rows(data, LATENESS_ROW)

    def stored_steps(self, window: int) -> tuple[list[int], list[bytes]]:
        """Return the ranks of a window, rising, and the values of their rows (STEP_ROW)."""
        stored = ((rank, self.store.get(key("s", window, rank, self.run_key))) for rank in self.windows[window].ranks)
        values = sorted((rank, value) for rank, value in stored if value is not None)
        return [rank for rank, _ in values], [value for _, value in values]

    def stored_lateness(
        self, window: int, steps: Container[int]
    ) -> Iterator[tuple[list[tuple[str, int]], list[bytes]]]:
        """Yield (communicator, step) of some steps of a window, rising, and the values of their rows (LATENESS_ROW).

        A place is there once for each of its slices. Each part has all of some communicators: those of a large job
        together fill no memory twice.
        """
        places: list[tuple[str, int]] = []
        values: list[bytes] = []
        lateness = self.windows[window].lateness
        wanted = sorted((communicator, step) for step, communicator in lateness if step in steps)
        for communicator, places_of in groupby(wanted, key=itemgetter(0)):
            for place in places_of:
                for part in lateness[place[1], communicator]:
                    value = self.store.get(self._lateness_key(place[1], communicator, part))
                    if value is not None:
                        places.append(place)
                        values.append(value)
            if len(values) >= PART_VALUES:
                yield places, values
                places, values = [], []
        if values:
            yield places, values

    def apply_steps(self, batch: Batch, offset: int, now_ns: int) -> None:
        """Apply a gpu.step.v1 batch. A value that was written at this offset or later stays as it is."""
        envelope = batch.envelope
        rank, complete = int(envelope["rank"]), int(envelope["complete_step"])
        source = self.sources.update_rank(rank, complete, now_ns)
        source.place = Place(envelope["host"], envelope["gpu_uuid"])
        self.world_size = max(self.world_size, int(envelope["world_size"]))
        received = step_rows(batch)
        rows = newest_steps(received, self.config.max_steps)
        self.counts.too_old += len(received) - len(rows)
        window_of = rows["step"] // self.config.window_steps
        windows = set(window_of.tolist())
        touched = self._accepted(windows, window_of)
        if complete >= 0 and self.config.window_of(complete) >= self.horizon:
            touched.add(self.config.window_of(complete))
        head: dict[str, Any] = {"complete": source.complete, "world_size": int(envelope["world_size"])}
        source.steps_from = envelope.get("steps_from") or source.steps_from
        head |= {**source.place._asdict(), "steps_from": source.steps_from, "window_steps": self.config.window_steps}
        is_duplicate = False
        for window in sorted(touched):
            old = self.rank_rows(window, rank)
            if old is not None and offset <= old.offset:
                is_duplicate = True
                continue
            new = rows if windows == {window} else rows[window_of == window]
            merged = new if old is None else stacked([old.rows, new])
            self.store[key("s", window, rank, self.run_key)] = pack_rows(offset, head, latest_steps(merged))
            self.windows.setdefault(window, Cells()).ranks.add(rank)
            if len(new):
                self.dirty.add(window)
        self.counts.duplicates += is_duplicate

    def apply_lateness(self, batch: Batch, offset: int, now_ns: int) -> None:
        """Apply a gpu.lateness.v1 batch: its steps replace the stored ones, except those from this offset or later.

        Of a communicator with more ranks than a record holds, it replaces its slice.
        """
        envelope, part, lists_of = batch.envelope, part_of(batch), lists_of_steps(batch)
        communicator, ranks = envelope["communicator"], envelope["rank_list"]
        source = self.sources.update_communicator(communicator, int(envelope["complete_step"]), now_ns)
        members = self.members.get(communicator, ())
        if tuple(ranks) != members:
            self.members[communicator] = tuple(sorted({*members, *ranks}))
        self.world_size = max(self.world_size, int(envelope["world_size"]))
        rows = newest_steps(lateness_rows(batch), self.config.max_steps)
        self.counts.too_old += batch.rows - len(rows)
        self._accepted(set(), rows["step"] // self.config.window_steps)
        emptied = (step for step in lists_of if part in self._parts(step, communicator))  # all its ranks are left out
        is_duplicate = False
        for step in sorted({*np.unique(rows["step"]).tolist(), *emptied}):
            window, parts = self.config.window_of(step), self._parts(step, communicator)
            replaced = [other for other in parts if (other == WHOLE) != (part == WHOLE)]
            stored = (self.lateness_rows(step, communicator, other) for other in (part, *replaced))
            known = [record for record in stored if record is not None]
            if window < self.horizon or any(offset <= before.offset for before in known):
                is_duplicate |= window >= self.horizon
                continue
            new = rows[rows["step"] == step]
            lists = lists_of.get(step, {"kinds": [], "hidden": []})
            self.store[self._lateness_key(step, communicator, part)] = pack_rows(offset, lists, new)
            for other in replaced:
                self.store.pop(self._lateness_key(step, communicator, other), None)
            kept = (part,) if replaced else tuple(sorted({*parts, part}))
            self.windows.setdefault(window, Cells()).lateness[step, communicator] = kept
            old = known[0] if part in parts and not replaced else None
            if old is None or old.rows.tobytes() != new.tobytes() or old.head["hidden"] != lists["hidden"]:
                self.dirty.add(window)
        self.counts.duplicates += is_duplicate
        pipeline = ranks if part == WHOLE else self.members[communicator]
        self._update_pipeline(communicator, pipeline if envelope["point_to_point"] == PIPELINE else ())
        head = {"complete": source.complete, "ranks": self.members[communicator]}
        head |= {"world_size": self.world_size, "pipeline": sorted(self.pipelines.get(communicator, ()))}
        name, value = key("c", communicator, self.run_key), pack_rows(offset, head, np.zeros(0, NO_ROWS))
        if differs(self.store.get(name), value):
            self.store[name] = value

    def _parts(self, step: int, communicator: str) -> tuple[int, ...]:
        """Return the stored parts of a step of a communicator: its slices, or WHOLE."""
        cells = self.windows.get(self.config.window_of(step))
        return () if cells is None else cells.lateness.get((step, communicator), ())

    def _lateness_key(self, step: int, communicator: str, part: int) -> str:
        end = self._key_ends.get(communicator)
        if end is None:
            end = self._key_ends[communicator] = key(communicator, self.run_key)
        return f"l|{step}|{end}" if part == WHOLE else f"l|{step}.{part}|{end}"

    def apply_samples(self, batch: Batch, offset: int) -> None:
        """Apply a gpu.device.v1 or gpu.host.v1 batch: windows whose cause depends on samples are evaluated again."""
        kind = HOST if batch.topic == Topic.HOST else DEVICE
        times = self.samples[kind.key].apply(batch, offset)
        if times is not None:
            first = times[0] - (DEVICE_BEHIND_NS if kind is DEVICE else 0)
            self.dirty |= {w for w, (start, end) in self.watched.items() if first <= end and start <= times[1]}

    def device_rows(self, window: int, rank: int) -> Rows:
        """Return the samples of a rank's GPU during its steps in a window, and a second behind: readings are means."""
        start_ns, end_ns = self._span(window, rank)
        return self.samples[DEVICE.key].rows(rank, start_ns, end_ns + DEVICE_BEHIND_NS if end_ns else 0)

    def host_rows(self, window: int, rank: int) -> Rows:
        """Return the samples of a rank's process whose intervals lie in its steps of a window, if in part."""
        start_ns, end_ns = self._span(window, rank)
        rows = self.samples[HOST.key].rows(rank, start_ns, end_ns + LONGEST_SAMPLE_NS if end_ns else 0)
        begun: Rows = rows[rows["time_ns"] - rows["interval_ns"] < end_ns]
        return begun

    def _span(self, window: int, rank: int) -> tuple[int, int]:
        """Return begin and end of a rank's steps in a window, (0, 0) without steps; ns of its host."""
        record = self.rank_rows(window, rank)
        if record is None or not len(record.rows):
            return 0, 0
        ends = record.rows["start_ns"] + record.rows["duration_ns"]
        return int(record.rows["start_ns"].min()), int(ends.max())

    def _update_pipeline(self, communicator: str, ranks: Iterable[int]) -> None:
        """Set the ranks of a pipeline. After a change all windows are evaluated again: it decides on the peers."""
        known, now = self.pipelines.pop(communicator, frozenset()), frozenset(ranks)
        if now:
            self.pipelines[communicator] = now
        if now != known:
            self.dirty |= {window for window, cells in self.windows.items() if cells.ranks}

    def _accepted(self, windows: set[int], window_of: Any) -> set[int]:
        """Return the windows that still take rows; rows of the others are counted as too old."""
        self.counts.too_old += int((window_of < self.horizon).sum())
        return {window for window in windows if window >= self.horizon}

    def drop_before(self, window: int) -> None:
        """Delete the rows of earlier windows, and verdicts older than the history.

        The horizon is written first: after a crash in between, the rest of a window must not be evaluated.
        """
        if window > self.horizon:
            self.horizon = window
            head = {"horizon": window, "window_steps": self.config.window_steps}
            self.store[key("h", self.run_key)] = pack_rows(-1, head, np.zeros(0, NO_ROWS))
        for old in [w for w in self.windows if w < self.horizon]:
            cells = self.windows.pop(old)
            for rank in cells.ranks:
                self.store.pop(key("s", old, rank, self.run_key), None)
            for (step, communicator), parts in cells.lateness.items():
                for part in parts:
                    self.store.pop(self._lateness_key(step, communicator, part), None)
        self.dirty = {w for w in self.dirty if w >= self.horizon}
        self.watched = {w: span for w, span in self.watched.items() if w >= self.horizon}
        # The baseline must outlast a fault of any length.
        closed = [w for w in sorted(self.published) if w < self.horizon]  # the others may be evaluated again
        baseline = [w for w in closed if self.published[w]["baseline"]][-self.config.baseline_windows :]
        for old in set(closed[: -self.config.history_windows]) - set(baseline):
            del self.published[old]
            self.store.pop(key("v", old, self.run_key), None)

    def forget(self) -> None:
        """Delete all state of this run."""
        self.drop_before(1 << 60)
        for window in self.published:
            self.store.pop(key("v", window, self.run_key), None)
        for samples in self.samples.values():
            samples.forget()
        for communicator in self.sources.communicators:
            self.store.pop(key("c", communicator, self.run_key), None)
        self.store.pop(key("h", self.run_key), None)
