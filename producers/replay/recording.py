"""A recorded job as the batches that a live one would have published, in order of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.table import Table
from drumline.producers.batching.builder import time_column
from drumline.producers.batching.process_record import process_batch
from drumline.producers.batching.recorded import LoopOffset, feeds
from drumline.producers.derive.nvtx import ranges
from drumline.producers.derive.rows import Derived, derive
from drumline.producers.derive.steps.steps import STEP_PATTERN, numbering_ends
from drumline.producers.identity import NCCL, Identity, process_id
from drumline.producers.replay.nccl_only import derive_light
from drumline.producers.replay.parquet import BadTrace
from drumline.producers.replay.rank_scaling import BadRanks, RankSource, rank_sources
from drumline.producers.replay.trace import Trace, read_trace
from drumline.schemas.batch import Batch
from drumline.schemas.columns import Array
from drumline.schemas.keys import record_key
from drumline.schemas.topics import RAW_TOPICS, Topic

#: Gap between the last event of one repetition and the first of the next; ns.
LOOP_GAP_NS = 1_000_000
#: `tier` in the manifest of a recording that has NCCL's operations and no other kernel.
LIGHT = "light"


@dataclass(frozen=True)
class TimedBatch:
    """A batch with its key and the event time at which it was closed."""

    time_ns: int
    key: str
    batch: Batch


class RecordedJob:
    """A recorded trace, read and derived once; its batches can be iterated any number of times.

    Attributes:
        first_ns, last_ns: recorded time of the first event and of the end of the last repetition.
        rows: of all repetitions, per topic.
        rank_sources: processes of the replayed job.
        world_size: ranks of the job, of which some may not be recorded.
        recorded_steps: number of each step in the recorded job, where they are renumbered; int64.
        counts: of each rank.
    """

    def __init__(
        self,
        source: Path | Trace,
        *,
        job: str | None = None,
        ranks: int | None = None,
        loop: int = 1,
        topics: Collection[Topic] | None = None,
        manifest: Mapping[str, Any] | None = None,
        light: bool = False,
        renumbered: bool = False,
    ) -> None:
        """Read a trace folder, or take a trace; `job` defaults to the folder's name. Raises BadTrace, BadRanks.

        `manifest`: a loaded one; by default it is read without phases, so that nothing downstream sees the injected
        faults. `light`: derive from the NCCL operations alone, as of a recording that has nothing else. `renumbered`:
        steps count 0, 1, 2, ..., as always where a profiler has sampled them.
        """
        self.topics = tuple(t for t in RAW_TOPICS if topics is None or t in topics)
        trace = source if isinstance(source, Trace) else read_trace(source, manifest, self.topics)
        name = trace.manifest.get("run", "") if isinstance(source, Trace) else source.resolve().name
        self.job, self.loop, self.manifest = job or str(name), loop, trace.manifest
        self._light = light = light or trace.manifest.get("tier") == LIGHT
        self.unknown_samples = trace.unknown_samples
        since = measured_from(trace)
        sampled = bool(trace.manifest.get("sampled_steps"))
        derived = derive_light if light else partial(derive, sampled=sampled)
        recorded = [derived(activity, since_ns=at) for activity, at in zip(trace.activities, since, strict=True)]
        self.recorded_steps: Array = np.empty(0, np.int64)
        if renumbered or sampled:
            recorded, self.recorded_steps = renumbered_steps(recorded)
        if ranks and trace.world_size > len(trace.ranks):
            raise BadRanks(f"--ranks {ranks}: the recording lacks ranks of its {trace.world_size} and cannot be scaled")
        self.rank_sources, sources = rank_sources(
            trace.ranks, recorded, ranks or len(trace.ranks), trace.manifest.get("phases") or ()
        )
        self.world_size = max(trace.world_size, len(self.rank_sources))
        spans = [_span(source) for source in sources]
        if all(span is None for span in spans):
            raise BadTrace(f"{self.job if isinstance(source, Trace) else source}: no events")
        self.first_ns = min(span[0] for span in spans if span)
        self._end_ns = max(span[1] for span in spans if span)
        self.period_ns = self._end_ns - self.first_ns + LOOP_GAP_NS
        self.last_ns = self._end_ns + (loop - 1) * self.period_ns
        self._started = [span[0] if span else self.first_ns for span in spans]
        self._feeds = [
            feeds(source, started, self._end_ns, self.topics)
            for source, started in zip(sources, self._started, strict=True)
        ]
        self._steps_per_loop = _steps(sources)
        self.counts = [sources[replayed.source].counts for replayed in self.rank_sources]
        self.rows: dict[Topic, int] = dict.fromkeys(self.topics, 0)
        for replayed in self.rank_sources:
            for feed in self._feeds[replayed.source]:
                self.rows[feed.topic] += feed.rows * loop
        if Topic.PROCESS in self.topics:
            self.rows[Topic.PROCESS] = len(self.rank_sources)

    def rows_before(self, before_ns: Mapping[Topic, int]) -> dict[Topic, int]:
        """Return the rows by topic whose recorded time is before a time of their topic; ns since the epoch."""
        of_source = {source: Counter[Topic]() for source in {replayed.source for replayed in self.rank_sources}}
        for source, counts in of_source.items():
            for feed in self._feeds[source]:
                times, before = feed.table[time_column(feed.topic)], before_ns.get(feed.topic, 0)
                ends = (before - repetition * self.period_ns for repetition in range(self.loop))
                counts[feed.topic] += sum(int((times < end).sum()) for end in ends)
        return dict(sum((of_source[replayed.source] for replayed in self.rank_sources), Counter[Topic]()))

    def identity(self, replayed: RankSource, run: str, shift_ns: int) -> Identity:
        """Return the identity of a replayed process in this run."""
        info, start = replayed.info, self._started[replayed.source] + shift_ns
        versions = {name: str(self.manifest[name]) for name in ("torch", "nccl", "cupti") if self.manifest.get(name)}
        return Identity(
            job=self.job,
            run=run,
            rank=info.rank,
            local_rank=replayed.local_rank,
            world_size=self.world_size,
            host=info.host,
            gpu_uuid=info.gpu_uuid,
            process_id=process_id(run, info.host, info.pid, start),
            pid=info.pid,
            start_ns=start,
            gpu_index=info.gpu_index,
            gpu_model=str(self.manifest.get("gpu") or ""),
            source=NCCL if self._light else "replay",
            labels={"model": str(self.manifest["model"])} if self.manifest.get("model") else {},
            versions=versions,
        )

    def batches(self, run: str = "recorded", shift_ns: int = 0) -> Iterator[TimedBatch]:
        """Yield all batches by event time, those of processes first; times are recorded ones plus `shift_ns`."""
        identities = [self.identity(replayed, run, shift_ns) for replayed in self.rank_sources]
        if Topic.PROCESS in self.topics:
            for identity in identities:
                yield TimedBatch(self.first_ns + shift_ns, identity.process_id, process_batch(identity))
        order = [
            (source, f, i)
            for source in sorted({replayed.source for replayed in self.rank_sources})
            for f, feed in enumerate(self._feeds[source])
            for i in range(len(feed.plan))
        ]
        times = np.array([int(self._feeds[s][f].plan.time_ns[i]) for s, f, i in order], dtype=np.int64)
        rank_numbers: dict[int, list[int]] = {}
        for number, replayed in enumerate(self.rank_sources):
            rank_numbers.setdefault(replayed.source, []).append(number)
        for repetition in range(self.loop):
            offset = LoopOffset(repetition, shift_ns + repetition * self.period_ns, repetition * self._steps_per_loop)
            for at in np.argsort(times, kind="stable").tolist():
                source, f, i = order[at]
                feed = self._feeds[source][f]
                for number in rank_numbers[source]:
                    name = ""
                    if feed.communicator is not None:
                        name = self.rank_sources[number].communicators[feed.communicator]
                    batch = feed.batch(i, identities[number], offset, name)
                    yield TimedBatch(int(times[at]) + offset.time_ns, record_key(batch), batch)


def measured_from(trace: Trace, pattern: str = STEP_PATTERN) -> list[int]:
    """Return for each rank when the step numbering before the first counted step ended, in ns; 0 = there is none.

    The manifest has that step's start by rank 0's clock. Other ranks may have other clocks, so they leave out as many
    numberings (warm-ups) as rank 0 does. Raises BadTrace.
    """
    listed = trace.manifest.get("steps_rank0")
    try:
        first = int(listed[0]["start_ns"]) if listed else 0
    except (KeyError, TypeError, ValueError) as error:
        raise BadTrace(f"manifest.json: `steps_rank0` needs start_ns ({error!r})") from None
    if not first:
        return [0] * len(trace.activities)
    ended = [numbering_ends(ranges(activity.markers)[0], pattern) for activity in trace.activities]
    warm_ups = int((ended[0] <= first).sum())
    return [int(at[warm_ups - 1]) if 0 < warm_ups <= len(at) else 0 for at in ended]


def renumbered_steps(recorded: Sequence[Derived]) -> tuple[list[Derived], Array]:
    """Return the rows with steps 0, 1, 2, ..., and the recorded number of each: int64. A step has one number on all
    ranks.
    """
    numbers = np.unique(np.concatenate([derived.steps["step"] for derived in recorded]))

    def moved(table: Table) -> Table:
        at = np.searchsorted(numbers, table["step"])
        step = np.where(np.append(numbers, -1)[at] == table["step"], at, -1)
        return Table({**table.columns, "step": step}, table.dictionaries)

    result = []
    for rows in recorded:
        tables: dict[str, Any] = {name: moved(getattr(rows, name)) for name in ("steps", "collectives", "ranges")}
        result.append(replace(rows, **tables))
    return result, numbers


def _span(derived: Derived) -> tuple[int, int] | None:
    """Return first start and last end of all rows; None if there are none."""
    tables = [t for t in (derived.kernels, derived.copies, derived.ranges, derived.steps) if t.rows]
    samples = derived.samples["time_ns"]
    starts = [int(t["start_ns"].min()) for t in tables] + ([int(samples.min())] if len(samples) else [])
    last = [int(end_ns(t).max()) for t in tables] + ([int(samples.max())] if len(samples) else [])
    return (min(starts), max(last)) if starts else None


def _steps(sources: list[Derived]) -> int:
    """Return by how much step numbers grow in each repetition."""
    numbers = [source.steps["step"] for source in sources if source.steps.rows]
    return int(max(n.max() for n in numbers) - min(n.min() for n in numbers) + 1) if numbers else 0
