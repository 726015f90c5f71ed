"""Publication of one process's spool."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog
from confluent_kafka import KafkaError

from drumline.infra.config.clickhouse_settings import RetentionSettings
from drumline.infra.telemetry import metrics
from drumline.producers.agent.inflight import InFlightBatches, InFlightFrame, Send
from drumline.producers.agent.kept_rows import KeptRows
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.folder_layout import BadSpool, ProcessIdentity, read_identity
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.segment_format import KEPT, Damage, Frame
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.errors import Unencodable
from drumline.schemas.model import RecordModel
from drumline.schemas.topics import DERIVED_TOPICS, WINDOW_TOPICS, Topic

log = structlog.get_logger()

#: Segments of one process that may wait for Kafka's answers before the next one is taken.
MOST_TAKEN = 4
#: Age from which on the time of a folder's last change is believed: file systems' clocks have ticks of some ms.
SETTLED_NS = 1_000_000_000
#: Called with a segment that is in Kafka; raises nothing.
Done = Callable[[Segment, SpoolDirectory], None]


@dataclass(slots=True, eq=False)
class _Taken:
    """A segment that the agent has taken from its writer.

    `entries`: frames not in Kafka yet, in order. `acked`: offset up to which all is. `read`: read to its end.
    """

    segment: Segment
    acked: int
    entries: deque[InFlightFrame] = field(default_factory=deque)
    read: bool = False


class SpoolTailer:
    """Publishes one process's spool, segment by segment.

    The agent owns it and calls it from its thread. `kept`: takes rows that stay on the host; None: they
    are published.

    Attributes:
        problem: reason why it is blocked, or "".
        seen: identity of the writer as last read.
        identity: the same, once the ids of its schemas are known.
        writer_exited: the writer's process has exited.
    """

    def __init__(
        self,
        folder: SpoolDirectory,
        positions: Mapping[int, int],
        codec: Codec,
        done: Done,
        retention: RetentionSettings,
        kept: KeptRows | None = None,
    ) -> None:
        self.folder, self._codec, self._done, self._kept = folder, codec, done, kept
        self._kept_writers: dict[str, RecordModel] = {}
        self._positions = dict(positions)
        self._taken: deque[_Taken] = deque()
        self._in_flight = InFlightBatches(codec, self._settle, folder.path.name, retention)
        self._last_done, self._identity_bytes = -1, b""
        self._listed_ns = -1
        self._identity_published, self._identity_in_flight, self._record = False, False, b""
        self.seen: ProcessIdentity | None = None
        self.identity: ProcessIdentity | None = None
        self.problem = ""
        self.writer_exited = self._is_unkept_logged = False

    @property
    def positions(self) -> dict[int, int]:
        """Return the positions for the cursor."""
        return {taken.segment.number: taken.acked for taken in self._taken}

    @property
    def finished(self) -> bool:
        """Return whether the writer exited and all of its spool is in Kafka."""
        return (
            self.writer_exited
            and self._identity_published
            and not self._taken
            and not any(self.folder.files().values())
        )

    @property
    def old_rows(self) -> int:
        """Return the rows in Kafka that were older than their table keeps rows."""
        return self._in_flight.old_rows

    def refresh(self) -> None:
        """Update whether the writer is alive, and its identity if it has changed. Raises OSError and BadSpool."""
        self.writer_exited = self.folder.writer_exited()
        content = self.folder.identity_bytes()
        if content != self._identity_bytes:
            self.seen = read_identity(content, self.folder.path.name)
            self._identity_bytes = content

    def publish_identity(self, send: Send) -> None:
        """Publish the identity that was read last, once for each change.

        Retry later: UnknownSchema, RegistryUnavailable (its schemas have no ids yet). Fatal for this spool: BadSpool.
        """
        identity = self.seen
        if identity is None:
            return
        if identity != self.identity:
            id_of_version = self._codec.registry.id_of_version
            self._in_flight.ids = {
                topic: id_of_version(topic, version)
                for topic, version in identity.schemas.items()
                if topic not in DERIVED_TOPICS  # the stream worker's: whoever may write here could forge verdicts
                or (topic in WINDOW_TOPICS and self.folder.user == os.geteuid())
            }
            self._kept_writers = self._kept.writers(identity) if self._kept is not None else {}
            try:
                self._record = self._codec.encode(Batch(Topic.PROCESS, {**identity.process, "rows": 1}))
            except Unencodable as error:
                raise BadSpool(str(error)) from None
            self.identity, self._identity_published = identity, False
            self._identity_in_flight = False
        if not self._identity_published and not self._identity_in_flight:

            def answer(error: KafkaError | None) -> None:
                if identity == self.identity:
                    self._identity_published, self._identity_in_flight = error is None, False

            self._identity_in_flight = True
            # An answer may come at once, before `send` returns.
            self._identity_in_flight = (
                send(Topic.PROCESS, identity.process_id, self._record, answer) and self._identity_in_flight
            )

    def pump(self, send: Send) -> bool:
        """Send about a chunk of frames; return whether anything moved. Raises OSError."""
        moved = self._in_flight.send_unsent(send)
        if self._in_flight.has_unsent or self.identity is None or (taken := self._reading()) is None:
            return moved
        before = taken.segment.offset
        items = taken.segment.read(complete=False)
        if not items:
            complete = self.writer_exited or self._has_later_segment(taken.segment.number)
            items = taken.segment.read(complete)
            taken.read = complete and not items
        if self._kept is not None and not self._kept.windows.is_ready and any(map(self._stays, items)):
            taken.segment.offset = before  # published, the worker would count them too
            raise OSError(errno.EAGAIN, "rows wait until the state of their windows can be opened")
        damaged = sum(item.bytes for item in items if isinstance(item, Damage))
        if damaged:
            metrics.AGENT_DAMAGED.inc(damaged)
            log.warning("damaged frames left out", folder=self.folder.path.name, bytes=damaged)
        taken.entries.extend(self._entry(item, taken.segment) for item in items if isinstance(item, Frame))
        if not taken.entries:
            taken.acked = taken.segment.offset
            self._settle()
        return self._in_flight.send_unsent(send) or bool(items) or taken.read or moved

    def _has_later_segment(self, number: int) -> bool:
        """Return whether a segment follows. A folder that has not changed is not listed again. Raises OSError."""
        changed_ns = self.folder.changed_ns()
        if changed_ns == self._listed_ns:
            return False
        is_settled = time.time_ns() - changed_ns > SETTLED_NS
        if self.folder.has_later_segment(number):
            return True
        self._listed_ns = changed_ns if is_settled else -1
        return False

    def _entry(self, frame: Frame, segment: Segment) -> InFlightFrame:
        """Return the state of a frame, which is sent, or kept on the host."""
        if frame.kind == KEPT and self._kept is None and not self._is_unkept_logged:
            self._is_unkept_logged = True
            log.warning(
                "rows of policy rollup are published: DRUMLINE_AGENT__KEPT_FOLDER names no folder for them",
                folder=self.folder.path.name,
            )
        if self._kept is None or not self._stays(frame):
            return self._in_flight.add(frame)
        entry = InFlightFrame(frame, 1)

        def release() -> None:
            entry.left = 0
            self._settle()

        self._kept.take(frame, segment, self._kept_writers[frame.topic], release)
        return entry

    def _stays(self, item: Frame | Damage) -> bool:
        return isinstance(item, Frame) and item.kind == KEPT and item.topic in self._kept_writers

    def _reading(self) -> _Taken | None:
        """Return the taken segment that is not read to its end; take the next one if all are."""
        if self._taken and not self._taken[-1].read:
            return self._taken[-1]
        if len(self._taken) >= MOST_TAKEN:
            return None
        name = self.folder.take(self._taken[-1].segment.number if self._taken else self._last_done, self.writer_exited)
        if name is None:
            return None
        segment = Segment(self.folder, name, self._positions.pop(int(name.partition(".")[0]), 0))
        self._taken.append(_Taken(segment, segment.offset))
        return self._taken[-1]

    def _settle(self) -> None:
        """Move `acked` on; release segments that are in Kafka to their last frame."""
        for taken in list(self._taken):
            while taken.entries and taken.entries[0].left <= 0:
                taken.acked = taken.entries.popleft().frame.end
            if taken.read and not taken.entries:
                self._taken.remove(taken)
                self._last_done = taken.segment.number
                self._done(taken.segment, self.folder)

    def close(self) -> None:
        """Close the taken segments."""
        for taken in self._taken:
            taken.segment.close()
