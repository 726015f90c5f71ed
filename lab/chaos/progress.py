"""Reads from Kafka how far publishing, sink and worker have come, and how long a piece of their work takes."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from confluent_kafka import KafkaException

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.offsets import Offsets
from drumline.schemas.model import has_schema
from drumline.schemas.topics import TOPICS
from drumline.streams.worker.app import wirings

GROUPS = ("published", "sink", "worker")
#: Time without an answer from which on the broker is away; s.
ANSWER_S = 15.0
Commits = dict[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """Holds one reading.

    done: records by group; only ever grows.
    lag: records that sink and worker have not committed.
    intents: offsets and metadata that the sink has committed.
    """

    time_s: float
    done: dict[str, int]
    lag: dict[str, int]
    intents: Commits


class PipelineProgress:
    """Polls Kafka, and re-creates its client after an error.

    cycles: seconds between commits that moved a group on, the last hundred of each.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._kafka = settings, Offsets(settings, ANSWER_S)
        self._stored = {spec.topic.value for spec in TOPICS if has_schema(spec.topic)}
        self._raw = {spec.topic.value for spec in TOPICS if has_schema(spec.topic) and not spec.derived}
        self._read = {str(topic) for wiring in wirings(settings) for topic in wiring.inputs}
        self._places: list[str] = []
        self._last: ProgressSnapshot | None = None
        self._moved: dict[str, float] = {}
        self.cycles: dict[str, deque[float]] = {group: deque(maxlen=100) for group in GROUPS}

    def poll(self) -> ProgressSnapshot | None:
        """Return the current positions; None while the broker does not answer."""
        try:
            self._places = self._places or self._kafka.places(self._stored)
            ends = self._kafka.ends(self._places)
            read = {place: end for place, end in ends.items() if place.rsplit(":", 1)[0] in self._read}
            sink = self._kafka.committed(self._settings.sink.group, ends)
            worker = self._kafka.committed(self._settings.stream.app_id, read)
        except KafkaException:  # a client may not recover from a broker that exited
            self._kafka.close()
            self._kafka = Offsets(self._settings, ANSWER_S)
            return None
        done = {
            "published": sum(end for place, end in ends.items() if place.rsplit(":", 1)[0] in self._raw),
            "sink": sum(offset for offset, _ in sink.values()),
            "worker": sum(offset for offset, _ in worker.values()),
        }
        lag = {"sink": sum(ends.values()) - done["sink"], "worker": sum(read.values()) - done["worker"]}
        snapshot = ProgressSnapshot(time.monotonic(), done, lag, sink)
        self._note_cycles(snapshot)
        return snapshot

    def _note_cycles(self, snapshot: ProgressSnapshot) -> None:
        for group in GROUPS:
            before = self._last.done[group] if self._last else snapshot.done[group]
            if snapshot.done[group] > before:
                if group in self._moved:
                    self.cycles[group].append(snapshot.time_s - self._moved[group])
                self._moved[group] = snapshot.time_s
        self._last = snapshot

    def close(self) -> None:
        """Close the client."""
        self._kafka.close()

    def restart_cycles(self) -> None:
        """Forget when groups last moved: after a kill, the next commit ends no cycle."""
        self._moved.clear()
