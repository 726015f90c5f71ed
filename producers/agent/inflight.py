"""Frames of one process on their way through the Kafka client: handed over in order, answered in any."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from confluent_kafka import KafkaError

from drumline.infra.telemetry import metrics
from drumline.producers.agent.messages import losses, sent_ns, values
from drumline.producers.agent.producer import NEVER
from drumline.producers.spool.frames import DATA, Frame
from drumline.schemas.codec import Codec

log = structlog.get_logger()

Send = Callable[[str, str, bytes, Callable[[KafkaError | None], None]], bool]


@dataclass(slots=True, eq=False)
class Entry:
    """A frame and its messages. `left`: not acknowledged yet. `lost`: Kafka refuses it, so it is told as a loss."""

    frame: Frame
    left: int
    lost: bool = False


class Handover:
    """`ids`: topic -> id of the schema that its writer used. `settled` is called whenever an entry may be done."""

    def __init__(self, codec: Codec, settled: Callable[[], None]) -> None:
        self.ids: dict[str, int] = {}
        self._codec, self._settled = codec, settled
        self._unsent: deque[tuple[Entry, Iterator[bytes]]] = deque()
        self._value: bytes | None = None

    @property
    def waits(self) -> bool:
        """Something is not handed over yet."""
        return bool(self._unsent)

    def add(self, frame: Frame) -> Entry:
        """Behind all others."""
        entry = Entry(frame, frame.batches)
        self._unsent.append((entry, values(frame, self.ids, self._codec)))
        return entry

    def go(self, send: Send) -> bool:
        """Hand over what fits; True if something moved."""
        moved = False
        while self._unsent:
            entry, messages = self._unsent[0]
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
            if not send(entry.frame.topic, entry.frame.key, value, partial(self._answer, entry, again)):
                self._value = value
                break
            self._value, moved = None, True
        return moved

    def _answer(self, entry: Entry, value: bytes | None, error: KafkaError | None) -> None:
        """Kafka's answer to one message of a frame. `value`: the message, None for a batch as it is in the spool."""
        never = error is not None and error.code() in NEVER
        if error is None:
            entry.left -= 1
            if entry.left == 0:
                _count(entry)
        elif never and (entry.lost or entry.frame.kind != DATA):
            self._leave_out(entry, error.str())
        elif never:
            log.warning("Kafka refuses a batch", topic=entry.frame.topic, rows=entry.frame.rows, problem=error.str())
            entry.lost = True
            self._unsent.append((entry, losses(entry.frame, self._codec)))
        elif value is not None:
            self._unsent.append((entry, iter([value])))
        else:
            remade = losses if entry.lost else partial(values, ids=self.ids)
            self._unsent.append((entry, remade(entry.frame, codec=self._codec)))
        self._settled()

    def _leave_out(self, entry: Entry, problem: str) -> None:
        """Nothing of this frame can be published: counted here, and a gap in the sequence for the audit."""
        log.error("frame left out", topic=entry.frame.topic, rows=entry.frame.rows, problem=problem)
        metrics.AGENT_DROPPED.labels(
            "other" if entry.frame.topic not in self.ids else entry.frame.topic, "left_out"
        ).inc(entry.frame.rows)
        entry.left = 0
        self._settled()


def _count(entry: Entry) -> None:
    """All of a frame is in Kafka."""
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
