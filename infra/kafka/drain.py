"""Wait until everything has been worked off: by the stream workers on this machine (no lag, no open window, nothing in
flight), and by the sinks, wherever they are.

Every worker writes a status file each second (worker_status.py). Nothing follows if, in two statuses of every worker,
nothing is open and the same number of records was handled, and the broker, asked between the two, has no more than they
say was applied. Then everything is stored when the sinks have committed up to the ends of all topics.
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
    """`reason`: why it is not drained, in words, or ""."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


def check_drained(
    before: Mapping[str, WorkerStatus], after: Mapping[str, WorkerStatus], ends: Mapping[str, int]
) -> Drained:
    """From two readings of all workers' statuses, and what the broker said between them. Pure."""
    if not after:
        return Drained("no stream worker runs")
    owned = {number for status in after.values() for number in status["partitions"]}
    missing = set(range(max(status["of"] for status in after.values()))) - owned
    if missing:
        return Drained(f"nobody has partitions {sorted(missing)} yet")
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
    """Workers only. Call it once the last input is in Kafka. True when worked off, else what was still missing after
    `timeout_s`. `meanwhile` is called again and again; what it raises ends the waiting.

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
    """Workers, then sinks: after it, every record and every result of it is in its table. Else as `wait_drained`."""
    deadline = time.monotonic() + timeout_s
    drained = wait_drained(settings, timeout_s, meanwhile)
    if not drained:
        return drained
    with closing(Offsets(settings)) as kafka:
        ends = kafka.ends(kafka.places([spec.topic.value for spec in TOPICS if has_schema(spec.topic)]))
        while True:
            stored = kafka.committed(settings.sink.group, ends)
            behind = [where for where, end in sorted(ends.items()) if stored.get(where, (0, ""))[0] < end]
            if not behind:
                return Drained()
            if time.monotonic() > deadline:
                return Drained(f"the sinks have not stored {', '.join(behind)} to the end")
            meanwhile()
            time.sleep(0.25)
