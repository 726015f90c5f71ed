"""Before a worker starts: are the topics there, do they have equal partitions, are the changelogs right?"""

from __future__ import annotations

from collections.abc import Iterable

from drumline.infra.settings import Settings
from drumline.infra.topics_admin import TopicsAdmin, Wanted, plan

#: Changelogs are compacted soon and often: recovery reads all of them, 10,000 records a second. Never add "delete":
#: Faust waits for ever for what time has deleted (faust-streaming#176).
CHANGELOG = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "max.message.bytes": "1048576",
    "segment.ms": "600000",
    "segment.bytes": "67108864",
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": "3600000",
}


class TopicsNotReady(RuntimeError):
    """Topics are missing, or differ in their number of partitions. The message says which, and what to do."""


def changelog(app_id: str, stage: str) -> str:
    """The name that Faust gives the changelog topic of a table."""
    return f"{app_id}-{stage}-changelog"


def preflight(settings: Settings, topics: Iterable[str], stages: Iterable[str]) -> int:
    """The number of partitions of all `topics`; the stages' changelogs exist with as many when this returns.

    Raises TopicsNotReady, or BrokerUnreachable.
    """
    admin = TopicsAdmin(settings)
    names = sorted(map(str, topics))
    found = admin.found(names)
    missing = [name for name in names if name not in found]
    if missing:
        raise TopicsNotReady(f"missing at {settings.bootstrap}: {', '.join(missing)}. Run `drumline topics apply`")
    counts = {found[name].partitions for name in names}
    if len(counts) > 1:
        listed = ", ".join(f"{name} {found[name].partitions}" for name in names)
        raise TopicsNotReady(
            f"topics differ in their number of partitions ({listed}); a worker joins them by partition"
        )
    partitions = counts.pop()
    wanted = [
        Wanted(changelog(settings.stream.app_id, stage), partitions, settings.kafka.replication, CHANGELOG)
        for stage in stages
    ]
    steps = admin.apply(wanted, plan(wanted, admin.found([topic.name for topic in wanted])))
    failed = [f"{step.topic}: {step.problem}" for step in steps if step.action == "error"]
    if failed:
        raise TopicsNotReady("; ".join(failed))
    return partitions
