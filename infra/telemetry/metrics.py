"""All metrics of all programs: name, help, labels. docs/reference/metrics.md lists them.

Each program has its own registry, so that it serves only its metrics. Names follow Prometheus' rules:
drumline_<program>_<subject>_<unit>, `_total` for counters. Label values are topics, tables, stages and short reasons: a
small fixed set, never part of a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

Kind = Literal["counter", "gauge", "histogram"]
Program = Literal["stream", "sink", "agent", "exporter"]

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRIES: dict[Program, CollectorRegistry] = {
    "stream": CollectorRegistry(),
    "sink": CollectorRegistry(),
    "agent": CollectorRegistry(),
    "exporter": CollectorRegistry(),
}
for _registry in REGISTRIES.values():
    ProcessCollector(registry=_registry)  # memory, CPU time, open files: process_...
#: Buckets of delays, up to an hour; s.
DELAYS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
#: Buckets of the duration of an insert; s.
INSERTS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Buckets of the rows of a batch or an insert.
ROWS = (1.0, 10.0, 100.0, 1_000.0, 4_096.0, 10_000.0, 30_000.0, 100_000.0, 300_000.0, 1_000_000.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as a scrape shows it: `name` includes `_total`; a histogram adds _bucket, _sum and _count."""

    program: Program
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]


#: All of them, in the order of their declaration below.
METRICS: list[Metric] = []


def _known(program: Program, subject: str, kind: Kind, help: str, labels: tuple[str, ...]) -> str:
    name = f"drumline_{program}_{subject}"
    METRICS.append(Metric(program, name, kind, help, labels))
    return name


def _counter(program: Program, subject: str, help: str, *labels: str) -> Counter:
    return Counter(_known(program, subject, "counter", help, labels), help, labels, registry=REGISTRIES[program])


def _gauge(program: Program, subject: str, help: str, *labels: str) -> Gauge:
    return Gauge(_known(program, subject, "gauge", help, labels), help, labels, registry=REGISTRIES[program])


def _histogram(program: Program, subject: str, help: str, buckets: Sequence[float], *labels: str) -> Histogram:
    name = _known(program, subject, "histogram", help, labels)
    return Histogram(name, help, labels, registry=REGISTRIES[program], buckets=buckets)


