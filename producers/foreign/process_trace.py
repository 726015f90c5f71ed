"""Forms in which readers of traces give one process: its activity, and what is known about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from drumline.producers.activity.activity import Activity
from drumline.producers.foreign.recognise import Format
from drumline.producers.replay.parquet import BadTrace

#: The rank in the name of a file: rank-3.json, trace_rank_3.json, worker3_step_12.json.
_RANK = re.compile(r"(?:^|[^a-z])(?:rank|worker)[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
#: A trace knows no more ranks than this.
MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class ProcessTrace:
    """Holds the activity of one process.

    NCCL operations are markers in NCCL's NVTX domain with payloads, one pair a kernel, as CUPTI records them: that is
    what derivation reads. Readers of formats without them write them (`collective_calls`).

    Attributes:
        path: file that it was in.
        rank: -1 = the file does not state it.
        world_size: 0 = unknown.
        host: "" = unknown.
        pid: 0 = unknown.
        gpu_index: -1 = unknown.
        gpu_model: "" = unknown.
        shares_file: the file has other processes too, so that its name is of none of them.
        is_light: the file has NCCL operations and no other kernel.
        versions: torch, nccl, cupti, where known.
        left_out: reason -> number of records that were left out.
        notes: sentences on what was assumed.
    """

    path: Path
    format: Format
    rank: int
    activity: Activity
    world_size: int = 0
    host: str = ""
    pid: int = 0
    gpu_index: int = -1
    gpu_uuid: str = ""
    gpu_model: str = ""
    shares_file: bool = False
    is_light: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def ranked(traces: Iterable[ProcessTrace]) -> Iterator[ProcessTrace]:
    """Yield traces that all have a rank: the stated one, else that in the file's name, else the place among the files.

    Raises BadTrace where two have the same one, or a rank is impossible.
    """
    path_of = dict[int, Path]()
    for position, trace in enumerate(traces):
        ranked_trace = trace if trace.rank >= 0 else _named(trace, position)
        rank = ranked_trace.rank
        if rank >= MOST_RANKS or 0 < trace.world_size <= rank:
            raise BadTrace(f"{trace.path}: rank {rank} of {trace.world_size or 'an unknown number of'} ranks cannot be")
        if rank in path_of:
            raise BadTrace(f"{trace.path}: rank {rank} a second time, {path_of[rank]} has it too; give one file a rank")
        path_of[rank] = trace.path
        yield ranked_trace


def _named(trace: ProcessTrace, position: int) -> ProcessTrace:
    match = None if trace.shares_file else _RANK.search(trace.path.name)
    if match:
        return replace(trace, rank=int(match[1]), notes=(*trace.notes, "the rank is from the file's name"))
    note = f"the file does not state its rank; taken for rank {position} by the order of the files"
    return replace(trace, rank=position, notes=(*trace.notes, note))
