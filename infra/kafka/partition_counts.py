"""Settings, and topics to create anew, with which all topics have the numbers of partitions that are declared.

Stream workers join topics by partition number, so those have one number. Kafka adds partitions and removes none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from drumline.schemas.topics import JOINED_TOPICS, TOPICS


@dataclass(frozen=True, slots=True)
class Remedy:
    """States one way to topics that are as declared.

    `partitions`: of topics without a number of their own; None = as set. `topic_partitions`: topic -> its number; None
    = as set. `recreated`: topics to delete, which `drumline topics apply` then creates.
    """

    partitions: int | None = None
    topic_partitions: dict[str, int] | None = None
    recreated: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return what to do, in one sentence without its end."""
        values = []
        if self.partitions is not None:
            values.append(f"DRUMLINE_KAFKA__PARTITIONS={self.partitions}")
        if self.topic_partitions is not None:
            values.append(f"DRUMLINE_KAFKA__TOPIC_PARTITIONS='{json.dumps(self.topic_partitions)}'")
        steps = [f"set {' and '.join(values)} for all programs"] if values else []
        if self.recreated:
            steps.append(
                "when `drumline audit` has no records that wait, stop all programs, delete the topics "
                f"{', '.join(self.recreated)} (kafka-topics --delete), with what they hold"
            )
        return "; ".join([*steps, "run `drumline topics apply`"])


def remedies(declared: Mapping[str, int], existing: Mapping[str, int]) -> list[Remedy]:
    """Return the ways out of differing numbers of partitions: the one that keeps most topics, then the declared one.

    `declared`, `existing`: topic -> partitions, dead-letter topics left out. Empty if nothing differs.
    """
    differing = tuple(name for name, number in declared.items() if existing.get(name, number) != number)
    if not differing:
        return []
    as_declared = Remedy(recreated=differing)
    joined = {name: existing[name] for name in map(str, JOINED_TOPICS) if name in existing and name in declared}
    declared_number = next((declared[name] for name in map(str, JOINED_TOPICS) if name in declared), None)
    if declared_number is None:  # not drumline's topics
        return [as_declared]
    counted = Counter(joined.values())
    number = min(counted, key=lambda count: (-counted[count], count)) if counted else declared_number
    unjoined = [str(spec.topic) for spec in TOPICS if not spec.joined and spec.topic in declared]
    counts = {name: _kept(name, declared, existing, declared_number, number) for name in unjoined}
    several = {name: count for name, count in counts.items() if count != number}
    before = {name: count for name, count in declared.items() if count != declared_number}
    keeping = Remedy(
        number if number != declared_number else None,
        several if several != before else None,
        tuple(name for name, count in joined.items() if count != number),
    )
    return [keeping] if keeping == as_declared else [keeping, as_declared]


def _kept(
    topic: str, declared: Mapping[str, int], existing: Mapping[str, int], declared_number: int, number: int
) -> int:
    """Return the number of a topic that keeps what it has, or what a setting gives it; else `number`."""
    given = declared.get(topic, declared_number)
    return existing.get(topic, given if given != declared_number else number)


def joined_differ(declared: Mapping[str, int], existing: Mapping[str, int]) -> bool:
    """Return whether a topic that stream workers read has another number than declared: none is created beside it."""
    return any(existing.get(name, number) != number for name, number in declared.items() if name in JOINED_TOPICS)
