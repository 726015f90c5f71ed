"""The state of a run as the headline of its page has it: it stands still, runs, or has ended, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drumline.views.report.data import Row


@dataclass(frozen=True)
class Headline:
    """State of a run. level: "hung", "standing", "running" or "ended"; text: the same with its time, UTC."""

    level: str
    text: str


def headline(run: Row, is_live: bool, hangs: Sequence[Row]) -> Headline:
    """Return the state of a run. `hangs`: rows of HANGS; one that lasts outranks all else, as on the fleet's page."""
    lasting = next((row for row in hangs if row["lasts"]), None)
    if lasting is not None:
        name = "hung" if lasting["state"] == "hung" else "stands still"
        return Headline(lasting["state"], f"{name} since {lasting['started'][:19]} UTC")
    if is_live:
        return Headline("running", f"running since {run['started'][:19]} UTC")
    return Headline("ended", f"ended, last data {run['last_record'][:19]} UTC")
