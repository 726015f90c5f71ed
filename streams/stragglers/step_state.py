"""Steps of the ranks of one run, in a store of bytes: a value for each block of steps and slice of ranks.

Keys: s|block|slice|run_key, the rows of gpu.step.v1 of RANKS_OF_VALUE ranks in one block, and what they last
reported. A batch rewrites only the values that its rows fall in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from drumline.schemas.record_table import Ints
from drumline.streams.core.input_counts import InputCounts
from drumline.streams.core.records import Rows, StateRecord, as_json, pack_text, stacked, unpack_rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.lateness_state import Index
from drumline.streams.stragglers.slices import RANKS_OF_VALUE, cut
from drumline.streams.stragglers.step_rows import STEP_ROW, latest_steps, rows_between

#: Rank -> begin and end of its steps, ns of its host.
Spans = dict[int, tuple[int, int]]
_RANK = np.dtype([("rank", "<i4")])
_NO_STEPS = (np.zeros(0, STEP_ROW), np.zeros(0, np.int64))
#: Characters whose JSON is kept between records.
_SHORT = 256


class RankReport(NamedTuple):
    """Holds what a rank last reported in a block, as heads keep it. `steps_from`: see `Source`."""

    complete: int
    world_size: int
    host: str
    gpu_uuid: str
    steps_from: str


@dataclass(slots=True)
class Cells:
    """Indexes the stored rows of a block of steps.

    `reports`: slice of ranks -> rank -> its report. `begin_ns`: slice -> start of its earliest step; ns of its host.
    `last_step`: the latest of its ranks' steps, -1 = none. `lateness`: see `LatenessState`.
    """

    reports: dict[int, dict[int, RankReport]] = field(default_factory=dict)
    begin_ns: dict[int, int] = field(default_factory=dict)
    last_step: int = -1
    lateness: Index = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        """Return the ranks with steps."""
        return [rank for reports in self.reports.values() for rank in reports]

    def note_rows(self, part: int, rows: Rows) -> None:
        """Count rows of steps of a slice of ranks in its begin, and in the last step."""
        begin = int(rows["start_ns"].min())
        self.begin_ns[part] = min(begin, self.begin_ns.get(part, begin))
        self.last_step = max(self.last_step, int(rows["step"].max()))


class AppliedParts(NamedTuple):
    """Holds parts of gpu.step.v1: their rows, the part of each row, and rank, complete step and offset of each part."""

    rows: Rows
    part_of: Ints
    ranks: Ints
    completes: Ints
    offsets: Ints


class StepState:
    """Keeps the values of one run. Used by `JobState`, which has the index of windows. `counts`: of the stage."""

    __slots__ = ("_config", "_counts", "_run_key", "_spans", "_store")

    def __init__(
        self, store: MutableMapping[str, bytes], run_key: str, config: StragglerConfig, counts: InputCounts
    ) -> None:
        self._store, self._run_key, self._config, self._counts = store, run_key, config, counts
        self._spans: dict[tuple[int, int], tuple[int, dict[int, Spans]]] = {}  # with the value's offset, by first step

    def _key(self, block: int, part: int) -> str:
        return f"s|{block}|{part}|{self._run_key}"

    def rank_rows(self, block: int, rank: int) -> Rows:
        """Return the STEP_ROW rows of a rank in a block, by step."""
        data = self._store.get(self._key(block, rank // RANKS_OF_VALUE))
        rows = np.zeros(0, STEP_ROW) if data is None else unpack_rows(data, STEP_ROW).rows
        return latest_steps(rows[rows["rank"] == rank])

    def values(self, block: int, parts: Iterable[int]) -> list[bytes]:
        """Return the values of slices of ranks in a block."""
        names = (self._key(block, part) for part in parts)
        return [value for value in map(self._store.get, names) if value is not None]

    def apply(
        self, of: AppliedParts, kept: Mapping[int, RankReport], blocks: dict[int, Cells], horizon: int
    ) -> list[int]:
        """Add rows of steps, and what ranks report. `kept`: the report of each rank. Blocks before `horizon` stay.

        A part that a value has already does not count again in it. Returns the steps with new rows.
        """
        block_steps = self._config.window_steps
        block_of = of.rows["step"] // block_steps
        self._counts.too_old += int((block_of < horizon).sum())
        rows_at = {place: (inside, of_rows) for place, inside, of_rows in cut(of.rows, block_of, of.part_of)}
        completing = np.flatnonzero(of.completes >= 0)  # a part tells of this block too, perhaps without a row
        reporting = np.concatenate([of.part_of, completing])
        reports = np.zeros(len(reporting), _RANK)
        reports["rank"] = of.ranks[reporting]
        reported_in = np.concatenate([block_of, of.completes[completing] // block_steps])
        repeated, changed = set[int](), list[Ints]()
        for place, of_ranks, new in cut(reports, reported_in, reporting):
            if place[0] < horizon:
                continue
            data = self._store.get(self._key(*place))
            old = None if data is None else unpack_rows(data, STEP_ROW)
            inside, of_rows = rows_at.get(place, _NO_STEPS)
            fresh = of.offsets[new]
            if old is not None and fresh.min() <= old.offset:
                is_new = fresh > old.offset
                repeated.update(new[~is_new].tolist())
                of_ranks, fresh = of_ranks[is_new], fresh[is_new]
                inside = inside[of.offsets[of_rows] > old.offset]
            if len(fresh):
                cells = blocks.setdefault(place[0], Cells())
                known = cells.reports.setdefault(place[1], {})
                known.update({rank: kept[rank] for rank in dict.fromkeys(of_ranks["rank"].tolist())})
                self._write(place, known, old, inside, int(fresh.max()))
                if len(inside):
                    changed.append(inside["step"])
                    cells.note_rows(place[1], inside)
        self._counts.duplicates += len(repeated)
        steps: list[int] = np.unique(np.concatenate(changed)).tolist() if changed else []
        return steps

    def _write(
        self,
        place: tuple[int, int],
        reports: Mapping[int, RankReport],
        old: StateRecord | None,
        new: Rows,
        offset: int,
    ) -> None:
        parts = [new] if old is None else [old.rows, new]
        if old is not None and len(old.rows) + len(new) > RANKS_OF_VALUE * self._config.window_steps:
            parts = [latest_steps(stacked(parts))]
        self._store[self._key(*place)] = pack_text(offset, self._head(reports), *parts)

    def _head(self, reports: Mapping[int, RankReport]) -> bytes:
        """Return the head of a value: JSON, of which each rank writes the same names each time."""
        of_ranks = [
            f'"{rank}":[{of.complete},{of.world_size},{_as_items(of.host, of.gpu_uuid, of.steps_from)}]'
            for rank, of in reports.items()
        ]
        return b'{"window_steps":%d,"ranks":{%b}}' % (self._config.window_steps, ",".join(of_ranks).encode())

    def span(self, block: int, rank: int, first_step: int, last_step: int) -> tuple[int, int]:
        """Return begin and end of a rank's steps of a block between two, (0, 0) without steps; ns of its host."""
        part = rank // RANKS_OF_VALUE
        data = self._store.get(self._key(block, part))
        if data is None:
            return 0, 0
        record = unpack_rows(data, STEP_ROW)
        offset, spans = self._spans.get((block, part), (None, {}))
        if offset != record.offset:
            spans = {}
            self._spans[block, part] = record.offset, spans
        if first_step not in spans:
            rows = latest_steps(rows_between(record.rows, first_step, last_step))
            ranks, first = np.unique(rows["rank"], return_index=True)
            begin = np.minimum.reduceat(rows["start_ns"], first) if len(first) else first
            end = np.maximum.reduceat(rows["start_ns"] + rows["duration_ns"], first) if len(first) else first
            of_ranks = zip(begin.tolist(), end.tolist(), strict=True)
            spans[first_step] = dict(zip(ranks.tolist(), of_ranks, strict=True))
        return spans[first_step].get(rank, (0, 0))

    def drop(self, block: int, parts: Iterable[int]) -> None:
        """Delete the values of a block."""
        for part in parts:
            self._store.pop(self._key(block, part), None)
            self._spans.pop((block, part), None)


@lru_cache(1 << 15)
def _short_items(*texts: str) -> str:
    return as_json(texts)[1:-1].decode()


def _as_items(*texts: str) -> str:
    """Return texts as the items of a JSON array; those of a rank are the same with each record."""
    return _short_items(*texts) if sum(map(len, texts)) <= _SHORT else as_json(texts)[1:-1].decode()
