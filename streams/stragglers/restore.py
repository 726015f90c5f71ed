"""Restoring the index of a run from the store, after recovery or a rebalance."""

from __future__ import annotations

from sys import intern

from drumline.streams.core.records import NO_ROWS, UnreadableValue, key_parts, unit_parts, unpack_rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.lateness_rows import KEPT_ROW, WHOLE
from drumline.streams.stragglers.lateness_state import as_parts, as_steps
from drumline.streams.stragglers.sample_state import SAMPLE_KINDS
from drumline.streams.stragglers.sources import Place, Source
from drumline.streams.stragglers.state import JobState
from drumline.streams.stragglers.step_rows import STEP_ROW
from drumline.streams.stragglers.step_state import Cells, RankReport

#: Kind of a key -> number of its parts before the `run_key` (state.py, sample_state.py, links/transfer_state.py).
_RUN_AT = {"s": 3, "l": 3, "c": 2, "d": 3, "p": 3, "n": 3, "v": 2, "h": 1, "i": 1, "w": 1}


def unit_of_key(name: str) -> str | None:
    """Return the run, as `run_key` names it, that a key of the store belongs to; None = none."""
    parts = unit_parts(name, _RUN_AT)
    return None if parts is None else parts[0]


def block_of_key(name: str) -> tuple[str, str, str]:
    """Return what the keys of values have in common that come and go together: kind, window or time, and run."""
    kind, time, _, run = name.split("|", 3)
    return kind, time.partition(".")[0], run


def restore_key(state: JobState, name: str) -> None:
    """Index a stored value of a run.

    Raises UnreadableValue if the stored blocks have another length: state is kept by their numbers.
    """
    kind, *parts = key_parts(name, _RUN_AT[name[0]] + 1)[:-1]
    config, store = state.config, state.store
    if kind == "s":
        _restore_steps(state, int(parts[0]), int(parts[1]), store[name])
    elif kind == "l":
        (first, _, part), communicator = parts[0].partition("."), parts[1]
        index = state.blocks.setdefault(config.block_of(int(first)), Cells()).lateness
        steps = as_steps(map(int, unpack_rows(store[name], KEPT_ROW).head["steps"]))
        place = int(first), communicator
        index[place] = as_parts({**index.get(place, {}), int(part) if part else WHOLE: steps})
    elif kind == "c":
        communicator, head = parts[0], unpack_rows(store[name], NO_ROWS).head
        state.sources.communicators[communicator] = Source(head["complete"])
        state.communicators.members[communicator] = tuple(head["ranks"])
        if head["pipeline"]:
            state.communicators.pipelines[communicator] = frozenset(head["pipeline"])
        state.world_size = max(state.world_size, head["world_size"])
    elif kind in SAMPLE_KINDS:
        state.samples_of(SAMPLE_KINDS[kind]).buckets.setdefault(int(parts[1]), set()).add(int(parts[0]))
    elif kind == "n":
        state.transfers.buckets.setdefault(int(parts[1]), set()).add(int(parts[0]))
    elif kind == "i":
        state.stacks.restore()
    elif kind == "v":
        head = unpack_rows(store[name], NO_ROWS).head
        state.published[int(parts[0])] = head
        state.sequence = max(state.sequence, head["sequence"])
        state.attempt.published_ns = head["attempt"]
    elif kind == "w":
        state.lengths.restore()
    else:
        head = unpack_rows(store[name], NO_ROWS).head
        _check_window_length(head["window_steps"], config)
        state.horizon = int(head["horizon"])


def _restore_steps(state: JobState, block: int, part: int, data: bytes) -> None:
    record = unpack_rows(data, STEP_ROW)
    head = record.head
    _check_window_length(head["window_steps"], state.config)
    reports = {
        int(rank): RankReport(complete, world_size, *map(intern, texts))
        for rank, (complete, world_size, *texts) in head["ranks"].items()
    }
    cells = state.blocks.setdefault(block, Cells())
    cells.reports[part] = reports
    if len(record.rows):
        cells.note_rows(part, record.rows)
        state.lengths.note_steps(record.rows)
    for rank, report in reports.items():
        source = state.sources.ranks.setdefault(rank, Source())
        if report.complete >= source.complete:
            source.complete, source.steps_from = report.complete, report.steps_from
            source.place = Place(report.host, report.gpu_uuid)
        state.world_size = max(state.world_size, report.world_size)


def _check_window_length(kept: int, config: StragglerConfig) -> None:
    if kept != config.window_steps:
        raise UnreadableValue(
            f"windows of {kept} steps were kept, DRUMLINE_STREAM__WINDOW_STEPS is {config.window_steps}"
        )
