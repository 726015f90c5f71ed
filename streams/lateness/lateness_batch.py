"""Conversion of compared steps into gpu.lateness.v1 batches, none larger than what Kafka takes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch, dictionary
from drumline.schemas.keys import derived_process_id
from drumline.schemas.topics import Topic
from drumline.streams.core.records import Rows, run_key
from drumline.streams.lateness.collective_rows import LATENESS_ROW, OPERATIONS, SLICE_RANKS, slice_of
from drumline.streams.lateness.gap_changes import HiddenPart
from drumline.streams.lateness.state import CommunicatorState

#: Most rows of a record: 0.6 MB with the names of hosts and GPUs, Kafka takes 1 MB. A step of more ranks is cut into
#: slices (`slice_of`), each with the rows of the ranks in its `rank_list`.
MAX_ROWS = SLICE_RANKS


def slices(ranks: list[int]) -> list[list[int]]:
    """Return the ranks of each record of a step, both rising."""
    if len(ranks) <= MAX_ROWS:
        return [ranks]
    return [list(inside) for _, inside in groupby(ranks, slice_of)]


def step_lists(kinds: Rows, hidden: Mapping[int, HiddenPart]) -> dict[str, list[int]]:
    """Return the lists of a batch that are about its steps, not about ranks."""
    return {
        "kind_steps": kinds["step"].tolist(),
        "kind_operations": kinds["operation"].tolist(),
        "kind_bytes": kinds["bytes"].tolist(),
        "kind_counts": kinds["collectives"].tolist(),
        "kind_floors_ns": kinds["floor_ns"].tolist(),
        "hidden_steps": list(hidden),
        "hidden_parts_ns": [part.hidden_ns for part in hidden.values()],
        "hidden_changes_ns": [part.changed_ns for part in hidden.values()],
        "hidden_spreads_ns": [part.spread_ns for part in hidden.values()],
    }


def lateness_batch(
    state: CommunicatorState, ranks: list[int], rows: Rows, lists: Mapping[str, list[int]], now_ns: int
) -> Batch:
    """Return the batch of some ranks, in the state's next sequence number. `ranks`: rising; `rows`: of them only."""
    hosts, host_of = dictionary(state.members[rank].host for rank in ranks)
    gpus, gpu_of = dictionary(state.members[rank].gpu_uuid for rank in ranks)
    (lead, process), started_ns = state.attempt.lead(ranks), state.attempt.started_ns()
    source = (state.communicator, run_key(state.job, state.run, started_ns))
    envelope: dict[str, Any] = {
        "job": state.job,
        "run": state.run,
        "world_size": state.world_size,
        "process_id": derived_process_id(Topic.LATENESS, *source),
        "sequence": state.sequence,
        "rows": len(rows),
        "sent_ns": now_ns,
        "attempt_start_ns": started_ns,
        "lead_rank": lead,
        "lead_process": process.process_id,
        "lead_start_ns": process.start_ns,
        "communicator": state.communicator,
        "complete_step": state.emitted,
        "ranks": len(state.members),
        "rank_list": ranks,
        "hosts": hosts,
        "gpu_uuids": gpus,
        "operations": list(OPERATIONS),
        **lists,
        "point_to_point": max(state.patterns, key=lambda name: state.patterns[name], default=""),
    }
    columns = {name: np.ascontiguousarray(rows[name]) for name in LATENESS_ROW.names or ()}
    member = np.searchsorted(ranks, rows["rank"])
    columns["host"] = np.array(host_of, "<u4")[member]
    columns["gpu_uuid"] = np.array(gpu_of, "<u4")[member]
    return Batch(Topic.LATENESS, envelope, columns)
