"""Segments that a writer has completed; evicting one replaces it by LOSS frames."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.folder_layout import REPLACED, SCRATCH, segment_name
from drumline.producers.spool.segment_format import SEGMENT_MAGIC, Losses, add_losses, loss_frames


@dataclass(slots=True, eq=False)
class SegmentFile:
    """Describes a segment file. `held`: its batches, as the losses they would be. `rows`: by topic."""

    number: int
    bytes: int = 0
    held: Losses = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)


class WrittenSegments:
    """Lists the completed segments of a folder, oldest first. Every method accesses the disk and raises OSError.

    Owned by WriterFiles, or by `evict_oldest_segments`; not thread-safe.

    `evicted`: rows that eviction has cost, by topic. `unreported`: losses that could not be written.
    """

    def __init__(self, folder: SpoolDirectory) -> None:
        self.evicted: Counter[str] = Counter()
        self.unreported: Losses = {}
        self._folder = folder
        self._segments: deque[SegmentFile] = deque()
        self._loss_segment = SegmentFile(-1)

    def __iter__(self) -> Iterator[SegmentFile]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def used(self) -> int:
        """Bytes of all these segments."""
        return sum(segment.bytes for segment in self._segments)

    def append(self, segment: SegmentFile) -> None:
        """Add a segment that is complete now."""
        self._segments.append(segment)

    def refresh(self) -> None:
        """Drop the segments that the agent has deleted."""
        existing = {name.partition(".")[0] for name in self._folder.names()}
        self._segments = deque(s for s in self._segments if segment_name(s.number, "") in existing)

    def evict_oldest(self) -> bool:
        """Replace the oldest segment that is not taken by its losses. Returns False if there is none.

        If it is killed in here the folder holds .old files: the agent restores them, or deletes them where the
        replacement exists (SpoolDirectory.take).
        """
        for segment in [s for s in self._segments if s is not self._loss_segment]:
            if not self._move(segment):  # taken: the agent's now
                continue
            self.evicted.update(segment.rows)
            replaced, losses = [segment], segment.held
            if self._loss_segment in self._segments and self._move(self._loss_segment):
                losses = {}
                add_losses(losses, self._loss_segment.held)
                add_losses(losses, segment.held)
                replaced.insert(0, self._loss_segment)
            self._replace(replaced, losses)
            return True
        return False

    def _replace(self, replaced: list[SegmentFile], losses: Losses) -> None:
        """Write a segment of losses in the place of the last of `replaced`; if that fails they stay in memory."""
        loss_segment = SegmentFile(replaced[-1].number, held=losses)
        content = SEGMENT_MAGIC + loss_frames(losses)
        try:
            self._put(loss_segment.number, content)
        except OSError:
            self._unlink(replaced)  # that frees space
            try:
                self._put(loss_segment.number, content)
            except OSError:
                loss_segment = SegmentFile(-1)
                add_losses(self.unreported, losses)
        self._unlink(replaced)
        for segment in replaced:
            self._segments.remove(segment)
        self._loss_segment = loss_segment
        if loss_segment.number >= 0:
            loss_segment.bytes = len(content)
            self._segments.appendleft(loss_segment)

    def _put(self, number: int, content: bytes) -> None:
        scratch = segment_name(number, SCRATCH)
        try:
            self._folder.write(scratch, content)
            self._folder.rename(scratch, segment_name(number))
        except OSError:
            self._folder.unlink(scratch)
            raise

    def _unlink(self, segments: list[SegmentFile]) -> None:
        self._folder.unlink(*(segment_name(segment.number, REPLACED) for segment in segments))

    def _move(self, segment: SegmentFile) -> bool:
        """Rename a segment to .old. Returns False if the agent has taken it."""
        try:
            self._folder.rename(segment_name(segment.number), segment_name(segment.number, REPLACED))
        except FileNotFoundError:
            return False
        return True
