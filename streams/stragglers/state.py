"""The state of one run for its verdicts: step budgets by rank, lateness by communicator, published verdicts.

Keys of the store:

- v|window|run_key: the head of the published verdict.
- h|run_key: the horizon. Rows of blocks before it are being deleted one by one, and are incomplete.

Keys of window lengths: lengths.py; of steps: step_state.py; of communicators: communicators.py; of samples:
sample_state.py; of transfers: links/transfer_state.py; of lateness: lateness_state.py; of stacks:
inspection/sampled_stacks.py. The index in memory is rebuilt by `restore_jobs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from sys import intern
from typing import Any, NamedTuple

import numpy as np

from drumline.schemas.record_table import BatchTable, Ints, RecordTable
from drumline.schemas.topics import Topic
from drumline.streams.core.attempts import Attempt
from drumline.streams.core.input_counts import InputCounts
from drumline.streams.core.records import NO_ROWS, Rows, key, newest_steps, pack_rows, split_run_key
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_rows import PIPELINE
from drumline.streams.stragglers.analysis.lateness_history import unexplained_windows
from drumline.streams.stragglers.communicators import Communicators
from drumline.streams.stragglers.inspection.sampled_stacks import SampledStacks
from drumline.streams.stragglers.lateness_rows import KEPT_ROW, NO_LISTS, WHOLE, lateness_rows, lists_of_steps, part_of
from drumline.streams.stragglers.lateness_state import LatenessState
from drumline.streams.stragglers.lengths import WindowLengths
from drumline.streams.stragglers.links.connections import join_connections, with_connections
from drumline.streams.stragglers.links.flows import TRANSFER_ROW, Flow, join_flows, window_share
from drumline.streams.stragglers.links.transfer_state import TransferState
from drumline.streams.stragglers.sample_state import DEVICE, HOST, SAMPLE_KINDS, SampleKind, SampleState
from drumline.streams.stragglers.sources import Place, Sources
from drumline.streams.stragglers.step_rows import STEP_ROW, step_rows
from drumline.streams.stragglers.step_state import AppliedParts, Cells, RankReport, StepState

Store = MutableMapping[str, bytes]
#: Kinds of keys as a checkpoint writes them (worker/partition_store.py): the progress of a communicator follows its
#: rows, and the epoch of a worker the results that came before it (worker/stage_runner.py).
CHECKPOINT_KINDS = "hlcsdpnix"
#: What was published, and in which windows: no record that is read again tells it.
AT_ONCE_KINDS = "vw"
#: Kinds whose values are most of the state, and read for some windows only: bytes of their rows.
ROW_BYTES = {
    "s": STEP_ROW.itemsize,
    "l": KEPT_ROW.itemsize,
    "n": TRANSFER_ROW.itemsize,
    **{key: of.narrow.itemsize for key, of in SAMPLE_KINDS.items()},
}
#: Interval of a sample of a process that still counts, ns; of a longer one nobody knows which part is the window's.
LONGEST_SAMPLE_NS = 10_000_000_000
#: Time behind a window whose readings of a GPU are about it too: NVML's are means of up to a second; ns.
DEVICE_BEHIND_NS = 1_000_000_000


#: Time by which the clocks of hosts may differ: rows of transfers are searched so much around a window; ns.
CLOCKS_NS = 10_000_000_000


class Watched(NamedTuple):
    """Names the samples that were read for a window: of these ranks, about this time; ns."""

    ranks: list[int]
    start_ns: int
    end_ns: int


class JobState:
    """Keeps the state of one run: the index in memory, and access to the store.

    Built by `JobStage`; `restore_jobs` fills the index after a restart.

    Attributes:
        settled: since the restart the worker had no lag once, so a source that is missing is not in Kafka either.
        communicators: their ranks and progress.
        lengths: the steps of each window.
        blocks: block of steps -> its stored rows.
        dirty: windows to evaluate.
        published: window -> head of the verdict that was returned last (`JobStage`).
        watched: window -> the samples that its causes depend on.
        spans_ns: window -> its host times, about which rows of connections are.
        evaluated_ns: window -> worker's clock when it was evaluated last.
        horizon: first block that still takes rows.
        counts: of the stage; rows for dropped blocks are too old.
        samples: first part of their keys -> samples of GPUs and of processes; made with the first ones.
        stacks: of suspect ranks and their peers.
        transfers: of ranks over the network.
    """

    __slots__ = (
        *("attempt", "blocks", "communicators", "config", "counts", "dirty", "evaluated_ns", "horizon", "lateness"),
        *("published", "run_key", "samples", "sequence", "settled", "sources", "spans_ns", "stacks", "steps", "store"),
        "watched",
        *("lengths", "transfers", "world_size"),
    )

    def __init__(self, store: Store, attempt: Attempt, config: StragglerConfig, counts: InputCounts) -> None:
        self.store, self.attempt, self.config, self.counts = store, attempt, config, counts
        self.run_key = run_key = attempt.unit
        self.world_size, self.sequence = 0, 0
        self.settled = False
        self.sources = Sources()
        self.communicators = Communicators(store, run_key, config)
        self.lengths = WindowLengths(store, run_key, config)
        self.blocks: dict[int, Cells] = {}
        self.dirty: set[int] = set()
        self.published: dict[int, dict[str, Any]] = {}
        self.steps = StepState(store, run_key, config, counts)
        self.lateness = LatenessState(store, run_key, config.window_steps)
        self.samples: dict[str, SampleState] = {}
        self.stacks = SampledStacks(store, run_key)
        self.transfers = TransferState(store, run_key)
        self.watched: dict[int, Watched] = {}
        self.spans_ns: dict[int, tuple[int, int]] = {}
        self.evaluated_ns: dict[int, int] = {}
        self.horizon = 0

    @property
    def job(self) -> str:
        """Return its job."""
        return split_run_key(self.run_key)[0]

    @property
    def run(self) -> str:
        """Return its run."""
        return split_run_key(self.run_key)[1]

    @property
    def awaits_sources(self) -> bool:
        """Return whether ranks or communicators are missing whose batches may still be in Kafka."""
        sources = self.sources
        missing = len(sources.ranks) < self.world_size or (self.world_size != 1 and not sources.communicators)
        return missing and not self.settled

    def apply_steps(self, table: RecordTable, offsets: Ints, now_ns: int) -> None:
        """Apply gpu.step.v1. A value that was written at an offset or later stays as it is."""
        (rows, part_of), sizes = step_rows(table), table.number("world_size")
        if (len(rows) and int(rows["step"].max() - rows["step"].min()) >= self.config.max_steps) or len(set(sizes)) > 1:
            if table.parts > 1:  # each part has its own bounds then
                for part, batch in enumerate(table.batches()):
                    self.apply_steps(BatchTable.of([batch]), offsets[part : part + 1], now_ns)
                return
            newest = newest_steps(rows, self.config.max_steps)
            self.counts.too_old += len(rows) - len(newest)
            rows, part_of = newest, part_of[: len(newest)]
        ranks, completes = table.number("rank"), table.number("complete_step")
        of_ranks, first_of = np.unique(ranks, return_inverse=True)
        most, last = np.full(len(of_ranks), completes.min()), np.zeros(len(of_ranks), np.int64)
        np.maximum.at(most, first_of, completes)
        np.maximum.at(last, first_of, np.arange(table.parts))
        origins = {}
        named = np.flatnonzero(~table.has_text("steps_from", ""))
        if len(named):
            origins = dict(zip(ranks[named].tolist(), table.text("steps_from", named), strict=True))
        kept, world_size = {}, int(sizes[0])
        of_last = most.tolist(), table.text("host", last), table.text("gpu_uuid", last)
        for rank, complete, host, gpu_uuid in zip(of_ranks.tolist(), *of_last, strict=True):
            texts = intern(host), intern(gpu_uuid), origins.get(rank, "")  # one object in all windows
            report = RankReport(complete, world_size, *texts)
            kept[rank] = self._update_rank(rank, report, now_ns)
        applied = AppliedParts(rows, part_of, ranks, completes, offsets)
        self._note_changed(self.steps.apply(applied, kept, self.blocks, self.horizon), rows)

    def _note_changed(self, steps: Iterable[int], rows: Rows) -> None:
        self.lengths.note_steps(rows)
        self.dirty |= self.lengths.windows_of(steps)

    def decide_windows(self, is_over: bool) -> bool:
        """Return whether windows have a length, and mark those with rows once it is decided. `is_over`: as there."""
        if self.lengths.decide(is_over):
            self.dirty = self.windows_with_rows()
        return self.lengths.is_decided

    def windows_with_rows(self) -> set[int]:
        """Return the windows that ranks reported steps of, which take rows."""
        if not self.lengths.is_decided:
            return set()
        of_blocks = ((block * self.config.window_steps, cells) for block, cells in self.blocks.items() if cells.reports)
        return {
            window
            for first, cells in of_blocks
            for window in range(self.lengths.window_of(first), self.lengths.window_of(max(first, cells.last_step)) + 1)
            if window >= self.first_window
        }

    @property
    def first_window(self) -> int:
        """Return the first window that still takes rows."""
        return self.lengths.window_of(self.horizon * self.config.window_steps) if self.lengths.is_decided else 0

    def has_rows(self, window: int) -> bool:
        """Return whether rows of a window's block are stored."""
        return self.lengths.block_of(window) in self.blocks

    def _update_rank(self, rank: int, report: RankReport, now_ns: int) -> RankReport:
        """Record what a rank reports and return what is kept of it."""
        source = self.sources.update_rank(rank, report.complete, now_ns)
        if source.place != (report.host, report.gpu_uuid):
            source.place = Place(report.host, report.gpu_uuid)
        source.steps_from = report.steps_from or source.steps_from
        self.world_size = max(self.world_size, report.world_size)
        if (report.complete, report.steps_from) == (source.complete, source.steps_from):  # as nearly always
            return report
        return report._replace(complete=source.complete, steps_from=source.steps_from)

    def apply_lateness(self, table: RecordTable, offsets: Ints, now_ns: int) -> None:
        """Apply gpu.lateness.v1."""
        rows, parts = lateness_rows(table), zip(table.batches(), table.ends, offsets.tolist(), strict=False)
        for batch, begin, offset in parts:
            self._apply_lateness(batch.envelope, rows[begin : begin + batch.rows], offset, now_ns)

    def _apply_lateness(self, envelope: Mapping[str, Any], received: Rows, offset: int, now_ns: int) -> None:
        """Apply a batch: its steps replace the stored ones, except those from this offset or later.

        Of a communicator with more ranks than a record holds, it replaces its slice.
        """
        part, lists_of = part_of(envelope), lists_of_steps(envelope)
        communicator, ranks = envelope["communicator"], envelope["rank_list"]
        source = self.sources.update_communicator(communicator, int(envelope["complete_step"]), now_ns)
        self.communicators.add(communicator, ranks)
        self.world_size = max(self.world_size, int(envelope["world_size"]))
        rows, steps_seen = received, set(received["step"].tolist())
        if steps_seen and max(steps_seen) - min(steps_seen) >= self.config.max_steps:
            rows = newest_steps(received, self.config.max_steps)
            self.counts.too_old += len(received) - len(rows)
            steps_seen = set(rows["step"].tolist())
        if steps_seen and self.config.block_of(min(steps_seen)) < self.horizon:
            self.counts.too_old += int((rows["step"] // self.config.window_steps < self.horizon).sum())
        missing = (step for step in lists_of if step not in steps_seen)
        emptied = (step for step in missing if self._has_lateness(step, communicator, part))  # all ranks are left out
        lists_at: dict[int, dict[int, bytes]] = {}  # first step of a value -> its steps -> their lists
        for step in sorted({*steps_seen, *emptied}):
            lists_at.setdefault(self.lateness.first_of(step), {})[step] = lists_of.get(step, NO_LISTS)
        first_of = self.lateness.firsts_of(rows) if len(lists_at) > 1 else None
        is_duplicate = False
        for first, steps in lists_at.items():
            block = self.config.block_of(first)
            if block < self.horizon:
                continue
            cells = self.blocks.setdefault(block, Cells())
            inside = rows if first_of is None else rows[first_of == first]
            changed = self.lateness.replace(cells.lateness, (first, communicator), part, inside, steps, offset)
            is_duplicate |= changed is None
            if changed:
                self.dirty |= self.lengths.windows_of(steps)
        self.counts.duplicates += is_duplicate
        pipeline = ranks if part == WHOLE else self.communicators.members[communicator]
        is_pipeline = envelope["point_to_point"] == PIPELINE
        if self.communicators.set_pipeline(communicator, pipeline if is_pipeline else ()):  # it decides on the peers
            self.dirty |= self.windows_with_rows()
        self.communicators.write(communicator, source.complete, self.world_size, offset)

    def _has_lateness(self, step: int, communicator: str, part: int) -> bool:
        cells = self.blocks.get(self.config.block_of(step))
        return cells is not None and part in self.lateness.parts(cells.lateness, step, communicator)

    def apply_samples(self, table: RecordTable, offsets: Ints) -> None:
        """Apply gpu.device.v1 or gpu.host.v1: windows whose cause depends on samples are evaluated again."""
        kind = HOST if table.topic == Topic.HOST else DEVICE
        sampled = self.samples_of(kind).apply(table, offsets)
        first_ns = sampled.begin_ns - (DEVICE_BEHIND_NS if kind is DEVICE else 0)
        for window, of in self.watched.items():
            inside = (first_ns <= of.end_ns) & (of.start_ns <= sampled.time_ns)
            if np.isin(sampled.ranks[inside], of.ranks).any():
                self.dirty.add(window)

    def apply_stacks(self, table: RecordTable, offsets: Ints) -> None:
        """Apply gpu.stack.v1: windows from the one that asked for the inspection are evaluated again."""
        for batch, offset in zip(table.batches(), offsets.tolist(), strict=True):
            completed = self.stacks.apply(batch, offset)
            if completed is not None and self.lengths.is_decided:
                begin = self.lengths.window_of(completed.first_step)
                self.dirty |= {window for window in self.published if window >= begin and self.has_rows(window)}

    def apply_transfers(self, table: RecordTable, offsets: Ints) -> None:
        """Apply gpu.transfer.v1: windows that are published, and that the rows are about, are evaluated again."""
        new = self.transfers.apply(table, offsets)
        numbered = new[(new["first_step"] >= 0) & (new["last_step"] - new["first_step"] < self.config.max_steps)]
        if self.lengths.is_decided and len(numbered):
            spans = np.unique(numbered[["first_step", "last_step"]]).tolist()
            touched = {
                window
                for first, last in spans
                for window in range(self.lengths.window_of(first), self.lengths.window_of(last) + 1)
            }
            self.dirty |= {window for window in touched if window in self.published and self.has_rows(window)}
        of_connections = new[new["peer"] < 0]
        for window, (start_ns, end_ns) in self.spans_ns.items() if len(of_connections) else ():
            begin_ns = of_connections["time_ns"]
            is_about = (begin_ns < end_ns) & (begin_ns + of_connections["duration_ns"] > start_ns)
            if is_about.any() and window in self.published and self.has_rows(window):
                self.dirty.add(window)

    def flows(self, window: int, span_ns: tuple[int, int], collectives: Mapping[str, float]) -> list[Flow]:
        """Return what ranks sent each other in a window. `span_ns`: its host times; `collectives`: by communicator."""
        self.spans_ns[window] = span_ns
        if not self.transfers.buckets:
            return []
        (start_ns, end_ns), (first, last) = span_ns, self.lengths.steps_of(window)
        stored = self.transfers.between(start_ns - CLOCKS_NS, end_ns + CLOCKS_NS)
        share = window_share(stored.rows, first, last, start_ns, end_ns)
        least_ns = self.config.suspect * (end_ns - start_ns)
        return with_connections(join_flows(stored, share), join_connections(stored, share), least_ns, collectives)

    def samples_of(self, kind: SampleKind) -> SampleState:
        """Return the samples of a kind."""
        if kind.key not in self.samples:
            self.samples[kind.key] = SampleState(self.store, self.run_key, kind)
        return self.samples[kind.key]

    def device_rows(self, window: int, rank: int) -> Rows:
        """Return the samples of a rank's GPU during its steps in a window, and a second behind: readings are means."""
        start_ns, end_ns = self._span(window, rank)
        return self.samples_of(DEVICE).rows(rank, start_ns, end_ns + DEVICE_BEHIND_NS if end_ns else 0)

    def host_rows(self, window: int, rank: int) -> Rows:
        """Return the samples of a rank's process whose intervals lie in its steps of a window, if in part."""
        start_ns, end_ns = self._span(window, rank)
        rows = self.samples_of(HOST).rows(rank, start_ns, end_ns + LONGEST_SAMPLE_NS if end_ns else 0)
        begun: Rows = rows[rows["time_ns"] - rows["interval_ns"] < end_ns]
        return begun

    def _span(self, window: int, rank: int) -> tuple[int, int]:
        first, last = self.lengths.steps_of(window)
        return self.steps.span(self.config.block_of(first), rank, first, last)

    def drop_before(self, window: int) -> None:
        """Delete the rows of the blocks before a window's, and verdicts older than the history."""
        self._drop_blocks(self.lengths.block_of(window))
        first = self.first_window
        self.dirty = {w for w in self.dirty if w >= first}
        self.watched = {w: span for w, span in self.watched.items() if w >= first}
        self.spans_ns = {w: span for w, span in self.spans_ns.items() if w >= first}
        self.evaluated_ns = {w: at for w, at in self.evaluated_ns.items() if w >= first}
        # The past must outlast a fault of any length: the baseline, of which jobs with jitter keep links, and lateness.
        closed = [w for w in sorted(self.published) if w < first]  # the others may be evaluated again
        dropped = closed[: -self.config.history_windows]
        if dropped:
            baselines = {w: self.published[w]["baseline"] for w in closed}
            last = slice(-self.config.baseline_windows, None)
            of_links, of_jobs = ([w for w in closed if baselines[w].get(part)][last] for part in ("links", "job"))
            unexplained = unexplained_windows({w: self.published[w]["lateness"] for w in closed})
            dropped = sorted({*dropped} - {*of_links, *of_jobs, *unexplained[last]})
        for window in dropped:
            del self.published[window]
            self.store.pop(key("v", window, self.run_key), None)

    def _drop_blocks(self, horizon: int) -> None:
        """Delete the rows of earlier blocks.

        The horizon is written first: after a crash in between, the rest of a block must not be evaluated.
        """
        moved = horizon > self.horizon
        if moved:
            self.horizon = horizon
            head = {"horizon": horizon, "window_steps": self.config.window_steps}
            self.store[key("h", self.run_key)] = pack_rows(-1, head, np.zeros(0, NO_ROWS))
        for old in [block for block in self.blocks if block < self.horizon]:
            cells = self.blocks.pop(old)
            self.steps.drop(old, cells.reports)
            self.lateness.drop(cells.lateness)
        if moved:
            self._drop_samples()

    def _drop_samples(self) -> None:
        """Delete the samples from before the windows that are kept of their ranks: nothing reads them any more."""
        begin_ns: dict[int, int] = {}
        for cells in self.blocks.values():
            for part, begin in cells.begin_ns.items():
                begin_ns[part] = min(begin, begin_ns.get(part, begin))
        for samples in self.samples.values():
            samples.drop_before(begin_ns)
        self.transfers.drop_before(begin_ns)

    def forget(self) -> None:
        """Delete all state of this run."""
        self._drop_blocks(1 << 60)
        for window in self.published:
            self.store.pop(key("v", window, self.run_key), None)
        for samples in self.samples.values():
            samples.forget()
        self.transfers.forget()
        self.stacks.forget()
        self.communicators.forget(self.sources.communicators)
        self.lengths.forget()
        self.store.pop(key("h", self.run_key), None)
