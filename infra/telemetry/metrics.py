"""Every metric of every program, once: name, help, labels. docs/reference/metrics.md shows this list (a test compares).

A program has a registry of its own, so that it serves its metrics and no other's. Names follow Prometheus' rules:
drumline_<program>_<what>_<unit>, `_total` for counters. Label values are topics, tables, stages and short reasons: few,
known before, never of a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

Kind = Literal["counter", "gauge", "histogram"]
Program = Literal["stream", "sink", "agent"]

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRIES: dict[Program, CollectorRegistry] = {
    "stream": CollectorRegistry(),
    "sink": CollectorRegistry(),
    "agent": CollectorRegistry(),
}
for _registry in REGISTRIES.values():
    ProcessCollector(registry=_registry)  # memory, CPU time, open files: process_...
#: From a tick of the clock to a lost hour; s.
DELAYS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
#: One insert; s.
INSERTS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Rows of a batch or an insert.
ROWS = (1.0, 10.0, 100.0, 1_000.0, 4_096.0, 10_000.0, 30_000.0, 100_000.0, 300_000.0, 1_000_000.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """What a scrape shows. `name`: as scraped, with `_total`; a histogram's gets _bucket, _sum and _count."""

    program: Program
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]


#: All of them, in the order of their declaration below.
METRICS: list[Metric] = []


def _known(program: Program, what: str, kind: Kind, help: str, labels: tuple[str, ...]) -> str:
    name = f"drumline_{program}_{what}"
    METRICS.append(Metric(program, name, kind, help, labels))
    return name


def _counter(program: Program, what: str, help: str, *labels: str) -> Counter:
    return Counter(_known(program, what, "counter", help, labels), help, labels, registry=REGISTRIES[program])


def _gauge(program: Program, what: str, help: str, *labels: str) -> Gauge:
    return Gauge(_known(program, what, "gauge", help, labels), help, labels, registry=REGISTRIES[program])


def _histogram(program: Program, what: str, help: str, buckets: Sequence[float], *labels: str) -> Histogram:
    name = _known(program, what, "histogram", help, labels)
    return Histogram(name, help, labels, registry=REGISTRIES[program], buckets=buckets)


STREAM_RECORDS = _counter("stream", "input_records_total", "Kafka records handled", "topic")
STREAM_ROWS = _counter("stream", "input_rows_total", "rows in the Kafka records handled", "topic")
STREAM_BATCH = _histogram("stream", "input_batch_rows", "rows per Kafka record", ROWS, "topic")
STREAM_DELAY = _histogram(
    "stream", "input_delay_seconds", "from a batch being sent by its producer to its being handled", DELAYS, "topic"
)
STREAM_SENT = _counter("stream", "output_records_total", "result batches sent: windows, lateness, verdicts", "topic")
STREAM_SENT_ROWS = _counter("stream", "output_rows_total", "rows in the result batches sent", "topic")
STREAM_DROPPED = _counter(
    "stream", "dropped_rows_total", "rows that no result counts; late: too old for any window, or an impossible time",
    "stage", "reason",
)  # fmt: skip
STREAM_DUPLICATES = _counter(
    "stream", "duplicate_records_total",
    "batches that came again and were counted once: published twice, or read again after a kill", "stage",
)  # fmt: skip
STREAM_DEAD_LETTERS = _counter("stream", "dead_letters_total", "records sent to a dead-letter topic", "topic", "reason")
STREAM_DISOWNED = _counter(
    "stream", "disowned_records_total", "records left to the worker that their partition went to", "topic"
)
STREAM_TICKS_FAILED = _counter("stream", "failed_ticks_total", "ticks on which a stage failed: a defect", "stage")
STREAM_LAG = _gauge("stream", "lag_records", "records in this worker's partitions that it has not handled yet")
STREAM_PARTITIONS = _gauge("stream", "assigned_partitions", "partition numbers that this worker has")
STREAM_OPEN = _gauge("stream", "open_windows", "results that are still to be sent, or not acknowledged yet")
STREAM_UNSETTLED = _gauge("stream", "unsettled_records", "records handled whose results are not acknowledged yet")
STREAM_RETRIES = _counter(
    "stream", "retries_total", "times that something had to be tried again; of: registry, status (its file)", "of"
)
STREAM_REBALANCES = _counter("stream", "rebalances_total", "times that partitions were assigned anew")
STREAM_RECOVERIES = _counter("stream", "recoveries_total", "times that a stage's state was read back", "stage")
STREAM_COMMIT_AGE = _gauge(
    "stream", "last_commit_age_seconds", "since the last commit of offsets, or since the start if there was none"
)

