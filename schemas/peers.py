"""Choice of the healthy rank that a late one is compared with: all programs choose the same. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def healthy_peer(healthy: Iterable[tuple[int, str]], host: str) -> int:
    """Return the lowest of healthy ranks, each with its host: of the late rank's host if there is one; -1 = none."""
    return min(((place != host, rank) for rank, place in healthy if rank >= 0), default=(False, -1))[1]


def with_peer(late: int, host: str, healthy: Iterable[tuple[int, str]]) -> list[int]:
    """Return the ranks that a deep window about a late rank records: it, and its healthy peer if there is one."""
    return sorted({late, healthy_peer(healthy, host)} - {-1})
