"""Topics that change under a running worker: deleted and created anew, or with more partitions.

Its client notices after minutes or never, and reads nothing meanwhile without a word. So Kafka is asked now and then,
and what has changed ends the worker: the next start takes the topics as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.acls import ExistingTopic, describe_topics
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import BrokerUnreachable, ConnectionProbe
from drumline.infra.telemetry.health import Health
from drumline.streams.worker.checks.preflight import Topics

LOOK_S = 30.0


def look(settings: Settings, names: Collection[str]) -> dict[str, ExistingTopic | None]:
    """Topic -> what it is, None = there is none; of a topic that may not be described, nothing. Takes up to 20 s.
    Raises BrokerUnreachable, KafkaAccessDenied."""
    contact = ConnectionProbe(settings)
    admin = AdminClient(contact.silence(client_config(settings, "drumline-stream")))
    contact.metadata(admin)
    found, lacks = describe_topics(admin, settings, dict.fromkeys(names, ("DESCRIBE",)))
    hidden = {name for _, _, name in lacks}
    return {name: ExistingTopic.of(found[name]) if name in found else None for name in names if name not in hidden}


def change(topics: Topics, found: Mapping[str, ExistingTopic | None]) -> str:
    """What is not as it was at the start, and what to do; "" = nothing. A topic that is only gone is no change yet."""
    for name, now in found.items():
        if now is not None and now.id != topics.ids[name]:
            return (
                f"topic {name} was deleted and created anew while this worker ran; start it again: it then reads the "
                "new topic from its beginning"
            )
        if now is not None and now.partitions != topics.partitions:
            return (
                f"topic {name} has {now.partitions} partitions now, {topics.partitions} when this worker started; "
                "start it again: it then says what does not fit"
            )
    return ""


class TopicWatch:
    """`changed`: why the worker has to end, once it is known. Times are of a monotonic clock; s."""

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        health: Health,
        look: Callable[[Settings, Collection[str]], Mapping[str, ExistingTopic | None]] = look,
    ) -> None:
        self.changed = ""
        self._settings, self._topics, self._health, self._look = settings, topics, health, look
        self._asked: float | None = None
        self._asking: asyncio.Task[None] | None = None

    def observe(self, now: float) -> None:
        """Called by the main loop."""
        self._asked = now if self._asked is None else self._asked
        if now - self._asked >= LOOK_S and (self._asking is None or self._asking.done()):
            self._asked = now
            self._asking = asyncio.create_task(self._find_out())

    async def _find_out(self) -> None:
        try:
            found = await asyncio.to_thread(self._look, self._settings, list(self._topics.ids))
        except BrokerUnreachable:  # who waits for Kafka says so elsewhere
            return
        self.changed = change(self._topics, found)
        gone = ", ".join(sorted(name for name, now in found.items() if now is None))
        self._health.set_reason("topics", f"deleted: {gone}" if gone else "")
