"""One process's folder in the spool, on its way into Kafka."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog
from confluent_kafka import KafkaError

from drumline.infra import metrics
from drumline.producers.agent_frames import losses, sent_ns, values
from drumline.producers.agent_sender import NEVER
from drumline.producers.spool_folder import SpoolFolder
from drumline.producers.spool_frames import DATA, Damage, Frame
from drumline.producers.spool_layout import BadSpool, ProcessIdentity
from drumline.producers.spool_reader import Segment
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.errors import Unencodable
from drumline.schemas.topics import Topic

log = structlog.get_logger()

#: Segments of one process that may wait for Kafka's answers before another one is taken from its writer.
MOST_TAKEN = 4
Send = Callable[[str, str, bytes, Callable[[KafkaError | None], None]], bool]


#: What becomes of a segment that is in Kafka; raises nothing.
Done = Callable[[Segment, SpoolFolder], None]


@dataclass(slots=True, eq=False)
class _Entry:
    """A frame and its messages. `left`: not acknowledged yet. `lost`: Kafka refuses it, so it is told as a loss."""

    frame: Frame
    left: int
    lost: bool = False


@dataclass(slots=True, eq=False)
class _Taken:
    """`entries`: frames not in Kafka yet, in order. `acked`: up to here everything is. `read`: to its end."""

    segment: Segment
    acked: int
    entries: deque[_Entry] = field(default_factory=deque)
    read: bool = False


class Tail:
    """`problem`: why it does not go on by itself, or "". `identity`: as last read. `rows`: acknowledged."""

    def __init__(self, folder: SpoolFolder, positions: Mapping[int, int], codec: Codec, done: Done) -> None:
        self.folder, self._codec, self._done = folder, codec, done
        self._positions = dict(positions)
        self._taken: deque[_Taken] = deque()
        self._unsent: deque[tuple[_Taken, _Entry, Iterator[bytes]]] = deque()
        self._value: bytes | None = None
        self._ids: dict[str, int] = {}
        self._last_done = -1
        self._introduced, self._asked, self._record = False, False, b""
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

    def look(self, send: Send) -> None:
        """Now and then: does the writer live, who is it; publishes that, once for each time it changed. Raises OSError,
        BadSpool, and UnknownSchema or RegistryUnavailable while its schemas have no ids."""
        self.gone = self.folder.gone()
        identity = self.folder.identity()
        if identity != self.identity:
            self._ids = {t: self._codec.registry.id_of_version(t, print_) for t, print_ in identity.schemas.items()}
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
        moved = self._hand_over(send)
        if self._unsent or self.identity is None or (taken := self._reading()) is None:
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
                entry = _Entry(item, item.batches)
                taken.entries.append(entry)
                self._unsent.append((taken, entry, values(item, self._ids, self._codec)))
        if not taken.entries:
            taken.acked = taken.segment.offset
            self._settle()
        return self._hand_over(send) or bool(found) or taken.read or moved

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

    def _hand_over(self, send: Send) -> bool:
        moved = False
        while self._unsent:
            taken, entry, messages = self._unsent[0]
            try:
                value = self._value if self._value is not None else next(messages, None)
            except (KeyError, ValueError) as error:  # a loss that cannot be read, a topic that is none of ours
                self._unsent.popleft()
                self._leave_out(entry, f"{type(error).__name__}: {error}")
                continue
            if value is None:
                self._unsent.popleft()
                continue
            again = None if entry.frame.kind == DATA else value
            if not send(entry.frame.topic, entry.frame.key, value, partial(self._answer, taken, entry, again)):
                self._value = value
                break
            self._value, moved = None, True
        return moved

    def _answer(self, taken: _Taken, entry: _Entry, value: bytes | None, error: KafkaError | None) -> None:
        """Kafka's answer to one message of a frame. `value`: the message, None for a batch as it is in the spool."""
        never = error is not None and error.code() in NEVER
        if error is None:
            entry.left -= 1
            if entry.left == 0:
                self._count(entry)
        elif never and (entry.lost or entry.frame.kind != DATA):
            self._leave_out(entry, error.str())
        elif never:
            log.warning("Kafka refuses a batch", topic=entry.frame.topic, rows=entry.frame.rows, problem=error.str())
            entry.lost = True
            self._unsent.append((taken, entry, losses(entry.frame, self._codec)))
        elif value is not None:
            self._unsent.append((taken, entry, iter([value])))
        else:
            remade = losses if entry.lost else partial(values, ids=self._ids)
            self._unsent.append((taken, entry, remade(entry.frame, codec=self._codec)))
        self._settle()

    def _leave_out(self, entry: _Entry, problem: str) -> None:
        """Nothing of this frame can be published: counted here, and a gap in the sequence for the audit."""
        log.error("frame left out", topic=entry.frame.topic, rows=entry.frame.rows, problem=problem)
        metrics.AGENT_DROPPED.labels(
            "other" if entry.frame.topic not in self._ids else entry.frame.topic, "left_out"
        ).inc(entry.frame.rows)
        entry.left = 0
        self._settle()

    def _count(self, entry: _Entry) -> None:
        topic = entry.frame.topic
        if entry.frame.kind == DATA and not entry.lost:
            metrics.AGENT_ROWS.labels(topic).inc(entry.frame.rows)
            metrics.AGENT_RECORDS.labels(topic).inc()
            metrics.AGENT_BATCH.labels(topic).observe(entry.frame.rows)
            with suppress(ValueError):  # what cannot be read here is a dead letter later
                delay = time.time_ns() - sent_ns(entry.frame)
                metrics.AGENT_DELAY.labels(topic).observe(max(0, delay) / 1e9)
        else:
            metrics.AGENT_DROPPED.labels(topic, "refused" if entry.lost else "spool").inc(entry.frame.rows)

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
