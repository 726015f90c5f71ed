"""SQL of the attempts of a run: step numbers repeat in them, so a plot by step shows one of them."""

from __future__ import annotations


def of_attempt(until: str = "") -> str:
    """Return a condition on `start`: the newest attempt of `job`, `run` that began by `until`, or of all.

    A run with one attempt has no limit: hosts' clocks may be minutes apart.
    """
    begun = f"AND a.attempt_start <= {until}" if until else ""
    return f"""start >= (
        SELECT if(count() > 1, max(a.attempt_start), toDateTime64(0, 9, 'UTC')) FROM attempts AS a
        WHERE a.job = {{job:String}} AND a.run = {{run:String}} {begun}
    )"""
