"""Changes to the records of a trace, as faults of recording would make them, before derivation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drumline.producers.activity.activity import MARKER_START
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl

#: Columns that hold times of the process's own clock.
CLOCK = ("start_ns", "time_ns")


def change_ranks(trace, change):
    """`change(rank, activity)` on every process."""
    return replace(trace, activities=tuple(change(rank, a) for rank, a in enumerate(trace.activities)))


def lost(trace, share, seed, kinds=("kernels", "copies", "markers", "payloads")):
    """Records of these kinds dropped at random."""
    dice = np.random.default_rng(seed)

    def change(_, activity):
        kept = {kind: getattr(activity, kind) for kind in kinds}
        return replace(activity, **{k: t.take(dice.random(t.rows) >= share) for k, t in kept.items()})

    return change_ranks(trace, change)


def lost_work(trace, share, seed):
    """Kernels dropped at random, but none of NCCL's."""
    dice = np.random.default_rng(seed)

    def change(_, activity):
        kernels = activity.kernels
        kept = nccl.is_kernel(kernels.dictionaries["names"])[kernels["name"]] | (dice.random(kernels.rows) >= share)
        return replace(activity, kernels=kernels.take(kept))

    return change_ranks(trace, change)


def unmarked(trace):
    """Steps are not marked: only NCCL's ranges are left."""

    def change(_, activity):
        markers = activity.markers
        of_nccl = np.array([name == nccl.DOMAIN for name in markers.dictionaries["domains"]], bool)[markers["domain"]]
        opened = np.unique(markers["id"][of_nccl & ((markers["flags"] & MARKER_START) != 0)])  # ends have none
        return replace(activity, markers=markers.take(np.isin(markers["id"], opened)))

    return change_ranks(trace, change)


def without_payloads(trace):
    """NCCL gave its ranges no payloads."""
    return change_ranks(trace, lambda _, activity: replace(activity, payloads=activity.payloads.take(slice(0, 0))))


def since(trace, from_ns):
    """Recording began at `from_ns`: nothing earlier is known."""

    def change(_, activity):
        times = {"kernels": "start_ns", "copies": "start_ns", "markers": "time_ns"}
        tables = {kind: getattr(activity, kind) for kind in times}
        return replace(activity, **{k: t.take(t[times[k]] >= from_ns) for k, t in tables.items()})

    return change_ranks(trace, change)


def clocks(trace, shift_ns, drift):
    """Rank r's clock is off by shift_ns[r] and runs faster by drift[r]; durations too."""
    origin = min(int(a.kernels["start_ns"].min()) for a in trace.activities)

    def change(rank, activity):
        def moved(table):
            columns = dict(table.columns)
            for name in CLOCK:
                if name in columns:
                    elapsed = columns[name] - origin
                    columns[name] = columns[name] + shift_ns[rank] + np.rint(elapsed * drift[rank]).astype(np.int64)
            if "duration_ns" in columns:
                dtype = columns["duration_ns"].dtype
                columns["duration_ns"] = np.rint(columns["duration_ns"] * (1.0 + drift[rank])).astype(dtype)
            return Table(columns, table.dictionaries)

        return replace(activity, **{k: moved(getattr(activity, k)) for k in ("kernels", "copies", "markers")})

    listed = [{**step, "start_ns": step["start_ns"] + shift_ns[0]} for step in trace.manifest.get("steps_rank0", [])]
    manifest = {**trace.manifest, "steps_rank0": listed[:1]}  # the recorder read rank 0's clock
    return replace(change_ranks(trace, change), manifest=manifest)


def renamed(trace):
    """Every kernel that is not NCCL's gets a name without meaning."""

    def change(_, activity):
        names = activity.kernels.dictionaries["names"]
        other = [n if keep else f"k{i}" for i, (n, keep) in enumerate(zip(names, nccl.is_kernel(names), strict=True))]
        return replace(
            activity, kernels=Table(activity.kernels.columns, {**activity.kernels.dictionaries, "names": other})
        )

    return change_ranks(trace, change)


def renumbered(trace, seed):
    """Streams and marker ids get other numbers."""
    dice = np.random.default_rng(seed)

    def change(_, activity):
        key = int(dice.integers(1, 1 << 30))
        parts = {}
        for kind, column in (("kernels", "stream"), ("copies", "stream"), ("markers", "id"), ("payloads", "id")):
            table = getattr(activity, kind)
            if column in table.columns:
                values = table[column] ^ table[column].dtype.type(key)
                parts[kind] = Table({**table.columns, column: values}, table.dictionaries)
        return replace(activity, **parts)

    return change_ranks(trace, change)


def shuffled(trace, seed):
    """Records in any order, as buffers of several threads come."""
    dice = np.random.default_rng(seed)

    def change(_, activity):
        kinds = ("kernels", "copies", "markers", "payloads")
        tables = {kind: getattr(activity, kind) for kind in kinds}
        return replace(activity, **{k: t.take(dice.permutation(t.rows)) for k, t in tables.items()})

    return change_ranks(trace, change)


def permuted(trace, order):
    """Rank order[r] did what rank r did."""
    activities = list(trace.activities)
    for rank, other in enumerate(order):
        activities[other] = trace.activities[rank]
    return replace(trace, activities=tuple(activities))


def without(batches, rank, from_ns, to_ns):
    """A stream without one rank's batches of some time."""
    return [(t, b) for t, b in batches if not (b.envelope["rank"] == rank and from_ns <= t < to_ns)]


def disordered(batches, seed, spread_ns=2_000_000_000):
    """Processes late by up to `spread_ns` each (a key's own order is Kafka's), a fifth of the batches twice."""
    dice = np.random.default_rng(seed)
    late = {}

    def when(item):
        feed = (item[1].envelope["rank"], item[1].topic, item[1].envelope.get("communicator"))
        return item[0] + late.setdefault(feed, dice.integers(0, spread_ns))

    ordered = sorted(batches, key=when)
    return [item for item in ordered for _ in range(1 + int(dice.random() < 0.2))]
