"""Panels on the bandwidth of collectives, of the dashboard Collectives and stragglers."""

from __future__ import annotations

from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.model import Field, Panel, PanelQuery

#: Bus bandwidth of a collective of `bytes` that took `shortest` on `n` ranks, as nccl-tests count it
#: (doc/PERFORMANCE.md there); NCCL reports sizes of AllGather, ReduceScatter and AllToAll per rank. Bytes per second.
_SPEED = """bytes / shortest * 1e9 * multiIf(operation = 'AllReduce', 2 * (n - 1) / n,
    operation IN ('AllGather', 'ReduceScatter', 'AllToAll'), n - 1, 1) AS bus"""
#: Rows read, about: where a time range has more, a sample of the collectives stands for all of them.
SAMPLED = 500_000
_COLLECTIVES = "FROM collectives AS c WHERE @job AND @run AND @start"
#: One row a collective: every rank has one row of it, and its peers wait for the last. Those outside steps are few.
_BY_COLLECTIVE = f"""
SELECT communicator, operation, c.bytes AS bytes, min(start) AS at, toUInt32(count()) AS n,
    min(duration_ns) AS shortest, {_SPEED}
{_COLLECTIVES} AND duration_ns > 0 AND bytes >= {{least}} AND (step < 0 OR intHash32(toUInt32(step * 1000 + ordinal)) %
    (SELECT toUInt32(greatest(intDiv(count(), {SAMPLED}), 1)) {_COLLECTIVES}) = 0)
GROUP BY run, communicator, operation, bytes, step, ordinal HAVING n > 1
"""
BUS = Panel(
    "timeseries",
    "Bus bandwidth of collectives",
    "Of collectives of 1 MiB and more: bytes moved per second as nccl-tests count them (AllReduce 2(n-1)/n), over "
    "the shortest duration of all ranks, so that waiting for a late one does not count. Median by operation and "
    f"communicator, the ten slowest; of a sample where there are more than {SAMPLED:,} rows.",
    PanelQuery(
        worst(
            f"""
            SELECT $__timeInterval_ms(at) AS time, concat(operation, ' on ', substring(communicator, 1, 8)) AS member,
                quantile(0.5)(bus) AS v
            FROM ({_BY_COLLECTIVE.format(least=1 << 20)}) GROUP BY time, member
            """,
            "bytes_per_s",
            by="-avg(v)",
            bands=False,
        ),
        "time:t series:s member:s bytes_per_s:n",
    ),
    series="{series}",
    unit="Bps",
    min_interval="5s",
    key="bandwidth",
    empty="no collectives of 1 MiB or more",
)
SIZES = Panel(
    "table",
    "Bus bandwidth by size",
    "As above, by message size, of the same sample: small messages are bound by latency, so each size has a normal of "
    "its own.",
    PanelQuery(
        f"""
        SELECT operation, communicator, bytes, count() AS collectives, quantile(0.5)(shortest) AS p50_ns,
            quantile(0.5)(bus) AS bytes_per_s
        FROM ({_BY_COLLECTIVE.format(least=0)}) GROUP BY operation, communicator, bytes ORDER BY bytes DESC LIMIT 100
        """,
        "operation:s communicator:s bytes:n collectives:n p50_ns:n bytes_per_s:n",
        "table",
    ),
    unit="short",
    fields={
        "communicator": Field(width=165),
        "bytes": Field("bytes", "Size"),
        "p50_ns": Field("ns", "Median"),
        "bytes_per_s": Field("Bps", "Bus bandwidth"),
    },
    empty="no collectives",
)
