"""Segments that a spool has written: the oldest ones that nobody took are replaced by what they held."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from drumline.producers.spool.frames import SEGMENT_MAGIC, Losses, add_losses, loss_frames
from drumline.producers.spool.layout import REPLACED, SCRATCH, segment_name


@dataclass(slots=True, eq=False)
class SegmentFile:
    """`held`: its batches, as the losses they would be. `rows`: of its batches, per topic."""

    number: int
    bytes: int = 0
    held: Losses = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)


class WrittenSegments:
    """Those of a folder that get no more, oldest first; everything raises OSError. `thrown`: rows that
    `throw_away_oldest` cost, per topic. `untold`: losses that could not be written down."""

    def __init__(self, folder: Path) -> None:
        self.thrown: Counter[str] = Counter()
        self.untold: Losses = {}
        self._folder = folder
        self._segments: deque[SegmentFile] = deque()
        self._hollow = SegmentFile(-1)

    def __iter__(self) -> Iterator[SegmentFile]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def used(self) -> int:
        """Bytes that they take."""
        return sum(segment.bytes for segment in self._segments)

    def append(self, segment: SegmentFile) -> None:
        self._segments.append(segment)

    def settle(self) -> None:
        """Forget what the agent has deleted."""
        there = {name.partition(".")[0] for name in os.listdir(self._folder)}
        self._segments = deque(s for s in self._segments if segment_name(s.number, "") in there)

    def throw_away_oldest(self) -> bool:
        """Replace the oldest segment that is not taken by what it held. False if there is none.

        Killed anywhere in here the folder holds .old files; the agent brings them back, or deletes them where the
        replacement is there (SpoolDirectory.take)."""
        for segment in [s for s in self._segments if s is not self._hollow]:
            if not self._move(segment):  # taken: the agent's now
                continue
            self.thrown.update(segment.rows)
            olds, losses = [segment], segment.held
            if self._hollow in self._segments and self._move(self._hollow):
                losses = {}
                add_losses(losses, self._hollow.held)
                add_losses(losses, segment.held)
                olds.insert(0, self._hollow)
            self._replace(olds, losses)
            return True
        return False

    def _replace(self, olds: list[SegmentFile], losses: Losses) -> None:
        """Write a segment of losses in the place of the last of `olds`; where even that fails they stay in memory."""
        hollow = SegmentFile(olds[-1].number, held=losses)
        content = SEGMENT_MAGIC + loss_frames(losses)
        try:
            self._put(hollow.number, content)
        except OSError:
            self._unlink(olds)  # that makes room
            try:
                self._put(hollow.number, content)
            except OSError:
                hollow = SegmentFile(-1)
                add_losses(self.untold, losses)
        self._unlink(olds)
        for old in olds:
            self._segments.remove(old)
        self._hollow = hollow
        if hollow.number >= 0:
            hollow.bytes = len(content)
            self._segments.appendleft(hollow)

    def _put(self, number: int, content: bytes) -> None:
        scratch = self._folder / segment_name(number, SCRATCH)
        try:
            scratch.write_bytes(content)
            scratch.replace(self._folder / segment_name(number))
        except OSError:
            scratch.unlink(missing_ok=True)
            raise

    def _unlink(self, segments: list[SegmentFile]) -> None:
        for segment in segments:
            (self._folder / segment_name(segment.number, REPLACED)).unlink(missing_ok=True)

    def _move(self, segment: SegmentFile) -> bool:
        """Make it the writer's; False where it is the agent's."""
        path = self._folder / segment_name(segment.number)
        try:
            path.rename(path.with_suffix(REPLACED))
        except FileNotFoundError:
            return False
        return True
