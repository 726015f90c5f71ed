"""A simulator of pipeline jobs: stages of unequal work, sends and receives, gradients averaged inside a stage."""

from __future__ import annotations

import numpy as np
from support.straggler_simulator import MS, Fault, Layout, Recording


def simulate_pipeline(
    weights: tuple[float, ...],
    replicas: int,
    steps: int,
    faults: tuple[Fault, ...] = (),
    *,
    microbatches: int = 4,
    world: bool = False,
    one_communicator: bool = False,
    step_ns: int = 60 * MS,
    transfer_ns: int = MS // 4,
    noise: float = 0.003,
    seed: int = 0,
) -> Recording:
    """Rank = stage * replicas + replica. `weights`: work of each stage. All forward passes, then all backward ones.

    With `world` all ranks meet once at the end of a step; with `one_communicator` all sends go over one of all ranks.
    """
    stages, ranks = len(weights), len(weights) * replicas
    random = np.random.default_rng(seed)
    now = np.zeros(ranks, np.int64)
    out = Recording(Layout(ranks, ()), steps={rank: [] for rank in range(ranks)})
    for step in range(steps):
        begin = now.copy()
        spent = {name: np.zeros(ranks, np.int64) for name in ("idle", "copy", "compute", "exposed")}
        work = np.repeat(np.array(weights), replicas) * step_ns * (1 + noise * random.standard_normal(ranks))
        blocks = np.full(ranks, 10_000)
        for fault in (f for f in faults if f.hits(step)):
            if fault.kind in ("idle", "copy"):
                spent[fault.kind][fault.rank] += fault.cost_ns
                now[fault.rank] += fault.cost_ns
            else:
                work[fault.rank] += fault.cost_ns
                blocks[fault.rank] += 10_000 * fault.cost_ns // step_ns * (fault.kind == "work")
        ordinals: dict[tuple[int, str], int] = {}

        def ran(rank, name, operation, end, step=step, spent=spent, ordinals=ordinals):
            ordinal = ordinals[rank, name] = ordinals.get((rank, name), -1) + 1
            took = int(end - now[rank])
            out.collectives.append((rank, name, step, ordinal, operation, 1 << 20, int(now[rank]), took))
            spent["exposed"][rank] += took
            now[rank] = end

        def send(source, target, ran=ran):
            name = "p" if one_communicator else f"p{min(source, target)}-{max(source, target)}"
            end = now[source] + transfer_ns
            ran(source, name, "Send", end)
            ran(target, name, "Recv", max(end, now[target] + transfer_ns // 10))

        def compute(rank, part, work=work, spent=spent):
            cost = int(work[rank] * part)
            now[rank] += cost
            spent["compute"][rank] += cost

        for replica in range(replicas):
            chain = [stage * replicas + replica for stage in range(stages)]
            for order, part in ((chain, 1 / 3), (chain[::-1], 2 / 3)):
                for _ in range(microbatches):
                    for rank, after in zip(order, [*order[1:], None], strict=True):
                        compute(rank, part / microbatches)
                        if after is not None:
                            send(rank, after)
        groups = [tuple(range(s * replicas, (s + 1) * replicas)) for s in range(stages)] if replicas > 1 else []
        for group in [*groups, *([tuple(range(ranks))] if world else [])]:
            end = max(now[rank] for rank in group) + transfer_ns
            for rank in group:
                ran(rank, "p" if one_communicator and len(group) == ranks else f"c{group}", "AllReduce", end)
        for rank in range(ranks):
            length = int(now[rank] - begin[rank])
            out.steps[rank].append(
                {
                    "step": step,
                    "start_ns": int(begin[rank]),
                    "duration_ns": length,
                    "gpu_duration_ns": length,
                    "compute_ns": int(spent["compute"][rank]),
                    "kernels": 1000,
                    "copy_ns": int(spent["copy"][rank]),
                    "idle_ns": int(spent["idle"][rank]),
                    "blocks": int(blocks[rank]),
                    "comm_exposed_ns": int(spent["exposed"][rank]),
                    "compute_overlapped_ns": 0,
                }
            )
    return out
