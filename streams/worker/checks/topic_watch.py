"""Watch for topics that change under a running worker: deleted and recreated, or with more partitions.

Its client detects that after minutes or never, and reads nothing meanwhile. So Kafka is polled, and a change ends the
worker: the next start takes the topics as they are.
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
from drumline.streams.worker.checks.preflight import WorkerTopics

POLL_S = 30.0


def poll_topics(settings: Settings, names: Collection[str]) -> dict[str, ExistingTopic | None]:
    """Return topic -> its description, None if it does not exist; leaves out topics that it may not describe.

    Blocks for up to 20 s. Retry later: BrokerUnreachable. Fatal: KafkaAccessDenied.
    """
    contact = ConnectionProbe(settings)
    admin = AdminClient(contact.silence(client_config(settings, "drumline-stream")))
    contact.metadata(admin)
    existing, missing_acls = describe_topics(admin, settings, dict.fromkeys(names, ("DESCRIBE",)))
    hidden = {name for _, _, name in missing_acls}
    return {
        name: ExistingTopic.of(existing[name]) if name in existing else None for name in names if name not in hidden
    }


def find_change(topics: WorkerTopics, topics_now: Mapping[str, ExistingTopic | None]) -> str:
    """Return what differs from the start of the worker, with a remedy; "" = nothing.

    A deleted topic is no change yet.
    """
    for name, topic in topics_now.items():
        if topic is not None and topic.id != topics.ids[name]:
            return (
                f"topic {name} was recreated while this worker ran; restart it: it then reads the new topic from its "
                "beginning"
            )
        before = topics.counts.get(name, topics.partitions)
        if topic is not None and topic.partitions != before:
            return (
                f"topic {name} has {topic.partitions} partitions now, {before} when this worker started; "
                "restart it: it then reports the mismatch"
            )
    return ""


class TopicWatch:
    """Polls the worker's topics in a thread, every POLL_S.

    Owned by the main loop. `changed`: the reason why the worker has to end, "" while there is none. Times are of a
    monotonic clock, in s.
    """

    def __init__(
        self,
        settings: Settings,
        topics: WorkerTopics,
        health: Health,
        poll_topics: Callable[[Settings, Collection[str]], Mapping[str, ExistingTopic | None]] = poll_topics,
    ) -> None:
        self.changed = ""
        self._settings, self._topics, self._health, self._poll_topics = settings, topics, health, poll_topics
        self._polled_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    def observe(self, now: float) -> None:
        """Start a poll if one is due; called by the main loop."""
        self._polled_at = now if self._polled_at is None else self._polled_at
        if now - self._polled_at >= POLL_S and (self._task is None or self._task.done()):
            self._polled_at = now
            self._task = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        try:
            topics_now = await asyncio.to_thread(self._poll_topics, self._settings, list(self._topics.ids))
        except BrokerUnreachable:  # reported elsewhere
            return
        self.changed = find_change(self._topics, topics_now)
        deleted = ", ".join(sorted(name for name, topic in topics_now.items() if topic is None))
        self._health.set_reason("topics", f"deleted: {deleted}" if deleted else "")
