"""Links of a job's hosts while it was slow: the evidence that joins a verdict `slow_link` with gpu.network.v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from drumline.schemas.counters import LINK_ERROR_COLUMNS

if TYPE_CHECKING:
    from drumline.views.report.data import Query, Row

#: Links that are named.
NAMED = 3

_SUM = "toInt64(sum({}))"
_ERRORS = " + ".join(f"ifNull({name}, 0)" for name in LINK_ERROR_COLUMNS)
LINKS = f"""
SELECT n.host AS host, n.device AS device, argMaxIf(n.reason, n.time, n.reason != '') AS wrong,
       {_SUM.format(_ERRORS)} AS errors, {_SUM.format("ifNull(n.link_downs, 0)")} AS downs,
       {_SUM.format("ifNull(n.recoveries, 0)")} AS trained, {_SUM.format("ifNull(n.timeouts, 0)")} AS unanswered,
       count() OVER () AS links
FROM network_samples AS n
WHERE host IN (SELECT host FROM processes WHERE job = {{job:String}} AND run = {{run:String}}
               AND (rank = {{rank:Int32}} OR {{rank:Int32}} < 0))
    AND time >= {{started:DateTime64(9, 'UTC')}} AND time <= {{ended:DateTime64(9, 'UTC')}} + INTERVAL 10 SECOND
GROUP BY host, device
ORDER BY (wrong != '', downs, errors, trained, unanswered) DESC, host, device LIMIT {NAMED}
"""
_COUNTS = {"errors": "errors", "downs": "outages", "trained": "new trainings", "unanswered": "timeouts"}


def link_evidence(query: Query, place: Mapping[str, Any]) -> list[str]:
    """Return what links of the hosts did in an episode; [] where none was sampled.

    place: job, run, rank (-1: all of the run), started and ended. Raises the query's ClickHouseFailed.
    """
    rows = query(LINKS, place)
    texts = [f"{row['host']} {row['device']}: {text}" for row in rows if (text := _text(row))]
    if rows and not texts:
        texts = [f"none of {rows[0]['links']} links of its hosts was down, slow or had errors"]
    return texts


def _text(row: Row) -> str:
    counts = [f"{text}: {row[name]:,}" for name, text in _COUNTS.items() if row[name]]
    return "; ".join([row["wrong"]] * bool(row["wrong"]) + counts)
