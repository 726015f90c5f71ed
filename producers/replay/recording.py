"""A recorded job as the batches that a live one would have published, in order of time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.batches.process_record import process_batch
from drumline.producers.batches.recorded import LoopOffset, feeds
from drumline.producers.derive.nvtx import ranges
from drumline.producers.derive.rows import Derived, derive
from drumline.producers.derive.steps.steps import STEP_PATTERN, numbering_ends
from drumline.producers.identity import Identity, process_id
from drumline.producers.replay.parquet import BadTrace
from drumline.producers.replay.rank_scaling import Part, parts
from drumline.producers.replay.trace import Trace, read_trace
from drumline.schemas.batch import Batch
from drumline.schemas.keys import record_key
from drumline.schemas.topics import TOPICS, Topic

RAW_TOPICS = tuple(spec.topic for spec in TOPICS if not spec.derived)
#: Between the last event of one repetition and the first of the next; ns.
LOOP_GAP_NS = 1_000_000


@dataclass(frozen=True)
class Outgoing:
    """A batch on its way: event time at which it was closed, key, and the batch (its `topic` says where to)."""

    time_ns: int
    key: str
    batch: Batch


class Recording:
    """A trace folder, read and derived once; `batches()` can be walked any number of times.

    `first_ns`, `last_ns`: recorded time of the first event and of the end of the last repetition. `rows`: what all
    repetitions together hold, per topic. Raises BadTrace, BadRanks.
    """

    def __init__(
        self,
        folder: Path,
        *,
        job: str | None = None,
        ranks: int | None = None,
        loop: int = 1,
        topics: Collection[Topic] | None = None,
        manifest: Mapping[str, Any] | None = None,
        pattern: str = STEP_PATTERN,
    ) -> None:
        self.topics = tuple(t for t in RAW_TOPICS if topics is None or t in topics)
        self.job = job or folder.resolve().name
        self.loop = loop
        trace = read_trace(folder, manifest, self.topics)
        self.manifest = trace.manifest
        self.unknown_samples = trace.unknown_samples
        since = measured_from(trace, pattern)
        recorded = [derive(each, pattern, at) for each, at in zip(trace.activities, since, strict=True)]
        self.parts, sources = parts(
            trace.ranks, recorded, ranks or len(trace.ranks), trace.manifest.get("phases") or ()
        )
        spans = [_span(source) for source in sources]
        if all(span is None for span in spans):
            raise BadTrace(f"{folder}: no events")
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
        self.counts = [sources[part.source].counts for part in self.parts]
        self.rows: dict[Topic, int] = dict.fromkeys(self.topics, 0)
        self.total_batches = 0
        for part in self.parts:
            for feed in self._feeds[part.source]:
                self.rows[feed.topic] += feed.rows * loop
                self.total_batches += len(feed.plan) * loop
        if Topic.PROCESS in self.topics:
            self.rows[Topic.PROCESS] = len(self.parts)
            self.total_batches += len(self.parts)

    def identity(self, part: Part, run: str, shift_ns: int) -> Identity:
        """Who a part is in this run."""
        info, start = part.info, self._started[part.source] + shift_ns
        versions = {name: str(self.manifest[name]) for name in ("torch", "nccl", "cupti") if self.manifest.get(name)}
        return Identity(
            job=self.job,
            run=run,
            rank=info.rank,
            local_rank=part.local_rank,
            world_size=len(self.parts),
            host=info.host,
            gpu_uuid=info.gpu_uuid,
            process_id=process_id(run, info.host, info.pid, start),
            pid=info.pid,
            start_ns=start,
            gpu_index=info.gpu_index,
            gpu_model=str(self.manifest.get("gpu") or ""),
            source="replay",
            labels={"model": str(self.manifest["model"])} if self.manifest.get("model") else {},
            versions=versions,
        )

    def batches(self, run: str, shift_ns: int = 0) -> Iterator[Outgoing]:
        """All batches of all ranks by event time, the processes' own first; recorded time plus `shift_ns`."""
        who = [self.identity(part, run, shift_ns) for part in self.parts]
        if Topic.PROCESS in self.topics:
            for identity in who:
                yield Outgoing(self.first_ns + shift_ns, identity.process_id, process_batch(identity))
        order = [
            (source, f, i)
            for source in sorted({part.source for part in self.parts})
            for f, feed in enumerate(self._feeds[source])
            for i in range(len(feed.plan))
        ]
        times = np.array([int(self._feeds[s][f].plan.time_ns[i]) for s, f, i in order], dtype=np.int64)
        players: dict[int, list[int]] = {}
        for number, part in enumerate(self.parts):
            players.setdefault(part.source, []).append(number)
        for repetition in range(self.loop):
            offset = LoopOffset(repetition, shift_ns + repetition * self.period_ns, repetition * self._steps_per_loop)
            for at in np.argsort(times, kind="stable").tolist():
                source, f, i = order[at]
                feed = self._feeds[source][f]
                for number in players[source]:
                    name = ""
                    if feed.communicator is not None:
                        name = self.parts[number].communicators[feed.communicator]
                    batch = feed.batch(i, who[number], offset, name)
                    yield Outgoing(int(times[at]) + offset.time_ns, record_key(batch), batch)


def recorded_batches(
    folder: Path,
    *,
    job: str | None = None,
    run: str | None = None,
    ranks: int | None = None,
    loop: int = 1,
    shift_ns: int = 0,
    topics: Collection[Topic] | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> Iterator[Outgoing]:
    """All batches of a trace folder in order of event time, as a live job would publish them.

    `job` defaults to the folder's name, `run` to "recorded". `manifest`: an already loaded one; by default it is read
    without phases, so that nothing downstream can know what was injected. Raises BadTrace, BadRanks.
    """
    recording = Recording(folder, job=job, ranks=ranks, loop=loop, topics=topics, manifest=manifest)
    return recording.batches(run or "recorded", shift_ns)


def measured_from(trace: Trace, pattern: str = STEP_PATTERN) -> list[int]:
    """For each rank, when the numbering of steps ended that came before the first counted step, in ns; 0 = none did.

    The manifest knows that step's start by rank 0's clock. Other ranks may have clocks of their own, so they leave out
    as many numberings (warm-ups) as rank 0 does. Raises BadTrace.
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


def _span(derived: Derived) -> tuple[int, int] | None:
    """First start and last end of anything; None if nothing happened."""
    tables = [t for t in (derived.kernels, derived.copies, derived.ranges, derived.steps) if t.rows]
    samples = derived.samples["time_ns"]
    starts = [int(t["start_ns"].min()) for t in tables] + ([int(samples.min())] if len(samples) else [])
    last = [int(end_ns(t).max()) for t in tables] + ([int(samples.max())] if len(samples) else [])
    return (min(starts), max(last)) if starts else None


def _steps(sources: list[Derived]) -> int:
    """How far step numbers move on in each repetition."""
    numbers = [source.steps["step"] for source in sources if source.steps.rows]
    return int(max(n.max() for n in numbers) - min(n.min() for n in numbers) + 1) if numbers else 0
