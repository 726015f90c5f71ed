"""A recorded job of any format in memory, as the batches that the straggler code reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from drumline.producers.derive.steps.steps import STEP_PATTERN
from drumline.producers.foreign.read_traces import Progress, read_traces, trace_of
from drumline.producers.foreign.recognise import Format
from drumline.producers.replay.operation_table.job import OperationJob
from drumline.producers.replay.operation_table.table_reader import find_table
from drumline.producers.replay.parquet import BadTrace
from drumline.producers.replay.published import is_published, read_published
from drumline.producers.replay.recording import RecordedJob
from drumline.producers.replay.trace import Trace, read_trace
from drumline.schemas.batch import Batch
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.views.verdict.other_communication import OtherCommunication, other_communication

#: Topics that verdicts are made of.
TOPICS = frozenset({Topic.COLLECTIVE, Topic.STEP, Topic.PROCESS, Topic.DEVICE})


@dataclass(frozen=True)
class OfflineJob:
    """Holds a job that was read from files.

    Attributes:
        name: of the files' folder.
        form: format of the files.
        batches: (time in ns, batch), in order of time.
        recorded_steps: number of each step in the recorded job, by its number in the batches; empty = the same.
        described: rank -> text, "rank 3 on node-a".
        notes: sentences on what was assumed or left out.
        read: counts of what was read, for programs.
        unit: "collective" where steps are not marked and all collectives are alike, so that each counts as one.
        other_communication: of each rank that has some, which verdicts do not understand.
    """

    name: str
    form: Format
    batches: Sequence[tuple[int, Batch]]
    recorded_steps: Array
    described: Callable[[int], str]
    notes: Sequence[str] = ()
    read: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "step"
    other_communication: Mapping[int, OtherCommunication] = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        """Return the ranks that have steps, rising."""
        return sorted({int(batch.envelope["rank"]) for _, batch in self.batches if batch.topic == Topic.STEP})

    @property
    def world_size(self) -> int:
        """Return the ranks of the job, of which some may have no file."""
        return max((int(batch.envelope["world_size"]) for _, batch in self.batches), default=0)

    def rows(self, topic: Topic, rank: int) -> Mapping[str, Array]:
        """Return the columns of a rank's rows of one topic; {} without rows."""
        parts = [b.columns for _, b in self.batches if b.topic == topic and int(b.envelope["rank"]) == rank]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}

    def recorded_step(self, step: int) -> int:
        """Return the number that a step had in the recorded job."""
        return int(self.recorded_steps[step]) if 0 <= step < len(self.recorded_steps) else step


def read_job(
    files: Sequence[Path],
    form: Format,
    name: str,
    left_out: Sequence[str] = (),
    progress: Progress = lambda size: None,
) -> OfflineJob:
    """Read files of one format (trace_files(), one_format()). `name`: of the job. Raises BadTrace with file and place.

    `left_out`: notes on files that were not read.
    """
    if form is Format.OPERATION_TABLE:
        return _of_table(_single(files, form), left_out)
    if form is Format.RECORDING:
        return _of_recording(_single(files, form))
    trace, summary = trace_of(read_traces(files, form, progress), name)
    job = RecordedJob(trace, topics=TOPICS, renumbered=True)
    dropped = [f"{count:,} records were left out: {reason}" for reason, count in summary.left_out.items()]
    files_of = [f"{note} ({count} file{'s' if count > 1 else ''})" for note, count in summary.notes.items()]
    missing = [f"{text}: who is absent cannot be named"] if (text := summary.missing()) else []
    notes = [*left_out, *missing, *files_of, *dropped, *_unmatched(job)]
    return _of(trace, job, form, notes, summary.as_json())


def _of(trace: Trace, job: RecordedJob, form: Format, notes: Sequence[str], read: Mapping[str, Any]) -> OfflineJob:
    hosts = {replayed.info.rank: replayed.info.host for replayed in job.rank_sources}
    batches = [(out.time_ns, out.batch) for out in job.batches()]

    def described(rank: int) -> str:
        return f"rank {rank} on {hosts[rank]}" if hosts.get(rank) else f"rank {rank}"

    result = OfflineJob(job.job, form, batches, job.recorded_steps, described, notes, read)
    other = other_communication(trace, {rank: result.rows(Topic.STEP, rank) for rank in result.ranks})
    return replace(result, other_communication=other, unit=_unit(trace, result))


def _unit(trace: Trace, job: OfflineJob) -> str:
    """Return what is counted as a step."""
    names = (name for activity in trace.activities for name in activity.markers.dictionaries.get("names", ()))
    if any(re.search(STEP_PATTERN, name) for name in names):
        return "step"
    collectives = [job.rows(Topic.STEP, rank)["collectives"] for rank in job.ranks]
    return "collective" if collectives and all((count == 1).all() for count in collectives) else "step"


def _of_recording(folder: Path) -> OfflineJob:
    if is_published(folder):
        batches = list(read_published(folder))
        none = np.empty(0, np.int64)
        return OfflineJob(folder.resolve().name, Format.RECORDING, batches, none, lambda rank: f"rank {rank}")
    trace = read_trace(folder, topics=TOPICS)
    job = RecordedJob(trace, job=folder.resolve().name, topics=TOPICS, renumbered=True)
    return _of(trace, job, Format.RECORDING, _unmatched(job), {"formats": [str(Format.RECORDING)]})


def _of_table(path: Path, notes: Sequence[str]) -> OfflineJob:
    table = find_table(path)
    assert table is not None  # recognise() has seen one
    job = OperationJob(table)
    unrecorded = [
        f"{job.described(rank)}: waits that were not recorded are {share:.1%} of its time"
        for rank, share in job.unrecorded_shares(StragglerConfig().suspect).items()
    ]
    read = {"formats": [str(Format.OPERATION_TABLE)], "recorded_ranks": list(job.layout.recorded_ranks)}
    steps = np.array(job.recorded_steps, np.int64)
    batches = list(job.batches())
    return OfflineJob(job.job, Format.OPERATION_TABLE, batches, steps, job.described, [*notes, *unrecorded], read)


def _single(files: Sequence[Path], form: Format) -> Path:
    if len(files) > 1:
        raise BadTrace(f"{files[1]}: a second {form.replace('_', ' ')}; each is a job, give one")
    return files[0]


def _unmatched(job: RecordedJob) -> list[str]:
    """Return a sentence on collectives that could not be matched with their calls; [] without any."""
    count = sum(counts.unattributed_collectives for counts in job.counts)
    return [f"{count:,} collectives were left out: their calls could not be identified"] if count else []


def job_name(path: Path) -> str:
    """Return the name of a job by the first path that was given: that of the folder."""
    return (path if path.is_dir() else path.resolve().parent).resolve().name or "traces"
