"""Reads the segments of a spool and their frames; used by the node agent.

A segment is taken (renamed, directory.py) before it is read, and deleted when Kafka has all of it. It is complete when
a later one exists or its writer has exited; until then it may grow.
"""

from __future__ import annotations

import os

from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.segment_format import HEADER, MAX_BODY, SEGMENT_MAGIC, Damage, Frame, scan

#: Bytes read at once.
CHUNK = 1 << 20


class Segment:
    """Reads one taken segment. `offset`: end of the frames read. Raises OSError, BadSpool."""

    def __init__(self, folder: SpoolDirectory, name: str, offset: int = 0) -> None:
        self.folder, self.name, self.number = folder, name, int(name.partition(".")[0])
        self.offset = max(offset, len(SEGMENT_MAGIC))
        self._checked = False
        self._descriptor = folder.open_file(name)

    @property
    def size(self) -> int:
        """Bytes written so far; grows until the segment is complete."""
        return os.fstat(self._descriptor).st_size

    @property
    def inode(self) -> int:
        """Inode of the file, while it is open."""
        return os.fstat(self._descriptor).st_ino

    def read(self, complete: bool, limit: int = CHUNK) -> list[Frame | Damage]:
        """Return the next frames, about `limit` bytes, with `end` as offset in the file; [] if all is read for now.

        `complete`: whether the segment was complete *before* this call.
        """
        if not self._checked:
            magic = os.pread(self._descriptor, len(SEGMENT_MAGIC), 0)
            if len(magic) < len(SEGMENT_MAGIC) and not complete:
                return []
            self._checked = True
            if magic != SEGMENT_MAGIC:
                self.offset = self.size
                return [Damage(self.size, self.size)] if self.size else []
        base = self.offset
        while True:
            data = os.pread(self._descriptor, limit, base)
            last = base + len(data) >= self.size
            frames = [item._replace(end=base + item.end) for item in scan(data, complete and last)]
            if frames or last or limit > HEADER.size + MAX_BODY + (1 << 17):
                break
            limit *= 4  # a frame larger than the chunk
        if frames:
            self.offset = frames[-1].end
        return frames

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def delete(self) -> None:
        """Delete the segment; all of it is in Kafka."""
        self.close()
        self.folder.unlink(self.name)
