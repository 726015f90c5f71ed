"""Which drumline this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def drumline_version() -> str:
    """The installed package's version; "0+unknown" where the code runs from a tree that nobody installed."""
    try:
        return version("drumline")
    except PackageNotFoundError:
        return "0+unknown"
