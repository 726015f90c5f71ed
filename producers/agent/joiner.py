"""Join what the processes of this host send under one topic and key: one Kafka record an interval, a part for each.

A message costs its consumers more than its rows do, and a large job has many ranks that send a few rows each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog
from confluent_kafka import KafkaError

from drumline.producers.agent.inflight import Send
from drumline.producers.agent.producer import PERMANENT_ERRORS, Answer
from drumline.producers.spool.envelope import read_envelope
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import HEADER
from drumline.schemas.dead_letters import Header
from drumline.schemas.errors import BadRecord, BadSchema, RegistryUnavailable
from drumline.schemas.parts.joining import JOINED_BY_AGENTS, MOST_PARTS, SECOND_RANKS, interval_s, moves
from drumline.schemas.topics import Topic

log = structlog.get_logger()

#: Bytes of a joined record: far below Kafka's limit. Those of all that wait.
RECORD_BYTES, HELD_BYTES = 256 << 10, 8 << 20
#: Time for which a registry without the schema of joined records is not asked again; s.
REGISTRY_S = 30.0


def due(now: float, interval: float) -> float:
    """Return the next time on a grid: what waited for something else before, as in a spool, waits no longer for it."""
    return (math.floor(now / interval) + 1) * interval if interval else now


@dataclass(slots=True)
class _Waiting:
    """The parts of a record that is not sent yet.

    `due`: when it is to be, by the clock. `record`: of all parts, once it was made: it may wait for the client's queue.
    """

    job: str
    run: str
    due: float
    values: list[bytes] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    record: bytes | None = None
    bytes: int = 0


class RecordJoiner:
    """Passes messages to `send`, joined by topic and key where consumers expect it; nothing blocks but a new registry.

    The agent owns it; all calls, and Kafka's answers, come from the agent's thread. Messages of a topic and key keep
    their order. Each message gets Kafka's answer to its record.
    """

    def __init__(self, send: Send, codec: Codec, clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._codec, self._clock = send, codec, clock
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._bytes = 0
        self._plain_until = float("-inf")

    def send(self, topic: str, key: str, value: bytes, answer: Answer, headers: tuple[Header, ...] = ()) -> bool:
        """Take a message; return False while the client's queue is full. One with headers is not joined."""
        if headers:
            return self._flush((topic, key)) and self._send(topic, key, value, answer, headers)
        if topic not in JOINED_BY_AGENTS or len(value) > RECORD_BYTES:
            return self._flush((topic, key)) and self._send(topic, key, value, answer)
        try:
            shared = read_envelope(topic, value[HEADER.size :])
        except ValueError:  # the sink makes a dead letter of it
            return self._send(topic, key, value, answer)
        place, job, run = (topic, key), str(shared["job"]), str(shared["run"])
        waiting = self._waiting.get(place)
        if waiting is not None:
            is_full = waiting.bytes + len(value) > RECORD_BYTES or len(waiting.values) == MOST_PARTS
            if (is_full or (waiting.job, waiting.run) != (job, run)) and not self._flush(place):
                return False
        if self._bytes + len(value) > HELD_BYTES and not self.flush():
            return False
        ranks = int(shared["world_size"])
        until = due(self._clock(), interval_s(ranks, topic, self._is_moving(topic, ranks, value)))
        if place not in self._waiting:
            self._waiting[place] = _Waiting(job, run, until)
        waiting = self._waiting[place]
        waiting.due = min(waiting.due, until)  # whose process stands still takes the others along
        waiting.values.append(value)
        waiting.answers.append(answer)
        waiting.record = None
        waiting.bytes += len(value)
        self._bytes += len(value)
        return True

    def _is_moving(self, topic: str, ranks: int, value: bytes) -> bool:
        """Return whether a record is the progress of a process of a large job that moves."""
        if topic != Topic.PROGRESS or ranks <= SECOND_RANKS or not self._codec.decodes_at_once(value):
            return False
        try:
            return moves(self._codec.decode(topic, value, bounded=False))
        except BadRecord:  # consumers say so
            return False

    def flush(self, due_only: bool = False) -> bool:
        """Send the records that wait, or those that are due; return False if the client's queue is full."""
        now = self._clock()
        places = [place for place, waiting in self._waiting.items() if not due_only or waiting.due <= now]
        return all(map(self._flush, places))

    def _flush(self, place: tuple[str, str]) -> bool:
        waiting = self._waiting.get(place)
        if waiting is None:
            return True
        if len(waiting.values) == 1 or (record := self._joined(place[0], waiting)) is None:
            while waiting.values:
                if not self._send(*place, waiting.values[0], waiting.answers[0]):
                    return False
                waiting.bytes -= len(waiting.values[0])
                self._bytes -= len(waiting.values[0])
                del waiting.values[0], waiting.answers[0]
        elif self._send(*place, record, partial(self._answer, place, waiting)):
            self._bytes -= waiting.bytes
        else:
            return False
        del self._waiting[place]
        return True

    def _joined(self, topic: str, waiting: _Waiting) -> bytes | None:
        """Return the value of the record, None while the registry has no id for it, or where parts fit no table."""
        if self._clock() < self._plain_until:
            return None
        if waiting.record is not None:
            return waiting.record
        try:
            waiting.record = self._codec.merge(topic, waiting.values)
        except (BadSchema, RegistryUnavailable) as error:
            log.warning("records are not joined", problem=str(error))
            self._plain_until = self._clock() + REGISTRY_S
        return waiting.record

    def _answer(self, place: tuple[str, str], sent: _Waiting, error: KafkaError | None) -> None:
        """Pass Kafka's answer on; what it takes in no joined record, it may take alone."""
        is_rejected = error is not None and error.code() in PERMANENT_ERRORS
        for value, answer in zip(sent.values, sent.answers, strict=True):
            if not is_rejected:
                answer(error)
            elif not self._send(*place, value, answer):
                answer(KafkaError(KafkaError._QUEUE_FULL))