STREAM_RECORDS = _counter("stream", "input_records_total", "Kafka records processed", "topic")
STREAM_ROWS = _counter("stream", "input_rows_total", "rows in the Kafka records processed", "topic")
STREAM_BATCH = _histogram("stream", "input_batch_rows", "rows per Kafka record", ROWS, "topic")
STREAM_DELAY = _histogram(
    "stream",
    "input_delay_seconds",
    "time from the sending of a batch by its producer to its processing",
    DELAYS,
    "topic",
)
STREAM_SENT = _counter("stream", "output_records_total", "result batches sent: windows, lateness, verdicts", "topic")
STREAM_SENT_ROWS = _counter("stream", "output_rows_total", "rows in the result batches sent", "topic")
STREAM_DROPPED = _counter(
    "stream", "dropped_rows_total",
    "rows that no result counts; late: too old, or an impossible time; budget: while state is full; repeated: of a "
    "batch too old to compare",
    "stage", "reason",
)  # fmt: skip
STREAM_DUPLICATES = _counter(
    "stream", "duplicate_records_total",
    "repeated batches, counted once: published twice, or read again after a kill", "stage",
)  # fmt: skip
STREAM_CONFLICTS = _counter(
    "stream", "conflicting_records_total",
    "batches with the process and sequence of an applied one and other content; both count", "stage",
)  # fmt: skip
STREAM_DEAD_LETTERS = _counter("stream", "dead_letters_total", "records sent to a dead-letter topic", "topic", "reason")
STREAM_DISOWNED = _counter(
    "stream", "disowned_records_total", "records left to the worker that now has their partition", "topic"
)
STREAM_FENCED = _counter(
    "stream", "fenced_records_total", "records ignored, since their writer had lost its partition", "topic"
)
STREAM_UNREADABLE = _counter(
    "stream", "unreadable_batches_total", "batches that do not unpack to 32 MiB at most; each is a dead letter", "topic"
)
STREAM_HALTS = _counter("stream", "halts_total", "times that the worker was halted for longer than its session")
#: Program -> gauge that serve_health connects with its readiness.
READY = {program: _gauge(program, "ready", "1 while `/readyz` is 200, else 0") for program in REGISTRIES}
STREAM_CLOCK_SKEW = _gauge("stream", "clock_skew_seconds", "how far this host's clock is ahead of the broker's")
STREAM_QUARANTINED = _counter(
    "stream", "quarantined_units_total",
    "processes, communicators or runs whose state was dropped; failed: an error, budget: a value that Kafka rejects",
    "stage", "reason",
)  # fmt: skip
STREAM_TICKS_FAILED = _counter("stream", "failed_ticks_total", "ticks on which a stage failed: a defect", "stage")
STREAM_LAG = _gauge("stream", "lag_records", "records in this worker's partitions that are not processed yet")
STREAM_PARTITIONS = _gauge("stream", "assigned_partitions", "partition numbers assigned to this worker")
STREAM_OPEN = _gauge("stream", "open_windows", "results that are not sent, or not acknowledged yet")
STREAM_UNSETTLED = _gauge(
    "stream", "unsettled_records", "processed records whose results and state Kafka does not have yet"
)
STREAM_EXPIRED = _counter(
    "stream", "expired_records_total", "records that Kafka's retention deleted before they were processed", "topic"
)
STREAM_RETRIES = _counter("stream", "retries_total", "retries; of: registry, status (the status file)", "of")
STREAM_REBALANCES = _counter("stream", "rebalances_total", "times that partitions were reassigned")
STREAM_RECOVERIES = _counter(
    "stream", "recoveries_total", "times that a stage's state was restored from its changelog", "stage"
)
STREAM_COMMIT_AGE = _gauge(
    "stream", "last_commit_age_seconds", "time since the last commit of offsets, or since the start if there was none"
)

SINK_RECORDS = _counter(
    "sink",
    "input_records_total",
    "Kafka records with a disposition: stored, empty, duplicate, fenced, expired or dead_letter",
    "topic",
    "disposition",
)
SINK_ROWS = _counter("sink", "stored_rows_total", "rows stored and committed", "topic")
SINK_DROPPED = _counter(
    "sink", "dropped_rows_total", "rows that are not stored; source: dropped by the producer before sending; "
    "duplicate: stored from another record; fenced: results of a worker that had lost its partition", "topic", "reason",
)  # fmt: skip
SINK_DEAD_LETTERS = _counter("sink", "dead_letters_total", "records sent to a dead-letter topic", "topic", "reason")
SINK_CONFLICTS = _counter(
    "sink", "conflicting_records_total",
    "records with the process, key and sequence of a stored one and other content; both are stored", "topic",
)  # fmt: skip
SINK_GAPS = _counter(
    "sink", "missing_offsets_total", "offsets that Kafka did not deliver (not in compacted topics)", "topic"
)
SINK_DELAY = _histogram(
    "sink", "delay_seconds", "time from the sending of a batch (results: by the worker) to the storage of its rows",
    DELAYS,
    "topic",
)  # fmt: skip
SINK_RESULT_DELAY = _histogram(
    "sink",
    "result_delay_seconds",
    "time from the end of a window, in event time, to the storage of its result",
    DELAYS,
    "topic",
)
SINK_INSERT = _histogram("sink", "insert_seconds", "duration of successful inserts", INSERTS, "table")
SINK_INSERT_ROWS = _histogram("sink", "insert_rows", "rows per insert", ROWS, "table")
SINK_RANGES = _counter("sink", "ranges_total", "offset ranges stored and committed", "topic")
SINK_REPLAYS = _counter(
    "sink", "replayed_ranges_total", "ranges with a committed intent of a predecessor, completed by this sink", "topic"
)
SINK_UNREADABLE = _counter(
    "sink",
    "unreadable_batches_total",
    "batches that Kafka's client cannot unpack; each becomes one dead letter",
    "topic",
)
SINK_FLOODS = _counter(
    "sink",
    "flood_events_total",
    "floods of dead letters, of one producer or of a partition (it is read more slowly)",
    "topic",
)
SINK_SPLITS = _counter(
    "sink",
    "split_ranges_total",
    "ranges that ClickHouse rejects: split, or a single record made a dead letter",
    "topic",
)
SINK_INCOMPLETE = _counter(
    "sink",
    "incomplete_ranges_total",
    "ranges whose rows are stored, while a rollup may lack them; `drumline audit` names it",
    "topic",
)
SINK_EXPIRED = _counter(
    "sink", "expired_rows_total", "rows in no table because of their age. arrival: Kafka got them before the "
    "retention; repeated: of batches whose stored rows have expired",
    "topic", "reason",
)  # fmt: skip
SINK_DEFERRED = _gauge("sink", "deferred_partitions", "partitions that wait while ClickHouse rejects their range")
SINK_RETRIES = _counter(
    "sink", "retries_total", "retries; "
    "of: clickhouse, kafka, dead_letters, registry", "of",
)  # fmt: skip
SINK_LAG = _gauge("sink", "lag_records", "records in this sink's partitions that are in Kafka and not taken in yet")
SINK_PARTITIONS = _gauge("sink", "assigned_partitions", "topic partitions assigned to this sink")
SINK_COLLECTED = _gauge("sink", "collected_rows", "rows taken in and not stored yet; about twice flush_rows at most")
SINK_REBALANCES = _counter("sink", "rebalances_total", "times that partitions were reassigned")
SINK_COMMIT_AGE = _gauge(
    "sink", "last_commit_age_seconds", "time since the last commit of stored rows, or since the start if there was none"
)

