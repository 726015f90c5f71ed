"""Declare every topic: key, retention, cleanup.

The number of partitions is a setting, the same for all topics that stream workers read, since Faust joins topics by
partition number (docs/design/streams.md). Other topics may have a number of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Topic(StrEnum):
    """Names drumline's topics."""

    PROCESS = "gpu.process.v1"
    KERNEL = "gpu.kernel.v1"
    MEMCPY = "gpu.memcpy.v1"
    COLLECTIVE = "gpu.collective.v1"
    STEP = "gpu.step.v1"
    RANGE = "gpu.range.v1"
    DEVICE = "gpu.device.v1"
    HOST = "gpu.host.v1"
    NETWORK = "gpu.network.v1"
    CHECK = "gpu.check.v1"
    PROGRESS = "gpu.progress.v1"
    TRANSFER = "gpu.transfer.v1"
    STACK = "gpu.stack.v1"
    LAUNCH = "gpu.launch.v1"
    LAUNCH_COUNT = "gpu.launch-count.v1"
    STALL = "gpu.stall.v1"
    ITERATION = "gpu.iteration.v1"
    REQUEST = "gpu.request.v1"
    KERNEL_FREQUENCY = "gpu.kernel-frequency.v1"
    MEMCPY_BANDWIDTH = "gpu.memcpy-bandwidth.v1"
    LATENESS = "gpu.lateness.v1"
    STRAGGLER = "gpu.straggler.v1"
    HANG = "gpu.hang.v1"
    TICK = "drumline.tick.v1"
    CONTROL = "drumline.control.v1"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """Declares one topic.

    `table`: of its rows in ClickHouse; "" for none. `key`: description of the record key. `derived`: written by the
    stream worker. `by_people`: written by people. `dead_letters`: has a dead-letter topic. `joined`: stream workers
    read it. A topic without an .avsc (model.has_schema) is internal: its values are not batches.
    """

    topic: Topic
    table: str
    key: str
    retention_ms: int
    cleanup: str = "delete"
    derived: bool = False
    by_people: bool = False
    dead_letters: bool = True
    joined: bool = False

    @property
    def config(self) -> dict[str, str]:
        """Return the topic's configuration, in Kafka's names.

        Producers compress (zstd), and the broker keeps their compression. The broker stamps records. By a producer's
        clock, an hour ahead, it would reject them for ever, since their time does not change; and the ledger, which
        expires by this time, would drop old ones at once.
        """
        config = {
            "cleanup.policy": self.cleanup,
            "compression.type": "producer",
            "max.message.bytes": "1048576",
            "message.timestamp.type": "LogAppendTime",
        }
        if "delete" in self.cleanup:
            config["retention.ms"] = str(self.retention_ms)
        return config


TOPICS: tuple[TopicSpec, ...] = (
    TopicSpec(Topic.PROCESS, "processes", "process id", -1, cleanup="compact"),
    TopicSpec(Topic.KERNEL, "kernels", "process id", 3 * DAY_MS, joined=True),
    TopicSpec(Topic.MEMCPY, "memcpys", "process id", 3 * DAY_MS, joined=True),
    TopicSpec(Topic.COLLECTIVE, "collectives", "job:communicator", 7 * DAY_MS, joined=True),
    TopicSpec(Topic.STEP, "steps", "job", 7 * DAY_MS, joined=True),
    TopicSpec(Topic.RANGE, "ranges", "process id", 3 * DAY_MS),
    TopicSpec(
        Topic.DEVICE,
        "device_samples",
        "job, or GPU UUID where no job runs, or host without both",
        7 * DAY_MS,
        joined=True,
    ),
    TopicSpec(Topic.HOST, "host_samples", "job", 7 * DAY_MS, joined=True),
    TopicSpec(Topic.NETWORK, "network_samples", "host", 7 * DAY_MS),
    TopicSpec(Topic.CHECK, "checks", "host", 30 * DAY_MS),
    TopicSpec(Topic.PROGRESS, "progress", "job", 3 * DAY_MS, joined=True),
    TopicSpec(Topic.TRANSFER, "transfers", "job", 3 * DAY_MS, joined=True),
    TopicSpec(Topic.STACK, "stacks", "job", 7 * DAY_MS, joined=True),
    TopicSpec(Topic.LAUNCH, "launches", "process id", 3 * DAY_MS),
    TopicSpec(Topic.LAUNCH_COUNT, "launch_counts", "process id", 7 * DAY_MS),
    TopicSpec(Topic.STALL, "stalls", "process id", 7 * DAY_MS),
    TopicSpec(Topic.ITERATION, "iterations", "process id", 7 * DAY_MS),
    TopicSpec(Topic.REQUEST, "requests", "process id", 7 * DAY_MS),
    TopicSpec(Topic.KERNEL_FREQUENCY, "kernel_frequency", "process id", 7 * DAY_MS, derived=True),
    TopicSpec(Topic.MEMCPY_BANDWIDTH, "memcpy_bandwidth", "process id", 7 * DAY_MS, derived=True),
    TopicSpec(Topic.LATENESS, "lateness", "job", 7 * DAY_MS, derived=True, joined=True),
    TopicSpec(Topic.STRAGGLER, "stragglers", "job", 30 * DAY_MS, derived=True),
    TopicSpec(Topic.HANG, "hangs", "job", 30 * DAY_MS, derived=True),
    TopicSpec(
        Topic.TICK,
        "",
        "none; one empty record per partition and second",
        HOUR_MS,
        derived=True,
        dead_letters=False,
        joined=True,
    ),
    # A policy is in force for a week at most (control.py).
    TopicSpec(Topic.CONTROL, "", "its name", 8 * DAY_MS, cleanup="compact,delete", by_people=True, dead_letters=False),
)

#: Names of the tables, as people ask for them and settings name their retention.
TABLE_NAMES: dict[str, str] = {spec.topic: spec.table for spec in TOPICS if spec.table}
#: Topics of the producers, and of the stream worker, whose records are fenced by epochs.
RAW_TOPICS = tuple(spec.topic for spec in TOPICS if not spec.derived and not spec.by_people)
DERIVED_TOPICS = frozenset(spec.topic for spec in TOPICS if spec.derived)
#: Topics whose rows stay on their host (policy rollup); steps and collectives, which verdicts need, do not.
KEPT_TOPICS = frozenset({Topic.KERNEL, Topic.MEMCPY, Topic.RANGE})
#: Results that agents write too, of rows that stay on their hosts.
WINDOW_TOPICS = frozenset({Topic.KERNEL_FREQUENCY, Topic.MEMCPY_BANDWIDTH})
#: Topics that stream workers read: all have the same number of partitions.
JOINED_TOPICS = tuple(spec.topic for spec in TOPICS if spec.joined)
#: Topics from which compaction removes records by design: the newest of each key stays.
COMPACTED_TOPICS = frozenset(spec.topic for spec in TOPICS if "compact" in spec.cleanup)

DLQ_RETENTION_MS = 30 * DAY_MS


def dlq(topic: str) -> str:
    """Return the name of a topic's dead-letter topic: original key and bytes, headers with origin and reason."""
    return f"{topic}.dlq"


def dlq_config() -> dict[str, str]:
    """Return the configuration of dead-letter topics. Their records are larger than the origin's: headers are added."""
    return {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": "2097152",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": str(DLQ_RETENTION_MS),
    }
