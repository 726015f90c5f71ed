"""What is kept of one run for its verdicts: step budgets by rank, lateness by communicator, windows already judged.

Keys: s|window|rank|run, l|step|communicator|run, c|communicator|run, v|window|run, and h|run: the horizon; the rows of
windows before it are being deleted, piece by piece, and are no longer whole. The index here is rebuilt by
`restore`; a batch rewrites only the values its rows fall in. Samples of GPUs: see sample_state.py.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.records import Packed, Rows, key, pack_rows, stacked, unpack_rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_join import LATENESS_ROW, OPERATIONS, PIPELINE
from drumline.streams.stragglers.analysis.gpu_cause import SAMPLE_ROW
from drumline.streams.stragglers.gpu_samples import SampleState
from drumline.streams.stragglers.sources import Place, Sources
from drumline.streams.stragglers.step_rows import STEP_ROW, latest_steps, step_rows

Store = MutableMapping[str, bytes]
NO_ROWS = np.dtype([("none", "u1")])
#: Of gpu.lateness.v1: what a step had of each operation and size.
KINDS = ("kind_steps", "kind_operations", "kind_bytes", "kind_counts", "kind_floors_ns")


@dataclass(slots=True)
class Cells:
    """What a window has: ranks with step rows, (step, communicator) with lateness."""

    ranks: set[int] = field(default_factory=set)
    meetings: set[tuple[int, str]] = field(default_factory=set)


class JobState:
    """Index and access of one run."""

    def __init__(self, store: Store, run: str, config: StragglerConfig) -> None:
        self.store, self.run, self.config = store, run, config
        self.job, self.world_size, self.sequence = "", 0, 0
        self.settled = False  # since the restart the worker had no lag once: whoever is missing is not on the way
        self.sources = Sources()
        self.members: dict[str, tuple[int, ...]] = {}
        #: Communicators in which one rank sends what another receives -> their ranks.
        self.pipelines: dict[str, frozenset[int]] = {}
        self.windows: dict[int, Cells] = {}
        self.dirty: set[int] = set()
        #: Judged windows, as they were last handed out: see job_stage.py.
        self.heads: dict[int, dict[str, Any]] = {}
        self.samples = SampleState(store, run)
        #: Windows -> (start, end) in ns, whose causes samples refine.
        self.watched: dict[int, tuple[int, int]] = {}
        self.horizon = 0  # first window that still takes rows
        self.too_old, self.duplicates = 0, 0

    @property
    def awaits_others(self) -> bool:
        """Ranks or communicators were never heard, and what they said may still lie in Kafka."""
        sources = self.sources
        missing = len(sources.ranks) < self.world_size or (self.world_size != 1 and not sources.communicators)
        return missing and not self.settled

    def rank_rows(self, window: int, rank: int) -> Packed | None:
        data = self.store.get(key("s", window, rank, self.run))
        return None if data is None else unpack_rows(data, STEP_ROW)

    def lateness_rows(self, step: int, communicator: str) -> Packed | None:
        data = self.store.get(key("l", step, communicator, self.run))
        return None if data is None else unpack_rows(data, LATENESS_ROW)

    def apply_steps(self, batch: Batch, offset: int, now_ns: int) -> None:
        """A gpu.step.v1 batch. A value that has seen this offset stays as it is."""
        envelope = batch.envelope
        rank, complete = int(envelope["rank"]), int(envelope["complete_step"])
        source = self.sources.rank_heard(rank, complete, now_ns)
        source.place = Place(envelope["host"], envelope["gpu_uuid"])
        self.job, self.world_size = envelope["job"], max(self.world_size, int(envelope["world_size"]))
        rows = step_rows(batch)
        window_of = rows["step"] // self.config.window_steps
        touched = self._fresh(np.unique(window_of).tolist(), window_of)
        if complete >= 0 and self.config.window_of(complete) >= self.horizon:
            touched.add(self.config.window_of(complete))
        head = {"complete": source.complete, "job": self.job, "world_size": int(envelope["world_size"])}
        source.steps_from = envelope.get("steps_from") or source.steps_from
        head |= {**source.place._asdict(), "steps_from": source.steps_from, "window_steps": self.config.window_steps}
        seen = 0
        for window in sorted(touched):
            old = self.rank_rows(window, rank)
            if old is not None and offset <= old.offset:
                seen += 1
                continue
            mine = rows[window_of == window]
            merged = mine if old is None else stacked([old.rows, mine])
            self.store[key("s", window, rank, self.run)] = pack_rows(offset, head, latest_steps(merged))
            self.windows.setdefault(window, Cells()).ranks.add(rank)
            if len(mine):
                self.dirty.add(window)
        self.duplicates += seen > 0

    def apply_lateness(self, batch: Batch, offset: int, now_ns: int) -> None:
        """A gpu.lateness.v1 batch: each step in it replaces what was known of it, unless that has seen this offset."""
        envelope, columns = batch.envelope, batch.columns
        communicator = envelope["communicator"]
        source = self.sources.communicator_heard(communicator, int(envelope["complete_step"]), now_ns)
        self.members[communicator] = tuple(sorted({*self.members.get(communicator, ()), *envelope["rank_list"]}))
        self.job, self.world_size = envelope["job"], max(self.world_size, int(envelope["world_size"]))
        rows = np.zeros(batch.rows, LATENESS_ROW)
        for name in LATENESS_ROW.names or ():
            rows[name] = columns[name]
        known = [OPERATIONS.index(name) for name in envelope["operations"]]
        rows["worst_operation"] = np.array(known, "u1")[columns["worst_operation"]]
        kinds: dict[int, list[Any]] = {}
        for step, operation, *rest in zip(*(envelope[name] for name in KINDS), strict=True):
            kinds.setdefault(step, []).append([envelope["operations"][operation], *rest])
        self._fresh([], rows["step"] // self.config.window_steps)
        seen = 0
        for step in np.unique(rows["step"]).tolist():
            window = self.config.window_of(step)
            old = self.lateness_rows(step, communicator)
            if window < self.horizon or (old is not None and offset <= old.offset):
                seen += window >= self.horizon
                continue
            mine = rows[rows["step"] == step]
            self.store[key("l", step, communicator, self.run)] = pack_rows(offset, {"kinds": kinds.get(step, [])}, mine)
            self.windows.setdefault(window, Cells()).meetings.add((step, communicator))
            if old is None or old.rows.tobytes() != mine.tobytes():
                self.dirty.add(window)
        self.duplicates += seen > 0
        self._pipeline(communicator, envelope["rank_list"] if envelope["point_to_point"] == PIPELINE else ())
        head = {"complete": source.complete, "ranks": self.members[communicator], "job": self.job}
        head |= {"world_size": self.world_size, "pipeline": sorted(self.pipelines.get(communicator, ()))}
        self.store[key("c", communicator, self.run)] = pack_rows(offset, head, np.zeros(0, NO_ROWS))

    def apply_device(self, batch: Batch, offset: int, now_ns: int) -> None:
        """A gpu.device.v1 batch: samples refine what was said of windows they fall in. They hold nothing up."""
        times = self.samples.apply(batch, offset)
        if times is not None:
            self.dirty |= {w for w, (start, end) in self.watched.items() if times[0] <= end and start <= times[1]}

    def device_rows(self, window: int, rank: int) -> Rows:
        """Samples of a rank's GPU during its steps in a window."""
        packed = self.rank_rows(window, rank)
        if packed is None or not len(packed.rows):
            return np.zeros(0, SAMPLE_ROW)
        ends = packed.rows["start_ns"] + packed.rows["duration_ns"]
        return self.samples.rows(rank, int(packed.rows["start_ns"].min()), int(ends.max()))

    def _pipeline(self, communicator: str, ranks: Iterable[int]) -> None:
        """What is known now. It decides who is compared with whom, so after a change all windows are judged again."""
        known, now = self.pipelines.pop(communicator, frozenset()), frozenset(ranks)
        if now:
            self.pipelines[communicator] = now
        if now != known:
            self.dirty |= {window for window, cells in self.windows.items() if cells.ranks}

    def _fresh(self, windows: list[int], window_of: Any) -> set[int]:
        """Windows that still take rows; rows of the others are counted."""
        self.too_old += int((window_of < self.horizon).sum())
        return {window for window in windows if window >= self.horizon}

    def drop_before(self, window: int) -> None:
        """Forget the rows of earlier windows, and verdicts older than the history. The horizon is written first: a
        worker that dies in between must not judge what is left of a window."""
        if window > self.horizon:
            self.horizon = window
            head = {"horizon": window, "window_steps": self.config.window_steps}
            self.store[key("h", self.run)] = pack_rows(-1, head, np.zeros(0, NO_ROWS))
        for old in [w for w in self.windows if w < self.horizon]:
            cells = self.windows.pop(old)
            for rank in cells.ranks:
                self.store.pop(key("s", old, rank, self.run), None)
            for step, communicator in cells.meetings:
                self.store.pop(key("l", step, communicator, self.run), None)
        self.dirty = {w for w in self.dirty if w >= self.horizon}
        self.watched = {w: span for w, span in self.watched.items() if w >= self.horizon}
        # The job's own past must outlast a fault of any length.
        closed = [w for w in sorted(self.heads) if w < self.horizon]  # the others may be judged again
        past = [w for w in closed if self.heads[w]["past"]][-self.config.past_windows :]
        for old in set(closed[: -self.config.history_windows]) - set(past):
            del self.heads[old]
            self.store.pop(key("v", old, self.run), None)

    def forget(self) -> None:
        """Drop everything of this run."""
        self.drop_before(1 << 60)
        for window in self.heads:
            self.store.pop(key("v", window, self.run), None)
        self.samples.forget()
        for communicator in self.sources.communicators:
            self.store.pop(key("c", communicator, self.run), None)
        self.store.pop(key("h", self.run), None)
