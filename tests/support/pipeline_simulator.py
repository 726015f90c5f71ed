"""A simulator of pipeline jobs: stages of unequal work, sends and receives, gradients averaged inside a stage."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from support.straggler_simulator import MS, Fault, Layout, Recording


@dataclass
class _Step:
    """Simulates one step: `now` and `work` of each rank in ns, and the time that each rank `spent` by component."""

    recording: Recording
    step: int
    now: np.ndarray
    work: np.ndarray
    transfer_ns: int
    one_communicator: bool
    spent: dict[str, np.ndarray] = field(default_factory=dict)
    ordinals: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self):
        ranks = len(self.now)
        self.begin, self.blocks = self.now.copy(), np.full(ranks, 10_000)
        self.spent |= {name: np.zeros(ranks, np.int64) for name in ("idle", "copy", "compute", "exposed")}

    def fail(self, fault: Fault, step_ns: int) -> None:
        if fault.kind in ("idle", "copy"):
            self.spent[fault.kind][fault.rank] += fault.cost_ns
            self.now[fault.rank] += fault.cost_ns
        else:
            self.work[fault.rank] += fault.cost_ns
            self.blocks[fault.rank] += 10_000 * fault.cost_ns // step_ns * (fault.kind == "work")

    def communicate(self, rank: int, name: str, operation: str, end: float) -> None:
        ordinal = self.ordinals[rank, name] = self.ordinals.get((rank, name), -1) + 1
        took = int(end - self.now[rank])
        row = (rank, name, self.step, ordinal, operation, 1 << 20, int(self.now[rank]), took)
        self.recording.collectives.append(row)
        self.spent["exposed"][rank] += took
        self.now[rank] = end

    def send(self, source: int, target: int) -> None:
        name = "p" if self.one_communicator else f"p{min(source, target)}-{max(source, target)}"
        end = self.now[source] + self.transfer_ns
        self.communicate(source, name, "Send", end)
        self.communicate(target, name, "Recv", max(end, self.now[target] + self.transfer_ns // 10))

    def compute(self, rank: int, part: float) -> None:
        cost = int(self.work[rank] * part)
        self.now[rank] += cost
        self.spent["compute"][rank] += cost

    def reduce(self, group: tuple[int, ...], name: str) -> None:
        end = max(self.now[rank] for rank in group) + self.transfer_ns
        for rank in group:
            self.communicate(rank, name, "AllReduce", end)

    def record(self, rank: int) -> None:
        length = int(self.now[rank] - self.begin[rank])
        self.recording.steps[rank].append(
            {
                "step": self.step,
                "start_ns": int(self.begin[rank]),
                "duration_ns": length,
                "gpu_duration_ns": length,
                "compute_ns": int(self.spent["compute"][rank]),
                "kernels": 1000,
                "copy_ns": int(self.spent["copy"][rank]),
                "idle_ns": int(self.spent["idle"][rank]),
                "blocks": int(self.blocks[rank]),
                "comm_exposed_ns": int(self.spent["exposed"][rank]),
                "compute_overlapped_ns": 0,
            }
        )


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
    slow_link: tuple[int, float] = (1 << 30, 1.0),
    noise: float = 0.003,
    seed: int = 0,
) -> Recording:
    """Return a recording of steps with all forward passes, then all backward ones; rank = stage * replicas + replica.

    `weights`: work of each stage. With `world` all ranks meet once at the end of a step; with `one_communicator` all
    sends go over one communicator of all ranks. `slow_link`: (from step, factor on transfers).
    """
    stages, ranks = len(weights), len(weights) * replicas
    groups = [tuple(range(s * replicas, (s + 1) * replicas)) for s in range(stages)] if replicas > 1 else []
    groups += [tuple(range(ranks))] if world else []
    random = np.random.default_rng(seed)
    now = np.zeros(ranks, np.int64)
    out = Recording(Layout(ranks, ()), steps={rank: [] for rank in range(ranks)})
    for number in range(steps):
        work = np.repeat(np.array(weights), replicas) * step_ns * (1 + noise * random.standard_normal(ranks))
        took_ns = int(transfer_ns * (slow_link[1] if number >= slow_link[0] else 1.0))
        step = _Step(out, number, now, work, took_ns, one_communicator)
        for fault in (f for f in faults if f.hits(number)):
            step.fail(fault, step_ns)
        for replica in range(replicas):
            chain = [stage * replicas + replica for stage in range(stages)]
            for order, part in ((chain, 1 / 3), (chain[::-1], 2 / 3)):
                for _ in range(microbatches):
                    for rank, after in zip(order, [*order[1:], None], strict=True):
                        step.compute(rank, part / microbatches)
                        if after is not None:
                            step.send(rank, after)
        for group in groups:
            step.reduce(group, "p" if one_communicator and len(group) == ranks else f"c{group}")
        for rank in range(ranks):
            step.record(rank)
    return out
