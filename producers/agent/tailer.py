"""One process's folder in the spool, on its way into Kafka."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog
from confluent_kafka import KafkaError

from drumline.infra.telemetry import metrics
from drumline.producers.agent.inflight import Entry, Handover, Send
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.frames import Damage
from drumline.producers.spool.layout import BadSpool, ProcessIdentity
from drumline.producers.spool.reader import Segment
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.errors import Unencodable
from drumline.schemas.topics import Topic

log = structlog.get_logger()

#: Segments of one process that may wait for Kafka's answers before another one is taken from its writer.
MOST_TAKEN = 4
#: What becomes of a segment that is in Kafka; raises nothing.
Done = Callable[[Segment, SpoolDirectory], None]


@dataclass(slots=True, eq=False)
class _Taken:
    """`entries`: frames not in Kafka yet, in order. `acked`: up to here everything is. `read`: to its end."""

    segment: Segment
    acked: int
    entries: deque[Entry] = field(default_factory=deque)
    read: bool = False


class Tail:
    """`problem`: why it does not go on by itself, or "". `seen`: who the writer is, as last read; `identity`: the same,
    once the ids of its schemas are known. `gone`: its writer is."""

    def __init__(self, folder: SpoolDirectory, positions: Mapping[int, int], codec: Codec, done: Done) -> None:
        self.folder, self._codec, self._done = folder, codec, done
        self._positions = dict(positions)
        self._taken: deque[_Taken] = deque()
        self._handover = Handover(codec, self._settle)
        self._last_done = -1
        self._introduced, self._asked, self._record = False, False, b""
        self.seen: ProcessIdentity | None = None
        self.identity: ProcessIdentity | None = None
        self.problem = ""
        self.gone = False

    @property
    def positions(self) -> dict[int, int]:
        """For the cursor."""
        return {taken.segment.number: taken.acked for taken in self._taken}

    @property
    def finished(self) -> bool:
        """Its writer is gone and all it left is in Kafka."""
        return self.gone and self._introduced and not self._taken and not any(self.folder.files().values())

    def look(self) -> None:
        """Now and then: does the writer live, who is it. Raises OSError and BadSpool."""
        self.gone = self.folder.gone()
        self.seen = self.folder.identity()

    def introduce(self, send: Send) -> None:
        """Publish who was seen, once for each time it changed. Raises BadSpool, and UnknownSchema or
        RegistryUnavailable while its schemas have no ids."""
        identity = self.seen
        if identity is None:
            return
        if identity != self.identity:
            known = self._codec.registry.id_of_version
            self._handover.ids = {topic: known(topic, version) for topic, version in identity.schemas.items()}
            try:
                self._record = self._codec.encode(Batch(Topic.PROCESS, {**identity.process, "rows": 1}))
            except Unencodable as error:
                raise BadSpool(str(error)) from None
            self.identity, self._introduced = identity, False
            self._asked = False
        if not self._introduced and not self._asked:

            def answer(error: KafkaError | None) -> None:
                if identity == self.identity:
                    self._introduced, self._asked = error is None, False

            self._asked = True
            # An answer may come at once, before `send` returns.
            self._asked = send(Topic.PROCESS, identity.process_id, self._record, answer) and self._asked

    def pump(self, send: Send) -> bool:
        """Hand over what fits, about a chunk; True if something moved. Raises OSError."""
        moved = self._handover.go(send)
        if self._handover.waits or self.identity is None or (taken := self._reading()) is None:
            return moved
        found = taken.segment.read(complete=False)
        if not found:
            complete = self.gone or self.folder.followed(taken.segment.number)
            found = taken.segment.read(complete)
            taken.read = complete and not found
        for item in found:
            if isinstance(item, Damage):
                metrics.AGENT_DAMAGED.inc(item.bytes)
                log.warning("damaged frame left out", folder=self.folder.path.name, bytes=item.bytes)
            else:
                taken.entries.append(self._handover.add(item))
        if not taken.entries:
            taken.acked = taken.segment.offset
            self._settle()
        return self._handover.go(send) or bool(found) or taken.read or moved

    def _reading(self) -> _Taken | None:
        """The taken segment that is not read to its end; takes the next one if all are."""
        if self._taken and not self._taken[-1].read:
            return self._taken[-1]
        if len(self._taken) >= MOST_TAKEN:
            return None
        path = self.folder.take(self._taken[-1].segment.number if self._taken else self._last_done, self.gone)
        if path is None:
            return None
        segment = Segment(path, self._positions.pop(int(path.name.partition(".")[0]), 0))
        self._taken.append(_Taken(segment, segment.offset))
        return self._taken[-1]

    def _settle(self) -> None:
        """Move `acked` on; give away segments that are in Kafka to their last frame."""
        for taken in list(self._taken):
            while taken.entries and taken.entries[0].left <= 0:
                taken.acked = taken.entries.popleft().frame.end
            if taken.read and not taken.entries:
                self._taken.remove(taken)
                self._last_done = taken.segment.number
                self._done(taken.segment, self.folder)

    def close(self) -> None:
        for taken in self._taken:
            taken.segment.close()
