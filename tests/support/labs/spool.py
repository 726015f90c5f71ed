"""Frames to write to a spool, and a follower that reads them."""

from functools import cache

from support.labs.sink import any_batch

from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.segment_format import (
    Damage,
    Frame,
)
from drumline.schemas.batch import encode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

PROCESS = {"process_id": "p0", "job": "job", "pid": 1}


KERNEL = str(Topic.KERNEL)


@cache
def body(sequence: int, rows: int = 10, dropped: int = 0) -> bytes:
    batch = any_batch(Topic.KERNEL, rows, "p0", sequence)
    batch.envelope["dropped_before"] = dropped
    return encode(model(Topic.KERNEL), batch)


class Follower:
    """Reads a folder as the agent does, and deletes complete segments."""

    def __init__(self, folder: SpoolDirectory) -> None:
        self.folder, self.segment = folder, None
        self.frames: list[Frame | Damage] = []

    def read(self) -> list[Frame | Damage]:
        while True:
            if self.segment is None:
                name = self.folder.take(writer_exited=self.folder.writer_exited())
                if name is None:
                    return self.frames
                self.segment = Segment(self.folder, name)
            complete = self.folder.writer_exited() or self.folder.has_later_segment(self.segment.number)
            while new := self.segment.read(complete):
                self.frames += new
            if not complete:
                return self.frames
            self.segment.delete()
            self.segment = None

    def sum(self, kind: int) -> int:
        return sum(frame.rows for frame in self.frames if isinstance(frame, Frame) and frame.kind == kind)
