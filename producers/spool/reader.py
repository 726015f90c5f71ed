"""The spool's reading end, in the node agent: segments, and the frames in them.

A segment is taken (renamed, spool_folder.py) before it is read and deleted when Kafka has all of it. It is complete
when a later one is there or its writer is gone; until then its end may still grow.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from drumline.producers.spool.frames import HEADER, MAX_BODY, SEGMENT_MAGIC, Damage, Frame, scan
from drumline.producers.spool.layout import BadSpool

#: What is read at once; bytes.
CHUNK = 1 << 20


def open_file(path: Path, access: int = os.O_RDONLY) -> int:
    """A descriptor. Anybody may write into a spool, so nothing but a plain file is opened: the agent may see more than
    who wrote. Raises OSError, BadSpool."""
    descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadSpool(f"{path.parent.name}: {path.name} is no plain file")
    return descriptor


class Segment:
    """One taken segment. `offset`: up to where frames were read."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.number = path, int(path.name.partition(".")[0])
        self.offset = max(offset, len(SEGMENT_MAGIC))
        self._checked = False
        self._descriptor = open_file(path)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self._descriptor).st_size

    def read(self, complete: bool, limit: int = CHUNK) -> list[Frame | Damage]:
        """The next frames, about `limit` bytes of them, with `end` as offset in the file; none: all is read for now.

        `complete`: as it was *before* this call.
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
            found = [item._replace(end=base + item.end) for item in scan(data, complete and last)]
            if found or last or limit > HEADER.size + MAX_BODY + (1 << 17):
                break
            limit *= 4  # a frame larger than the chunk
        if found:
            self.offset = found[-1].end
        return found

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def delete(self) -> None:
        """All of it is in Kafka."""
        self.close()
        self.path.unlink(missing_ok=True)
