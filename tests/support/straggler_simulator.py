"""A small simulator of ranks in lockstep: programs of work and collectives, planted faults, the batches they give."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np

from drumline.schemas.batch import Batch

MS = 1_000_000
UNKNOWN = ("copy_pageable_ns", "sync_ns", "input_ns", "load_ns", "gc_ns", "checkpoint_ns")


@dataclass(frozen=True)
class Layout:
    """`program`: one step, the same on all ranks: (share of the compute before it, operation, groups that meet)."""

    ranks: int
    program: tuple[tuple[float, str, tuple[tuple[int, ...], ...]], ...]


def ddp(n: int, buckets: int = 4) -> Layout:
    return Layout(n, tuple((1 / buckets, "AllReduce", (tuple(range(n)),)) for _ in range(buckets)))


def fsdp(n: int, layers: int = 3) -> Layout:
    world = (tuple(range(n)),)
    operations = ["AllGather"] * layers + ["AllGather", "ReduceScatter"] * layers
    return Layout(n, tuple((1 / len(operations), operation, world) for operation in operations))


def mesh(*sizes: int, world: bool = True) -> Layout:
    """The innermost axis meets four times a step, the others once, then the world."""
    n = int(np.prod(sizes))
    grid = np.arange(n).reshape(sizes)
    groups = []
    for axis in reversed(range(len(sizes))):
        lines = np.moveaxis(grid, axis, -1).reshape(-1, sizes[axis])
        groups.append(tuple(tuple(int(r) for r in line) for line in lines))
    meets = [groups[0]] * 4 + groups[1:] + ([(tuple(range(n)),)] if world else [])
    return Layout(n, tuple((1 / len(meets), "AllReduce", meet) for meet in meets))


@dataclass(frozen=True)
class Fault:
    """`kind`: idle, copy, compute, or work (compute and as much more grid). `cost_ns` in each `period`-th step."""

    rank: int
    kind: str
    cost_ns: int
    period: int = 1
    first: int = 0
    last: int = 1 << 30

    def hits(self, step: int) -> bool:
        return self.first <= step <= self.last and step % self.period == 0


@dataclass
class Recording:
    """`collectives`: (rank, communicator, step, ordinal, operation, bytes, start, duration); `steps`: by rank."""

    layout: Layout
    collectives: list[tuple[int, str, int, int, str, int, int, int]] = field(default_factory=list)
    steps: dict[int, list[dict[str, int]]] = field(default_factory=dict)


def worked(now: int, work: int, spans: list[tuple[int, int]], slow: float) -> int:
    """Return the end of `work` ns of compute that begin `now`; in the spans, sorted, it is slower by `slow`."""
    for begin, end in (span for span in spans if span[1] > now):
        if now < begin:
            if now + work <= begin:
                break
            now, work = begin, work - (begin - now)
        done = int((end - now) * (1.0 - slow))
        if work <= done:
            return now + int(work / (1.0 - slow))
        now, work = end, work - done
    return now + work


def overlapped(layout: Layout, steps: int, faults: tuple[Fault, ...], seed: int, slow: float = 0.5) -> Recording:
    """Collectives that overlap compute, as in DDP and FSDP: the host only launches them, in order, and waits for the
    last one of the step. While a rank's NCCL kernel spins, its own kernels go slower by `slow`: so a lead is used up
    behind compute, and at the end of the step hardly any rank is seen to wait."""
    step_ns, transfer_ns = 60 * MS, MS // 2
    random, ranks = np.random.default_rng(seed), range(layout.ranks)
    out = Recording(layout, steps={rank: [] for rank in ranks})
    now = [0] * layout.ranks
    for step in range(steps):
        begin, extra, spans = list(now), [0] * layout.ranks, [list[tuple[int, int]]() for _ in ranks]
        rows = [{"step": step, "start_ns": at, "copy_ns": 0, "idle_ns": 0, "blocks": 10_000} for at in begin]
        for fault in (f for f in faults if f.hits(step)):
            if fault.kind in ("idle", "copy"):
                rows[fault.rank][f"{fault.kind}_ns"] += fault.cost_ns
                now[fault.rank] += fault.cost_ns
            else:
                extra[fault.rank] += fault.cost_ns
                rows[fault.rank]["blocks"] += 10_000 * fault.cost_ns // step_ns * (fault.kind == "work")
        first, ordinals = list(now), dict[tuple[int, str], int]()
        for share, operation, groups in layout.program:
            for rank in ranks:
                work = int((step_ns * (1 + 0.003 * random.standard_normal()) + extra[rank]) * share)
                now[rank] = worked(now[rank], work, spans[rank], slow)
            for group in groups:
                name = "c" + "-".join(map(str, group))
                starts = {rank: max([now[rank], *(end for _, end in spans[rank][-1:])]) for rank in group}
                end = max(starts.values()) + transfer_ns
                for rank, start in starts.items():
                    ordinal = ordinals[rank, name] = ordinals.get((rank, name), -1) + 1
                    out.collectives.append((rank, name, step, ordinal, operation, 1 << 20, start, end - start))
                    spans[rank].append((start, end))
        for rank, row in enumerate(rows):
            done = max(now[rank], spans[rank][-1][1])
            row |= {"duration_ns": done - begin[rank], "gpu_duration_ns": done - begin[rank], "kernels": 1000}
            row |= {"compute_ns": now[rank] - first[rank], "comm_exposed_ns": done - now[rank]}
            row["compute_overlapped_ns"] = sum(max(0, min(e, now[rank]) - s) for s, e in spans[rank])
            out.steps[rank].append(row)
            now[rank] = done
    return out


def simulate(
    layout: Layout,
    steps: int,
    faults: tuple[Fault, ...] = (),
    *,
    step_ns: int = 60 * MS,
    transfer_ns: int = MS // 2,
    slow_link: tuple[int, float, str] = (1 << 30, 1.0, ""),
    slow_until: int = 1 << 30,
    noise: float = 0.003,
    seed: int = 0,
) -> Recording:
    """`slow_link`: (from step, factor, of what operations: how their name begins), until step `slow_until`."""
    random = np.random.default_rng(seed)
    now = np.zeros(layout.ranks, np.int64)
    out = Recording(layout, steps={rank: [] for rank in range(layout.ranks)})
    for step in range(steps):
        begin = now.copy()
        spent = {name: np.zeros(layout.ranks, np.int64) for name in ("idle", "copy", "compute", "exposed")}
        blocks = np.full(layout.ranks, 10_000)
        extra = np.zeros(layout.ranks, np.int64)
        for fault in (f for f in faults if f.hits(step)):
            if fault.kind in ("idle", "copy"):
                spent[fault.kind][fault.rank] += fault.cost_ns
                now[fault.rank] += fault.cost_ns
            else:
                extra[fault.rank] += fault.cost_ns
                blocks[fault.rank] += 10_000 * fault.cost_ns // step_ns * (fault.kind == "work")
        ordinals: dict[tuple[int, str], int] = {}
        for share, operation, groups in layout.program:
            work = ((step_ns * (1 + noise * random.standard_normal(layout.ranks)) + extra) * share).astype(np.int64)
            now += work
            spent["compute"] += work
            slow = slow_link[0] <= step <= slow_until and operation.startswith(slow_link[2])
            transfer = int(transfer_ns * (slow_link[1] if slow else 1.0))
            for group in groups:
                members = list(group)
                end = int(now[members].max()) + transfer
                name = "c" + "-".join(map(str, group))
                for rank in members:
                    ordinal = ordinals[rank, name] = ordinals.get((rank, name), -1) + 1
                    took = end - int(now[rank])
                    out.collectives.append((rank, name, step, ordinal, operation, 1 << 20, int(now[rank]), took))
                    spent["exposed"][rank] += took
                    now[rank] = end
        for rank in range(layout.ranks):
            row = {"step": step, "start_ns": int(begin[rank]), "duration_ns": int(now[rank] - begin[rank])}
            row |= {"gpu_duration_ns": row["duration_ns"], "compute_ns": int(spent["compute"][rank]), "kernels": 1000}
            row |= {
                "copy_ns": int(spent["copy"][rank]),
                "idle_ns": int(spent["idle"][rank]),
                "blocks": int(blocks[rank]),
            }
            row |= {"comm_exposed_ns": int(spent["exposed"][rank]), "compute_overlapped_ns": 0}
            out.steps[rank].append(row)
    return out


def batches(
    recording: Recording,
    *,
    flush: int = 3,
    run: str = "run",
    names: dict[int, int] | None = None,
    shift_ns: dict[int, int] | None = None,
    scale: int = 1,
) -> list[tuple[int, Batch]]:
    """(time, batch) by time. `names`: rank -> the number it goes by; `shift_ns`: rank -> error of its clock."""
    names = names or {rank: rank for rank in range(recording.layout.ranks)}
    shift = shift_ns or {}
    out: list[tuple[int, Batch]] = []
    by_flush: dict[tuple[int, str, int], list[tuple[int, str, int, int, str, int, int, int]]] = {}
    for row in recording.collectives:
        by_flush.setdefault((row[0], row[1], row[2] // flush), []).append(row)
    for rank, chunk in product(range(recording.layout.ranks), range(-(-len(recording.steps[0]) // flush))):
        rows = recording.steps[rank][chunk * flush : (chunk + 1) * flush]
        late = shift.get(rank, 0)
        sent = (rows[-1]["start_ns"] + rows[-1]["duration_ns"]) * scale + late + 10**18
        envelope = {"job": "job", "run": run, "rank": names[rank], "world_size": recording.layout.ranks}
        envelope |= {"host": f"host{rank * 2 // recording.layout.ranks}", "gpu_uuid": f"GPU-{rank}"}
        envelope |= {"complete_step": rows[-1]["step"]}
        columns = {name: np.array([row[name] for row in rows], np.int64) for name in rows[0]}
        columns = {name: v if name in ("step", "kernels", "blocks") else v * scale for name, v in columns.items()}
        columns["start_ns"] = columns["start_ns"] + late + 10**18
        columns |= {name: np.full(len(rows), -1) for name in UNKNOWN}
        columns["skipped"] = np.zeros(len(rows), np.uint8)
        out.append((sent, Batch("gpu.step.v1", {**envelope, "rows": len(rows)}, columns)))
        for communicator in sorted({c for r, c, k in by_flush if r == rank and k == chunk}):
            chosen = by_flush[rank, communicator, chunk]
            operations = sorted({row[4] for row in chosen})
            fields = ("step", "ordinal", "operation", "bytes", "start_ns", "duration_ns")
            values = [
                (r[2], r[3], operations.index(r[4]), r[5], r[6] * scale + late + 10**18, r[7] * scale) for r in chosen
            ]
            columns = dict(zip(fields, np.array(values, np.int64).T, strict=True))
            columns["covered_ns"] = np.zeros(len(chosen), np.int64)
            head = {**envelope, "communicator": communicator, "operations": operations, "rows": len(chosen)}
            out.append((sent, Batch("gpu.collective.v1", head, columns)))
    return sorted(out, key=lambda item: item[0])
