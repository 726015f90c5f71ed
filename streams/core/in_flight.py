"""The returned batches of a stage that the broker has not acknowledged yet, by unit."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Unit = TypeVar("Unit", bound=Hashable)
Value = TypeVar("Value")


class InFlight(Generic[Unit, Value]):
    """Keeps a value for each batch in flight: unit -> sequence -> (value, worker's clock at the emission)."""

    def __init__(self) -> None:
        self._units: dict[Unit, dict[int, tuple[Value, int]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._units.values()))

    def add(self, unit: Unit, sequence: int, value: Value, now_ns: int) -> None:
        """Record the emission of a batch."""
        self._units.setdefault(unit, {})[sequence] = value, now_ns

    def settle(self, unit: Unit, sequence: int) -> Value | None:
        """Forget a batch; return its value, None if it is not in flight."""
        batches = self._units.get(unit, {})
        value, _ = batches.pop(sequence, (None, 0))
        if not batches:
            self._units.pop(unit, None)
        return value

    def of(self, unit: Unit) -> Iterable[Value]:
        """Return the values of a unit's batches."""
        return [value for value, _ in self._units.get(unit, {}).values()]

    def expired(self, before_ns: int) -> list[tuple[Unit, int, Value]]:
        """Return (unit, sequence, value) of batches that were emitted before a time."""
        return [
            (unit, sequence, value)
            for unit, batches in self._units.items()
            for sequence, (value, emitted_ns) in batches.items()
            if emitted_ns < before_ns
        ]
