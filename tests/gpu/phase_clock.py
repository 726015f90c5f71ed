"""Clock of the phases, and files that ranks read whole: shared by the plans of causes_faults.py and zoo_plan.py."""

from collections.abc import Iterable
from pathlib import Path


def phase_at(seconds: Iterable[float], elapsed: float) -> int:
    """Return the number of the phase that it is `elapsed` seconds after the first one began; behind the last: their
    number.
    """
    number = 0
    for length in seconds:
        if elapsed < length:
            break
        elapsed -= length
        number += 1
    return number


def write_whole(path: Path, text: str) -> None:
    """Write a file that nobody reads half written."""
    written = path.with_suffix(".new")
    written.write_text(text)
    written.rename(path)
