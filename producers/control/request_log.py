"""Requests as the log of drumline.control.v1 has them: a record's key, its place and the broker's time are Kafka's.

What a sender states of these is not believed: with a clock that is wrong, or a name that is another's, a request would
come before a newer one, never be in force, or not be cleared by the name under which it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from drumline.schemas.control import MAX_POLICY_NS, BadControl, Control, decode


@dataclass(slots=True)
class ControlLog:
    """Reads records in the order of their partitions. Pure."""

    _newest_ns: dict[int, int] = field(default_factory=dict)

    def read(self, partition: int, key: bytes | None, value: bytes | None, at_ms: int) -> Control | None:
        """Return the request of a record, None for one that ends what has its key. Raises BadControl.

        `at_ms`: when the broker took it; ms since the epoch. Its times count from then on. `requested_ns` becomes its
        place in time: of two records of a partition the later one has the higher number, also if the broker's clock
        went back.
        """
        at_ns = at_ms * 1_000_000
        self._newest_ns[partition] = order_ns = max(at_ns, self._newest_ns.get(partition, 0) + 1)
        if value is None:
            return None
        control = decode(value)
        later_ns = at_ns - control.requested_ns
        if not -MAX_POLICY_NS <= control.start_ns + later_ns - at_ns <= MAX_POLICY_NS:
            raise BadControl("it begins days before or after it was asked")
        return replace(
            control, key=name_of(key), requested_ns=order_ns,
            start_ns=control.start_ns + later_ns, until_ns=control.until_ns + later_ns,
        ).checked()  # fmt: skip


def name_of(key: bytes | None) -> str:
    """Return the name of a request: its Kafka key. One that is no text is named as no request can be: ""."""
    try:
        return (key or b"").decode()
    except UnicodeDecodeError:
        return ""
