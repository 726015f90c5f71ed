"""The version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def drumline_version() -> str:
    """Return the version of the installed package; "0+unknown" where the code runs from a tree without one."""
    try:
        return version("drumline")
    except PackageNotFoundError:
        return "0+unknown"
