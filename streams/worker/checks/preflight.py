"""Check topics, partitions and changelogs before a worker starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.acls import require_acls
from drumline.infra.kafka.topic_admin import DeclaredTopic, TopicsAdmin, plan
from drumline.schemas.topics import TOPICS, dlq

#: Changelogs are compacted soon and often: recovery reads all of them, 10,000 records a second. Never add "delete":
#: Faust waits for ever for records that retention deleted (faust-streaming#176).
CHANGELOG = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "message.timestamp.type": "LogAppendTime",  # a broker rejects times of a worker whose clock is an hour ahead
    "max.message.bytes": "8388608",  # twice the largest value (core/state_budget.py)
    "segment.ms": "600000",
    "segment.bytes": "67108864",
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": "3600000",
}


class TopicsNotReady(RuntimeError):
    """Fatal: topics differ in their number of partitions, or a changelog could not be created.

    The message gives a remedy.
    """


@dataclass(frozen=True, slots=True)
class WorkerTopics:
    """Holds the topics that a worker reads and writes.

    `partitions`: of each that it reads. `ids`: topic -> Kafka's id of it. `counts`: topic -> its partitions, where they
    are known.
    """

    partitions: int
    ids: Mapping[str, str]
    counts: Mapping[str, int] = field(default_factory=dict)


def changelog(app_id: str, stage: str) -> str:
    """Return the name that Faust gives the changelog topic of a table."""
    return f"{app_id}-{stage}-changelog"


def required_acls(
    reads: Collection[str], writes: Collection[str], changelogs: Collection[str]
) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return operations per topic: for topics that must exist, dead-letter topics among them, and for changelogs."""
    dead_letter_topics = [dlq(spec.topic) for spec in TOPICS if spec.topic in reads and spec.dead_letters]
    needed: dict[str, set[str]] = {str(name): set() for name in (*reads, *writes, *dead_letter_topics)}
    for operation, names in (("READ", reads), ("WRITE", writes), ("WRITE", dead_letter_topics)):
        for name in names:
            needed[str(name)].add(operation)
    return needed, {name: {"READ", "WRITE", "DESCRIBE_CONFIGS"} for name in changelogs}


def preflight(
    settings: Settings, reads: Collection[str], writes: Collection[str], stages: Collection[str]
) -> WorkerTopics:
    """Check all topics that are read or written, and every ACL; create the stages' changelogs.

    When it returns, changelogs have as many partitions as the topics that are read. Blocks for requests to Kafka.

    Retry later: BrokerUnreachable. Fatal: TopicsNotReady, MissingTopics, KafkaAccessDenied.
    """
    app = settings.stream.app_id
    needed, logs = required_acls(reads, writes, [changelog(app, stage) for stage in stages])
    existing = require_acls(settings, "drumline-stream", needed, {app: ("READ",)}, optional=logs, is_patient=True)
    names = sorted(map(str, reads))
    counts = {existing[name].partitions for name in names}
    if len(counts) > 1:
        listed = ", ".join(f"{name} {existing[name].partitions}" for name in names)
        raise TopicsNotReady(
            f"topics differ in their number of partitions ({listed}); a worker joins them by partition. "
            "`drumline topics apply` gives the remedy"
        )
    partitions = counts.pop()
    if odd := sorted(name for name in logs if name in existing and existing[name].partitions != partitions):
        raise TopicsNotReady(
            f"topics have {partitions} partitions, the stored state has another number ({', '.join(odd)}). Set "
            "another DRUMLINE_STREAM__APP_ID: the worker then processes all topics again, and results replace earlier "
            "ones"
        )
    wanted = [DeclaredTopic.of(settings, name, partitions, CHANGELOG) for name in sorted(logs)]
    admin = TopicsAdmin(settings)
    steps = admin.apply(wanted, plan(wanted, admin.existing([topic.name for topic in wanted])))
    failed = [f"{step.topic}: {step.problem}" for step in steps if step.action == "error"]
    if failed:
        raise TopicsNotReady("; ".join(failed))
    used = {str(name): existing[str(name)] for name in (*reads, *writes)}
    return WorkerTopics(
        partitions,
        {name: topic.id for name, topic in used.items()},
        {name: topic.partitions for name, topic in used.items()},
    )
