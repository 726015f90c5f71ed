"""Frames of one process in flight to Kafka: sent in order, acknowledged in any order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog
from confluent_kafka import KafkaError

from drumline.infra.config.clickhouse_settings import RetentionSettings
from drumline.infra.telemetry import metrics
from drumline.producers.agent.messages import losses, sent_and_first_ns, values
from drumline.producers.agent.old_rows import OLD_ROWS, is_old
from drumline.producers.agent.producer import PERMANENT_ERRORS
from drumline.producers.spool.segment_format import LOSS, PULLED, Frame
from drumline.schemas.codec import Codec
from drumline.schemas.dead_letters import COUNTED, Header

log = structlog.get_logger()

#: Most messages sent in one call: the client's queue is for all folders.
MOST_SENT = 1_000
#: Most empty batches of one loss, and of all losses of one process. A loss beyond them is one record: its rows count,
#: and the audit sees a gap in the sequence. So no few bytes of many folders become many million records.
LONGEST_LOSS, MOST_LOST = 1 << 12, 1 << 16


class Send(Protocol):
    """Queues a message and returns whether that was possible (KafkaSender.send)."""

    def __call__(
        self,
        topic: str,
        key: str,
        value: bytes,
        answer: Callable[[KafkaError | None], None],
        headers: tuple[Header, ...] = (),
    ) -> bool:
        """Call `answer` with Kafka's answer."""


@dataclass(slots=True, eq=False)
class InFlightFrame:
    """A frame and its messages.

    Attributes:
        left: messages that are not acknowledged yet.
        lost: Kafka rejects the frame permanently, so its rows are published as a loss.
    """

    frame: Frame
    left: int
    lost: bool = False


class InFlightBatches:
    """Sends the frames of one process and repeats what Kafka did not take.

    SpoolTailer owns it, in the agent's thread; nothing blocks.

    Attributes:
        ids: topic -> id of the schema that the writer used.
        settled: called whenever a frame may be complete.
        folder: name of the process's folder.
        retention: of the tables, by which rows are old.
        old_rows: rows in Kafka that were older than their table keeps rows.
    """

    def __init__(self, codec: Codec, settled: Callable[[], None], folder: str, retention: RetentionSettings) -> None:
        self.ids: dict[str, int] = {}
        self.old_rows = 0
        self._folder, self._retention = folder, retention
        self._codec, self._settled = codec, settled
        self._unsent: deque[tuple[InFlightFrame, Iterator[bytes]]] = deque()
        self._value: bytes | None = None
        self._lost_left = MOST_LOST
        self._is_left_out_logged = False

    @property
    def has_unsent(self) -> bool:
        """Return whether a frame is not sent yet."""
        return bool(self._unsent)

    def add(self, frame: Frame) -> InFlightFrame:
        """Append a frame behind all others."""
        if frame.kind == LOSS:
            if frame.batches > min(LONGEST_LOSS, self._lost_left):
                log.warning("a loss is too long for a record each", topic=frame.topic, batches=frame.batches)
                frame = frame._replace(batches=1)
            else:
                self._lost_left -= frame.batches
        entry = InFlightFrame(frame, frame.batches)
        self._unsent.append((entry, values(frame, self.ids, self._codec)))
        return entry

    def send_unsent(self, send: Send) -> bool:
        """Send what the client's queue takes, at most MOST_SENT; return whether anything moved."""
        sent = 0
        while self._unsent and sent < MOST_SENT:
            entry, messages = self._unsent[0]
            try:
                value = self._value if self._value is not None else next(messages, None)
            except (KeyError, ValueError) as error:  # a damaged loss, or an unknown topic
                self._unsent.popleft()
                self._leave_out(entry, f"{type(error).__name__}: {error}")
                continue
            if value is None:
                self._unsent.popleft()
                continue
            retry_value = None if entry.frame.kind != LOSS else value
            answer, more = partial(self._answer, entry, retry_value), (COUNTED,) if entry.frame.kind == PULLED else ()
            if not send(entry.frame.topic, entry.frame.key, value, answer, *more):
                self._value = value
                break
            self._value, sent = None, sent + 1
        return sent > 0

    def _answer(self, entry: InFlightFrame, value: bytes | None, error: KafkaError | None) -> None:
        """Process Kafka's answer to one message of a frame; `value`: the message, None for a batch as it is in the
        spool.
        """
        permanent = error is not None and error.code() in PERMANENT_ERRORS
        if error is None:
            entry.left -= 1
            if entry.left == 0:
                self._count(entry)
        elif permanent and (entry.lost or entry.frame.kind == LOSS):
            self._leave_out(entry, error.str())
        elif permanent:
            log.warning("Kafka rejects a batch", topic=entry.frame.topic, rows=entry.frame.rows, problem=error.str())
            entry.lost = True
            self._unsent.append((entry, losses(entry.frame, self._codec)))
        elif value is not None:
            self._unsent.append((entry, iter([value])))
        else:
            frame_again = losses if entry.lost else partial(values, ids=self.ids)
            self._unsent.append((entry, frame_again(entry.frame, codec=self._codec)))
        self._settled()

    def _leave_out(self, entry: InFlightFrame, problem: str) -> None:
        """Count a frame that cannot be published, and log the first; the audit sees a gap in the sequence."""
        if not self._is_left_out_logged:
            log.error("frame left out", topic=entry.frame.topic, rows=entry.frame.rows, problem=problem)
        self._is_left_out_logged = True
        metrics.AGENT_DROPPED.labels(
            "other" if entry.frame.topic not in self.ids else entry.frame.topic, "left_out"
        ).inc(entry.frame.rows)
        entry.left = 0
        self._settled()

    def _count(self, entry: InFlightFrame) -> None:
        """Count a frame that is in Kafka."""
        frame = entry.frame
        if frame.kind == LOSS or entry.lost:
            metrics.AGENT_DROPPED.labels(frame.topic, "rejected" if entry.lost else "spool").inc(frame.rows)
            return
        metrics.AGENT_ROWS.labels(frame.topic).inc(frame.rows)
        metrics.AGENT_RECORDS.labels(frame.topic).inc()
        metrics.AGENT_BATCH.labels(frame.topic).observe(frame.rows)
        with suppress(ValueError):  # the sink makes a dead letter of it
            now_ns, (sent_ns, first_ns) = time.time_ns(), sent_and_first_ns(frame)
            metrics.AGENT_DELAY.labels(frame.topic).observe(max(0, now_ns - sent_ns) / 1e9)
            if is_old(frame, first_ns, self._retention, now_ns):
                if not self.old_rows:
                    log.warning(OLD_ROWS, folder=self._folder, topic=frame.topic)
                metrics.AGENT_OLD.labels(frame.topic).inc(frame.rows)
                self.old_rows += frame.rows
