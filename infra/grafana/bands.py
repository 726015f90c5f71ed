"""SQL that bounds the lines of a panel, however many ranks, GPUs or jobs there are."""

from __future__ import annotations

#: Lines of their own at most; with four bands below a panel's 20.
WORST = 10
#: Name of a band -> SQL of it over the values `v` of all at one time.
BANDS = {
    "lowest": "min(v)",
    "median": "quantileExactInclusive(0.5)(v)",
    "p95": "quantileExactInclusive(0.95)(v)",
    "highest": "max(v)",
}
#: What a panel has instead of a line for each: columns of `banded`.
BAND_COLUMNS = "time:t lowest:n median:n p95:n highest:n"


def banded(rows: str) -> str:
    """Return the bands alone. `rows`: a SELECT of `time` and `v`, one row for each time and rank."""
    bands = ", ".join(f"toFloat64({value}) AS {name}" for name, value in BANDS.items())
    return f"SELECT time, {bands} FROM ({rows}) GROUP BY time ORDER BY time"


def worst(rows: str, value: str, by: str = "max(v)", prefix: str = "", bands: bool = True) -> str:
    """Return the WORST of all over the whole time range, and bands of all where there are more.

    rows: a SELECT of `time`, `member` (a string) and `v`, one row for each time and rank. by: an aggregate of `v`; the
    largest are the worst. Columns: `time`, `series` (the name of a line), `member` (empty for a band), `value`.
    """
    pairs = ", ".join(f"('{name} of all', '', toFloat64({band}))" for name, band in BANDS.items())
    of_all = f"if(max(members) > {WORST}, [{pairs}], [])" if bands else "[]"
    return f"""
    SELECT time, line.1 AS series, line.2 AS member, line.3 AS {value} FROM (
        SELECT time, arrayConcat({of_all},
            groupArrayIf((concat('{prefix}', member), member, toFloat64(v)), place <= {WORST})) AS lines
        FROM (
            SELECT time, member, v, members, dense_rank() OVER (ORDER BY badness DESC, member) AS place FROM (
                SELECT time, member, v, uniqExact(member) OVER () AS members, {by} OVER (PARTITION BY member) AS badness
                FROM ({rows})
            )
        ) GROUP BY time
    ) ARRAY JOIN lines AS line ORDER BY time, series
    """