AGENT_RECORDS = _counter("agent", "published_records_total", "batches that Kafka acknowledged", "topic")
AGENT_ROWS = _counter("agent", "published_rows_total", "rows in the batches that Kafka acknowledged", "topic")
AGENT_BATCH = _histogram("agent", "published_batch_rows", "rows per batch that Kafka acknowledged", ROWS, "topic")
AGENT_DELAY = _histogram(
    "agent",
    "delay_seconds",
    "time from the writing of a batch to the spool to Kafka's acknowledgement",
    DELAYS,
    "topic",
)
AGENT_AGE = _gauge(
    "agent", "last_publication_age_seconds",
    "time since Kafka last acknowledged a batch, or since the start if there was none",
)  # fmt: skip
AGENT_OLD = _counter(
    "agent", "old_rows_total", "rows that Kafka acknowledged, older than their table's retention: after a long outage, "
    "or out of an archive; they are kept for the retention from then on", "topic",
)  # fmt: skip
AGENT_DROPPED = _counter(
    "agent", "dropped_rows_total", "rows not published. spool: evicted, rejected: too large for Kafka (both are in "
    "dropped_before), left_out: unreadable; in no window of the host: quarantined, budget, repeated; "
    "not_kept, unsaved", "topic", "reason",
)  # fmt: skip
AGENT_KEPT = _counter("agent", "kept_rows_total", "rows that stay on the host and are counted in windows", "topic")
AGENT_KEPT_BYTES = _gauge("agent", "kept_bytes", "bytes of the rows that stay on the host, compressed")
AGENT_PULLED = _counter("agent", "pulled_rows_total", "rows that stayed on the host and were asked for", "topic")
AGENT_DAMAGED = _counter(
    "agent", "damaged_bytes_total", "bytes of the spool that are no frame, left by a killed writer"
)
AGENT_BLOCKED = _gauge(
    "agent",
    "blocked_folders",
    "folders of the spool that cannot be published now, or wait for others of their user; the log has the reasons",
)
AGENT_PROCESSES = _gauge(
    "agent", "processes", "processes with a spool folder; alive: still writing, exited: not", "state"
)
AGENT_SPOOL = _gauge("agent", "spool_bytes", "bytes in the spool")
AGENT_RINGS = _gauge("agent", "rings", "processes whose NCCL operations are read from a ring")
AGENT_RINGS_BLOCKED = _gauge(
    "agent", "blocked_rings",
    "files in the folder of rings that cannot be read, or wait for others of their user; the log has the reasons",
)  # fmt: skip
AGENT_RING_OPERATIONS = _counter("agent", "ring_operations_total", "NCCL operations read from rings")
AGENT_RING_DROPPED = _counter(
    "agent", "ring_dropped_operations_total", "NCCL operations without rows. full: the ring was full, unknown: without "
    "times, untrusted: with those of older operations, denied: of communicators for which a ring has no room", "reason",
)  # fmt: skip
AGENT_RING_BEHIND = _gauge("agent", "ring_behind_records", "records in all rings that are not published yet")
AGENT_GPUS = _gauge("agent", "gpus", "GPUs that are sampled; 0: NVML is not available")
AGENT_SAMPLED = _gauge("agent", "sampled_processes", "processes whose counters in /proc are sampled")
AGENT_CONNECTIONS_UNSEEN = _gauge(
    "agent", "unseen_connections_processes", "recorded processes whose TCP connections cannot be seen; the log has why"
)  # fmt: skip
AGENT_CONNECTIONS_LEFT_OUT = _counter(
    "agent", "left_out_connection_rows_total", "rows of TCP connections beyond those of a process that carry most"
)  # fmt: skip
AGENT_XIDS = _counter("agent", "xid_events_total", "XID events reported by NVML")
AGENT_STACKS = _counter(
    "agent",
    "stack_samplings_total",
    "samplings of Python stacks for a verdict, by outcome: sampled, denied, failed, old, budget, off",
    "outcome",
)
AGENT_RAS = _counter(
    "agent",
    "ras_requests_total",
    "requests to NCCL's RAS about standing jobs, by outcome: answered, none (or an older NCCL), failed, left_out",
    "outcome",
)
AGENT_ARCHIVED = _counter("agent", "archived_bytes_total", "compressed bytes accepted by the storage")
AGENT_ARCHIVE_BACKLOG = _gauge("agent", "archive_backlog_bytes", "bytes of segments that wait for the storage")
AGENT_ARCHIVE_DROPPED = _counter(
    "agent", "archive_dropped_bytes_total", "bytes of segments that are in Kafka but not in the archive"
)
AGENT_ARCHIVE_RETRIES = _counter("agent", "archive_retries_total", "times that the storage did not accept a segment")
AGENT_WAITING = _gauge("agent", "unacknowledged_records", "batches in the Kafka client that are not acknowledged yet")

