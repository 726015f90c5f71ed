"""What a dead process left gives way: its oldest segments are replaced by what they held, as it would have done itself.

So nothing is hidden: an agent that comes later tells what was lost, in the dead process's own sequences.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.frames import DATA, SEGMENT_MAGIC, Damage, Loss, add_losses, lost, scan
from drumline.producers.spool.layout import OPEN, RESERVE_BYTES, RESERVED, BadSpool, own_schemas, segment_name
from drumline.producers.spool.reader import open_file
from drumline.producers.spool.segments import SegmentFile, WrittenSegments


def evict_oldest_segments(path: Path, wanted: int) -> int:
    """Throw away in the folder of a dead process until about `wanted` bytes are free; how many that were. 0: it has
    nothing to give, somebody else is at work there, or it is not ours to judge. Never raises."""
    folder = SpoolDirectory(path)
    try:
        with folder.alone() as alone:
            if not alone or folder.identity().schemas != own_schemas():  # another release's: envelopes may differ
                return 0
            before = folder.takes()
            (path / RESERVED).unlink(missing_ok=True)
            disk = os.statvfs(path)
            if disk.f_blocks and disk.f_bavail * disk.f_frsize < RESERVE_BYTES:
                return 0  # no room to write down what is lost
            folder.recover()
            written = WrittenSegments(path)
            for number in folder.files()[OPEN]:
                with suppress(FileNotFoundError):  # the agent was faster
                    written.append(_read(path, number))
                    written.throw_away_oldest()
                if before - folder.takes() >= wanted:
                    break
            return max(0, before - folder.takes())
    except (OSError, BadSpool, IndexError):
        return 0


def _read(path: Path, number: int) -> SegmentFile:
    """A segment that gets no more. Raises OSError, BadSpool, IndexError."""
    with open(open_file(path / segment_name(number)), "rb") as handle:
        data = handle.read()
    segment = SegmentFile(number, len(data))
    for frame in scan(data[len(SEGMENT_MAGIC) :], complete=True):
        if isinstance(frame, Damage):
            continue
        if frame.kind == DATA:
            add_losses(segment.held, lost(frame.topic, frame.key, frame.rows, frame.body))
        else:
            add_losses(segment.held, {(frame.topic, frame.key): Loss(frame.batches, frame.rows, frame.body)})
    return segment
