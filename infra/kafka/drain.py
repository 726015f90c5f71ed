"""Waiting until the pipeline is drained: the stream workers of this machine, then the sinks of any machine.

Every worker writes a status file each second (worker_status.py). A worker is drained if two statuses in a row have no
open window, no result in flight and the same number of processed records, and if the end offsets queried between the
two are not beyond its positions. The sinks are drained when they have committed up to the ends of all topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.offsets import Offsets
from drumline.infra.kafka.worker_status import WorkerStatus, read_statuses
from drumline.schemas.model import has_schema
from drumline.schemas.topics import TOPICS


@dataclass(frozen=True, slots=True)
class Drained:
    """Result of a drain check; true if drained. `reason` is why it is not, or ""."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


def check_drained(
    before: Mapping[str, WorkerStatus], after: Mapping[str, WorkerStatus], ends: Mapping[str, int]
) -> Drained:
    """Compare two readings of all workers' statuses with the end offsets that were queried between them."""
    if not after:
        return Drained("no stream worker runs")
    owned = {number for status in after.values() for number in status["partitions"]}
    missing = set(range(max(status["of"] for status in after.values()))) - owned
    if missing:
        return Drained(f"no worker has partitions {sorted(missing)} yet")
    for name, status in after.items():
        old = before.get(name)
        if old is None or old["time_ns"] >= status["time_ns"]:
            return Drained(f"{name}: one more status to come")
        if old["open"] or status["open"]:
            return Drained(f"{name}: open {status['open']}")
        if old["unsettled"] or status["unsettled"]:
            return Drained(f"{name}: unsettled {status['unsettled']}")
        if old["handled"] != status["handled"]:
            return Drained(f"{name}: records still come")
        for where, position in status["positions"].items():
            if position is None or position < ends.get(where, 0):
                return Drained(f"{name}: {where} is at {position} of {ends.get(where, 0)}")
    return Drained()


def wait_drained(settings: Settings, timeout_s: float, meanwhile: Callable[[], object] = lambda: None) -> Drained:
    """Wait until the workers are drained; call it once the last input is in Kafka. Blocks for up to `timeout_s`.

    `meanwhile` is called on each poll; an exception of it ends the wait.
    Raises KafkaException if the broker does not answer.
    """
    kafka = Offsets(settings)
    since_ns, deadline = time.time_ns(), time.monotonic() + timeout_s
    before: dict[str, WorkerStatus] = {}
    ends: dict[str, int] = {}
    while True:
        after = read_statuses(settings, since_ns)
        result = check_drained(before, after, ends)
        if result or time.monotonic() > deadline:
            return result
        if all(name not in before or before[name]["time_ns"] < status["time_ns"] for name, status in after.items()):
            before = after
            ends = kafka.ends({where for status in after.values() for where in status["positions"]})
        meanwhile()
        time.sleep(0.25)


def wait_stored(settings: Settings, timeout_s: float, meanwhile: Callable[[], object] = lambda: None) -> Drained:
    """Wait until the workers and then the sinks are drained: all records and results are stored. As `wait_drained`."""
    deadline = time.monotonic() + timeout_s
    drained = wait_drained(settings, timeout_s, meanwhile)
    if not drained:
        return drained
    with closing(Offsets(settings)) as kafka:
        ends = kafka.ends(kafka.places([spec.topic.value for spec in TOPICS if has_schema(spec.topic)]))
        while True:
            behind = kafka.behind(settings.sink.group, ends)
            if not behind:
                return Drained()
            if time.monotonic() > deadline:
                return Drained(f"the sinks have not stored {', '.join(behind)} to the end")
            meanwhile()
            time.sleep(0.25)