EXPORTER_RECORDS = _counter("exporter", "input_records_total", "Kafka records read", "topic")
EXPORTER_LEFT = _counter(
    "exporter", "ignored_records_total", "records without effect. unreadable; fenced: of a worker that had "
    "lost its partition; old: a newer revision or window was known; too_many: requests without room for spans",
    "topic", "reason",
)  # fmt: skip
EXPORTER_LEFT_OUT = _gauge(
    "exporter", "unlisted_units",
    "what has no series of its own because of the limits: job, rank (it is in the rest of its job), gpu", "kind",
)  # fmt: skip
EXPORTER_SERIES = _gauge("exporter", "series", "series about jobs, ranks and GPUs")
EXPORTER_RENDER = _gauge("exporter", "render_seconds", "time that it took to render them; a scrape only sends them")
EXPORTER_EXPORTS = _counter(
    "exporter", "exports_total",
    "exports to a receiver: metrics, events or spans by OTLP, events to NVSentinel, by outcome", "to", "outcome",
)  # fmt: skip

# A series without a sample has no rate: the first event would be missed.
for _of in ("registry", "status"):
    STREAM_RETRIES.labels(_of)
for _of in ("clickhouse", "kafka", "dead_letters", "registry"):
    SINK_RETRIES.labels(_of)


def table() -> str:
    """Return all metrics as one Markdown table per program, for docs/reference/metrics.md."""
    out: list[str] = []
    for program in REGISTRIES:
        out += [f"### `drumline {program}`", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for metric in METRICS:
            if metric.program == program:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                out.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
        out.append("")
    return "\n".join(out)
