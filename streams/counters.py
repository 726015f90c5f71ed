"""Every counter of the stream worker, in one place. Whoever serves metrics serves REGISTRY."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

REGISTRY = CollectorRegistry()


def _counter(name: str, what: str, *labels: str) -> Counter:
    return Counter(f"drumline_stream_{name}", what, labels, registry=REGISTRY)


#: Kafka records handled, by topic.
MESSAGES = _counter("messages", "Kafka records handled", "topic")
#: Rows in them.
ROWS = _counter("rows", "rows in the Kafka records handled", "topic")
#: Batches sent, by topic: windows, lateness, verdicts.
SENT = _counter("sent", "result batches sent", "topic")
#: Records that could not be read or processed, by topic and kind of error.
DEAD_LETTERS = _counter("dead_letters", "records sent to a dead-letter topic", "topic", "error")
#: Messages of partitions that had gone to another worker meanwhile; it handles them.
DISOWNED = _counter("disowned", "records left to the partition's new owner", "topic")
#: Times the state was read back from the changelogs.
RECOVERIES = _counter("recoveries", "times a stage's state was restored", "stage")
#: Records that the worker's partitions hold and it has not handled, as of the last tick.
LAG = Gauge("drumline_stream_lag_records", "records not handled yet, of this worker's partitions", registry=REGISTRY)
