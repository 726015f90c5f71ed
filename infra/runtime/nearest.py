"""The question about a misspelt name: which of the names that there are was meant. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def did_you_mean(names: Sequence[str]) -> str:
    """Return the question whether one of these names was meant, the nearest first; "" without any."""
    return f"did you mean {' or '.join(names)}?" if names else ""
