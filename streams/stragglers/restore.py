"""Restoring the index of the straggler stage from its store, after recovery or a rebalance."""

from __future__ import annotations

from drumline.streams.core.records import unpack_rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.sources import Place, Source
from drumline.streams.stragglers.state import NO_ROWS, Cells, JobState, Store
from drumline.streams.stragglers.step_rows import STEP_ROW


def restore_jobs(store: Store, config: StragglerConfig) -> dict[str, JobState]:
    """Return run -> state. Every window that still has all its rows is evaluated again.

    Raises ValueError if the stored windows have another length: state is kept by window number.
    """
    states: dict[str, JobState] = {}

    def state_of(run: str) -> JobState:
        return states.setdefault(run, JobState(store, run, config))

    for name in list(store):
        kind, rest = name.split("|", 1)
        if kind == "s":
            window, rank, run = rest.split("|", 2)
            _restore_steps(state_of(run), int(window), int(rank), store[name])
        elif kind == "l":
            step, communicator, run = rest.split("|", 2)
            state, at = state_of(run), config.window_of(int(step))
            state.windows.setdefault(at, Cells()).lateness.add((int(step), communicator))
        elif kind == "c":
            communicator, run = rest.split("|", 1)
            state, head = state_of(run), unpack_rows(store[name], NO_ROWS).head
            state.sources.communicators[communicator] = Source(head["complete"])
            state.members[communicator] = tuple(head["ranks"])
            if head["pipeline"]:
                state.pipelines[communicator] = frozenset(head["pipeline"])
            state.job, state.world_size = head["job"], max(state.world_size, head["world_size"])
        elif kind == "d":
            bucket, rank, run = rest.split("|", 2)
            state_of(run).samples.buckets.setdefault(int(rank), set()).add(int(bucket))
        elif kind == "v":
            window, run = rest.split("|", 1)
            state, head = state_of(run), unpack_rows(store[name], NO_ROWS).head
            state.published[int(window)] = head
            state.sequence = max(state.sequence, head["sequence"])
        elif kind == "h":
            head = unpack_rows(store[name], NO_ROWS).head
            _check_window_length(head["window_steps"], config)
            state_of(rest).horizon = int(head["horizon"])
    for state in states.values():
        state.dirty = {window for window, cells in state.windows.items() if cells.ranks and window >= state.horizon}
    return states


def _restore_steps(state: JobState, window: int, rank: int, data: bytes) -> None:
    record = unpack_rows(data, STEP_ROW)
    _check_window_length(record.head["window_steps"], state.config)
    state.windows.setdefault(window, Cells()).ranks.add(rank)
    source = state.sources.ranks.setdefault(rank, Source())
    if record.head["complete"] >= source.complete:
        source.complete = int(record.head["complete"])
        source.place = Place(record.head["host"], record.head["gpu_uuid"])
        source.steps_from = record.head["steps_from"]
    state.job, state.world_size = record.head["job"], max(state.world_size, int(record.head["world_size"]))


def _check_window_length(kept: int, config: StragglerConfig) -> None:
    if kept != config.window_steps:
        raise ValueError(f"windows of {kept} steps were kept, DRUMLINE_STREAM__WINDOW_STEPS is {config.window_steps}")
