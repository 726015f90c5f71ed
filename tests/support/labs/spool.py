"""Frames to write to a spool, and a follower that reads them."""

from functools import cache

from support.labs.sink import any_batch

from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.frames import (
    Damage,
    Frame,
)
from drumline.producers.spool.reader import Segment
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
    """Reads a folder as the agent does, deleting what is complete."""

    def __init__(self, folder: SpoolDirectory) -> None:
        self.folder, self.segment = folder, None
        self.found: list[Frame | Damage] = []

    def read(self) -> list[Frame | Damage]:
        while True:
            if self.segment is None:
                path = self.folder.take(gone=self.folder.gone())
                if path is None:
                    return self.found
                self.segment = Segment(path)
            complete = self.folder.gone() or self.folder.followed(self.segment.number)
            while frames := self.segment.read(complete):
                self.found += frames
            if not complete:
                return self.found
            self.segment.delete()
            self.segment = None

    def sum(self, kind: int) -> int:
        return sum(frame.rows for frame in self.found if isinstance(frame, Frame) and frame.kind == kind)
