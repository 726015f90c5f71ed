"""Evicts the oldest segments of exited processes: each is replaced by LOSS frames, as their writer would have done.

So an agent that starts later reports what was lost, in the exited process's own sequence numbers.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.folder_layout import OPEN, RESERVE_BYTES, RESERVED, BadSpool, own_schemas, segment_name
from drumline.producers.spool.segment_format import LOSS, SEGMENT_MAGIC, Damage, Loss, add_losses, lost, scan
from drumline.producers.spool.segments import SegmentFile, WrittenSegments


def evict_oldest_segments(path: Path, wanted: int) -> int:
    """Evict from the folder of an exited process until about `wanted` bytes are free, and return their number.

    0: nothing can be evicted, another process works in the folder, or it is not one of this release. Never raises.
    """
    folder = SpoolDirectory(path)
    try:
        if folder.about().st_uid != os.geteuid():
            return 0
        with folder.exclusive() as is_exclusive:
            # Envelopes of another release may differ.
            if not is_exclusive or folder.identity().schemas != own_schemas():
                return 0
            before = folder.disk_bytes()
            folder.unlink(RESERVED)
            disk = os.statvfs(path)
            if disk.f_blocks and disk.f_bavail * disk.f_frsize < RESERVE_BYTES:
                return 0  # no space to write the losses
            folder.recover()
            written = WrittenSegments(folder)
            for number in folder.files()[OPEN]:
                with suppress(FileNotFoundError):  # the agent was faster
                    written.append(read_segment(folder, number))
                    written.evict_oldest()
                if before - folder.disk_bytes() >= wanted:
                    break
            return max(0, before - folder.disk_bytes())
    except (OSError, BadSpool, IndexError):
        return 0


def read_segment(folder: SpoolDirectory, number: int) -> SegmentFile:
    """Read a complete segment as the losses it would be. Raises OSError, BadSpool, IndexError."""
    with open(folder.open_file(segment_name(number)), "rb") as handle:
        data = handle.read()
    segment = SegmentFile(number, len(data))
    for frame in scan(data[len(SEGMENT_MAGIC) :], complete=True):
        if isinstance(frame, Damage):
            continue
        if frame.kind != LOSS:
            add_losses(segment.held, lost(frame.topic, frame.key, frame.rows, frame.body))
        else:
            add_losses(segment.held, {(frame.topic, frame.key): Loss(frame.batches, frame.rows, frame.body)})
    return segment
