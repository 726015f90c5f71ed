"""Queries of the report about GPUs, with the parameters of queries.py. Lines are few, however many GPUs there are."""

from __future__ import annotations

from drumline.views.report.queries import MINUTE, SCOPE

_SAMPLES = f"{SCOPE} AND time BETWEEN {{since:DateTime64(9, 'UTC')}} AND {{until:DateTime64(9, 'UTC')}}"
#: GPUs that the page lists, the first by host.
MOST_GPUS = 64
DEVICES = f"""
SELECT host, gpu_index AS gpu, anyLast(d.rank) AS rank, count() AS samples, avg(util_gpu) AS util,
       max(memory_used) / 1e9 AS memory_gb, max(power_mw) / 1e3 AS power_w, max(d.temperature) AS temperature,
       min(d.sm_clock) AS slowest_mhz, max(d.sm_clock) AS fastest_mhz, max(ecc_uncorrected) AS ecc, max(d.xid) AS xid
FROM device_samples AS d WHERE {_SAMPLES} AND (host, gpu_index) IN (
    SELECT host, gpu_index FROM devices_per_minute WHERE {SCOPE} AND {MINUTE}
    GROUP BY host, gpu_index ORDER BY host, gpu_index LIMIT {MOST_GPUS})
GROUP BY host, gpu_index ORDER BY host, gpu_index
"""

# Of each GPU in each bin of time: its means.
DEVICE_TIMES = f"""
WITH greatest({{length_ns:Int64}} / {{bins:Int64}}, 1) AS width
SELECT intDiv(dateDiff('nanosecond', {{since:DateTime64(9, 'UTC')}}, time), toInt64(width)) * width / 1e9 AS second,
       rank, concat('rank ', toString(rank)) AS series, avg(util_gpu) AS util, avg(power_mw) / 1e3 AS power_w,
       avg(d.sm_clock) AS clock_mhz, avg(d.temperature) AS celsius
FROM device_samples AS d WHERE {_SAMPLES} GROUP BY second, rank ORDER BY second, rank
"""
_MEASURES = ("util", "power_w", "clock_mhz", "celsius")


def _spread(of_gpus: str, slowest: str = "clock_mhz") -> str:
    """Return the query of the lowest, middle and highest GPU of each bin. `of_gpus`: rows of each GPU in each bin."""
    lowest = dict.fromkeys(_MEASURES) | {"clock_mhz": slowest}
    of_all = ", ".join(f"[min({lowest[m] or m}), quantileExactInclusive(0.5)({m}), max({m})] AS {m}_of"
                       for m in _MEASURES)  # fmt: skip
    return f"""
SELECT second, line - 1 AS rank, ['lowest GPU', 'middle GPU', 'highest GPU'][line] AS series,
       {", ".join(f"{m}_of[line] AS {m}" for m in _MEASURES)}
FROM (SELECT second, {of_all} FROM ({of_gpus}) GROUP BY second) ARRAY JOIN [1, 2, 3] AS line
ORDER BY second, line
"""


# The same where they are too many for a line each.
DEVICE_SPREAD = _spread(DEVICE_TIMES)
# And where their samples are too many to be read: means of whole minutes, but a GPU's hottest, and its slowest clock in
# the lowest line, its fastest in the others.
DEVICE_MINUTES = _spread(
    f"""
WITH greatest({{length_ns:Int64}} / {{bins:Int64}}, 60e9) AS width
SELECT intDiv(greatest(0, dateDiff('nanosecond', {{since:DateTime64(9, 'UTC')}}, toDateTime64(minute, 9, 'UTC'))),
              toInt64(width)) * width / 1e9 AS second, host, gpu_index,
       avgMerge(util_gpu) AS util, avgMerge(power_mw) / 1e3 AS power_w, min(min_sm_clock) AS slowest_mhz,
       max(max_sm_clock) AS clock_mhz, max(max_temperature) AS celsius
FROM devices_per_minute AS d WHERE {SCOPE} AND {MINUTE} GROUP BY second, host, gpu_index
""",
    slowest="slowest_mhz",
)