SINK_RECORDS = _counter(
    "sink",
    "input_records_total",
    "Kafka records settled; verdict: stored, empty, duplicate or dead",
    "topic",
    "verdict",
)
SINK_ROWS = _counter("sink", "stored_rows_total", "rows stored and committed", "topic")
SINK_DROPPED = _counter(
    "sink", "dropped_rows_total", "rows that are not stored; source: the producer says it dropped them before sending; "
    "duplicate: stored from another record", "topic", "reason",
)  # fmt: skip
SINK_DEAD_LETTERS = _counter("sink", "dead_letters_total", "records sent to a dead-letter topic", "topic", "reason")
SINK_GAPS = _counter(
    "sink", "missing_offsets_total", "offsets that Kafka did not deliver (not in compacted topics)", "topic"
)
SINK_DELAY = _histogram(
    "sink", "delay_seconds", "from a batch being sent (window results: by the worker) to its rows being stored", DELAYS,
    "topic",
)  # fmt: skip
SINK_RESULT_DELAY = _histogram(
    "sink",
    "result_delay_seconds",
    "from the end of a window, in event time, to its result being stored",
    DELAYS,
    "topic",
)
SINK_INSERT = _histogram("sink", "insert_seconds", "time of an insert that succeeded", INSERTS, "table")
SINK_INSERT_ROWS = _histogram("sink", "insert_rows", "rows per insert", ROWS, "table")
SINK_RANGES = _counter("sink", "ranges_total", "offset ranges stored and committed", "topic")
SINK_REPLAYS = _counter(
    "sink", "replayed_ranges_total", "ranges that a predecessor had announced, finished here", "topic"
)
SINK_RETRIES = _counter(
    "sink", "retries_total", "times that something had to be tried again; "
    "of: clickhouse, kafka, dead_letters, registry", "of",
)  # fmt: skip
SINK_LAG = _gauge("sink", "lag_records", "records known to be in Kafka and not taken in yet, in this sink's partitions")
SINK_PARTITIONS = _gauge("sink", "assigned_partitions", "topic partitions that this sink has")
SINK_COLLECTED = _gauge("sink", "collected_rows", "rows taken in and not stored yet; about twice flush_rows at most")
SINK_REBALANCES = _counter("sink", "rebalances_total", "times that partitions were assigned anew")
SINK_COMMIT_AGE = _gauge(
    "sink", "last_commit_age_seconds", "since the last commit of stored rows, or since the start if there was none"
)

AGENT_RECORDS = _counter("agent", "published_records_total", "batches that Kafka acknowledged", "topic")
AGENT_ROWS = _counter("agent", "published_rows_total", "rows in the batches that Kafka acknowledged", "topic")
AGENT_BATCH = _histogram("agent", "published_batch_rows", "rows per batch that Kafka acknowledged", ROWS, "topic")
AGENT_DELAY = _histogram(
    "agent", "delay_seconds", "from a batch being sent into the spool to Kafka's acknowledgement", DELAYS, "topic"
)
AGENT_AGE = _gauge(
    "agent", "last_publication_age_seconds",
    "since Kafka last acknowledged a batch, or since the start if it did not yet",
)  # fmt: skip
AGENT_DROPPED = _counter(
    "agent", "dropped_rows_total", "rows that are not published. spool: thrown away in the full spool, refused: too "
    "large for Kafka (both told in dropped_before), left_out: unreadable", "topic", "reason",
)  # fmt: skip
AGENT_DAMAGED = _counter("agent", "damaged_bytes_total", "bytes of the spool that are no frame: of a killed writer")
AGENT_PROCESSES = _gauge("agent", "processes", "processes whose spool folders are there; alive: still writing", "state")
AGENT_SPOOL = _gauge("agent", "spool_bytes", "bytes that lie in the spool")
AGENT_GPUS = _gauge("agent", "gpus", "GPUs that are sampled; 0: no NVML, or it is lost at the moment")
AGENT_XIDS = _counter("agent", "xid_events_total", "XID events that NVML told of")
AGENT_ARCHIVED = _counter("agent", "archived_bytes_total", "compressed bytes that the storage has taken")
AGENT_ARCHIVE_BACKLOG = _gauge("agent", "archive_backlog_bytes", "bytes of segments that wait for the storage")
AGENT_ARCHIVE_DROPPED = _counter(
    "agent", "archive_dropped_bytes_total", "bytes of segments that are in Kafka but not in the archive"
)
AGENT_ARCHIVE_RETRIES = _counter("agent", "archive_retries_total", "times that the storage did not take a segment")
AGENT_WAITING = _gauge("agent", "unacknowledged_records", "batches handed to the Kafka client and not acknowledged yet")

# What is not there yet has no rate: the first event would be missed.
for _of in ("registry", "status"):
    STREAM_RETRIES.labels(_of)
for _of in ("clickhouse", "kafka", "dead_letters", "registry"):
    SINK_RETRIES.labels(_of)


def table() -> str:
    """All metrics as one Markdown table per program, for docs/reference/metrics.md."""
    out: list[str] = []
    for program in REGISTRIES:
        out += [f"### `drumline {program}`", "", "| metric | kind | labels | what |", "|---|---|---|---|"]
        for metric in METRICS:
            if metric.program == program:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                out.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
        out.append("")
    return "\n".join(out)
