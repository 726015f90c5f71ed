"""Sums of host time in one step, as the text that the mark behind the step carries."""

from __future__ import annotations

from collections.abc import Sequence

#: Columns of gpu.step.v1, in the order of the numbers; the last one is missing where it is not measured.
COLUMNS = ("load_ns", "gc_ns", "checkpoint_ns", "sync_ns")
#: Unit of the numbers: with 28 bits each, four of up to 44 minutes fit into the name of a mark in a ring (32 bytes).
UNIT_NS = 10_000
_MOST = (1 << 28) - 1


def to_text(sums_ns: Sequence[int]) -> str:
    """Return the text of sums."""
    return ",".join([f"{min(ns // UNIT_NS, _MOST):x}" for ns in sums_ns])


def from_text(text: str) -> tuple[int, ...]:
    """Return the sums in a text, a value for each column; -1 where it has none. Any text is accepted."""
    parts = text.split(",") if text else []
    try:
        sums = [int(part, 16) * UNIT_NS for part in parts[: len(COLUMNS)]]
    except ValueError:
        sums = []
    return (*(value if 0 <= value <= _MOST * UNIT_NS else -1 for value in sums), *(-1,) * (len(COLUMNS) - len(sums)))
