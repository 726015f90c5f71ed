"""SQL of the ranks that a run's world size promises and that never reported, from rows of `processes`."""

from __future__ import annotations

#: World size up to which ranks are compared one by one: a sender may claim any.
MOST_WORLD = 65_536
#: Ranks that are listed; all are counted.
MOST_LISTED = 1_000

_PROMISED = f"range(toUInt32(least(greatest(argMaxIf(world_size, start, rank >= 0), 0), {MOST_WORLD})))"
_BITMAP = f"bitmapAndnot(bitmapBuild({_PROMISED}), groupBitmapStateIf(toUInt32(greatest(rank, 0)), rank >= 0))"

#: Columns of a group of `processes AS p` of one run. `world`: the size that its newest process states, so that a job
#: that shrank lacks nothing. `unreported_ranks`: how many ranks never reported; `unreported`: the first of them.
UNREPORTED = f"""argMaxIf(world_size, start, rank >= 0) AS world,
    toInt64(bitmapCardinality({_BITMAP})) AS unreported_ranks,
    arraySlice(bitmapToArray({_BITMAP}), 1, {MOST_LISTED}) AS unreported"""
