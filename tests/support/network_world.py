"""Jobs on hosts whose ranks meet in a ring over a network, simulated: their steps, collectives and transfers.

A ring is as slow as its slowest flow. Both ends report it: the sender how long the network took the data, the receiver
how long it waited for it, which is as long as the ring takes for everyone behind the slow flow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from support.straggler_simulator import MS, Fault, Recording, batches, ddp, simulate
from support.tcp_world import Connections

from drumline.schemas.batch import Batch, dictionary

SECOND_NS = 1_000_000_000
COMMUNICATOR_BYTES = 1 << 20


@dataclass(frozen=True)
class Network:
    """`gpus`: as many GPUs a host. `slow`: (sender's host, receiver's host) -> factor on its time, "*" = any.

    `spread`: of rates from second to second (sigma of their logarithm). `paths`: the same from flow to flow, for good.
    `buffered`: sockets take data as fast as memory, and hold back a sender whose receiver does not read. `share`:
    part of the collectives that is recorded. `silent`: ranks whose transfers nobody reports. `late_receivers`:
    (sender, receiver, ns by which that comes later to each operation, in slow steps). `connections`: over TCP, so many
    a flow: then all data is gone at once for senders, and receivers get it as fast as the ring goes.
    """

    hosts: int
    gpus: int = 1
    slow: dict[tuple[str, str], float] = field(default_factory=dict)
    slow_steps: tuple[int, int] = (1 << 30, 1 << 30)
    slow_senders: tuple[int, ...] = ()
    slow_receivers: tuple[int, ...] = ()
    nics: int = 0
    spread: float = 0.05
    paths: float = 0.0
    buffered: bool = False
    share: float = 1.0
    silent: tuple[int, ...] = ()
    rate: float = 10.0
    seed: int = 0
    order: tuple[int, ...] = ()
    late_receivers: tuple[tuple[int, int, int], ...] = ()
    connections: int = 0

    @property
    def ranks(self) -> int:
        return self.hosts * self.gpus

    def host(self, rank: int) -> str:
        return f"node-{rank // self.gpus}"

    def nic(self, rank: int) -> str:
        return f"mlx5_{rank % self.nics}" if self.nics else ""

    def ring(self) -> list[tuple[int, int]]:
        """Flows of the ring, in the order of ranks or `order`; those within a host cross no network."""
        order = self.order or tuple(range(self.ranks))
        pairs = zip(order, (*order[1:], order[0]), strict=True)
        return [(a, b) for a, b in pairs if self.host(a) != self.host(b)]

    def factor(self, sender: int, receiver: int) -> float:
        names = self.host(sender), self.host(receiver)
        nics = f"{names[0]}/{self.nic(sender)}", f"{names[1]}/{self.nic(receiver)}"
        factors = [
            value
            for (a, b), value in self.slow.items()
            if a in ("*", names[0], nics[0], f"rank {sender}") and b in ("*", names[1], nics[1], f"rank {receiver}")
        ]
        return max(factors, default=1.0)


def job(
    network: Network,
    steps: int,
    faults: tuple[Fault, ...] = (),
    transfer_ns: int = 4 * MS,
    buckets: int = 4,
    **options: object,
) -> list[tuple[int, Batch]]:
    """Return (time, batch) of a job, by time: of its steps, collectives and transfers."""
    slowest = max((network.factor(*flow) for flow in network.ring()), default=1.0)
    recording = simulate(
        ddp(network.ranks, buckets), steps, faults, transfer_ns=transfer_ns, seed=network.seed,
        slow_link=(network.slow_steps[0], slowest, ""), slow_until=network.slow_steps[1], **options,
    )  # fmt: skip
    out = batches(recording)
    for _, batch in out:
        batch.envelope["host"] = network.host(int(batch.envelope["rank"]))
    return sorted([*out, *transfers(network, recording, buckets)], key=lambda item: item[0])


def transfers(network: Network, recording: Recording, buckets: int) -> list[tuple[int, Batch]]:
    """Return (time, batch) of gpu.transfer.v1: a row of each end of a flow and second."""
    dice = np.random.default_rng([network.seed, 7])
    name = "c" + "-".join(map(str, range(network.ranks)))
    flows = network.ring()
    path = {flow: float(np.exp(network.paths * dice.standard_normal())) for flow in flows}
    seconds: dict[int, list[int]] = {}
    for row in recording.steps[0]:
        seconds.setdefault((row["start_ns"] + 10**18) // SECOND_NS, []).append(row["step"])
    rows: dict[tuple[int, int], list[dict[str, object]]] = {}
    connections, counted = Connections(network), list[tuple[int, Batch]]()
    for second, steps in seconds.items():
        recorded = int(dice.binomial(buckets * len(steps), network.share))
        if not recorded:
            continue
        is_slow = network.slow_steps[0] <= steps[len(steps) // 2] <= network.slow_steps[1]
        rates = {
            flow: network.rate * path[flow] * float(np.exp(network.spread * dice.standard_normal()))
            / (network.factor(*flow) if is_slow else 1.0)
            for flow in flows
        }  # fmt: skip
        size = recorded * 32.0 * COMMUNICATOR_BYTES
        ring_ns = max(size / rate for rate in rates.values())
        for (sender, receiver), rate in rates.items():
            network_ns = size / rate
            # A receiver posts early and waits for the ring; a sender's data is gone as fast as the link takes it.
            seen = {"send": network_ns, "receive": max(network_ns, ring_ns * float(dice.uniform(0.9, 1.0)))}
            if network.buffered:
                seen["send"] = network_ns * (1.0 if rate == min(rates.values()) else float(dice.uniform(0.3, 0.9)))
            seen["send"] += sum(
                ns * recorded for a, b, ns in network.late_receivers if is_slow and (a, b) == (sender, receiver)
            )
            if network.connections:
                seen = {"send": 0.1 * network_ns, "receive": ring_ns}
            if sender in network.slow_senders:
                seen["receive"] = 4 * network_ns
            if receiver in network.slow_receivers:
                seen["send"] = 4 * network_ns
            for rank, peer, direction in ((sender, receiver, "send"), (receiver, sender, "receive")):
                if rank not in network.silent:
                    rows.setdefault((rank, second), []).append(
                        {"peer": peer, "direction": direction, "bytes": size, "busy_ns": seen[direction],
                         "operations": recorded, "first_step": steps[0], "last_step": steps[-1]}
                    )  # fmt: skip
        late_ns = sum(ns for *_, ns in network.late_receivers) * recorded * is_slow
        counted += [(second, batch) for batch in connections.second(second, size / network.share, rates, late_ns)]
    recorded_rows = [
        (second, _batch(network, name, rank, second, rank_rows)) for (rank, second), rank_rows in rows.items()
    ]
    return [((second + 1) * SECOND_NS + 300 * MS, batch) for second, batch in (*recorded_rows, *counted)]


def _batch(network: Network, name: str, rank: int, second: int, rows: list[dict[str, object]]) -> Batch:
    count = len(rows)
    directions, direction = dictionary([str(row["direction"]) for row in rows])
    envelope = {
        "job": "job", "run": "run", "rank": rank, "world_size": network.ranks, "host": network.host(rank),
        "gpu_uuid": f"GPU-{rank}", "process_id": f"p{rank}", "base_time_ns": second * SECOND_NS, "process_start_ns": 0,
        "rows": count, "communicators": [name], "nics": [network.nic(rank)], "directions": directions,
        "locals": [""], "remotes": [""],
    }  # fmt: skip
    columns = {key: np.array([row[key] for row in rows], np.float64).astype(np.int64)
               for key in ("peer", "bytes", "busy_ns", "operations", "first_step", "last_step")}  # fmt: skip
    columns |= {"direction": np.array(direction, np.int64), "start_ns": np.full(count, second * SECOND_NS)}
    columns |= {"duration_ns": np.full(count, SECOND_NS), "transfers": columns["bytes"] // (1 << 17)}
    columns |= {name: np.zeros(count, np.int64) for name in ("communicator", "nic", "gpu_wait_ns", "peer_wait_ns")}
    columns |= {"channels": np.ones(count, np.int64)}
    columns |= {name: np.zeros(count, np.int64) for name in ("local", "remote")}
    columns |= {name: np.full(count, -1) for name in ("retransmitted", "delivery_rate")}
    columns |= {"comm_rank": np.full(count, rank), "ranks": np.full(count, network.ranks)}
    columns |= {"network_ns": 4 * columns["busy_ns"], "flush_ns": np.zeros(count, np.int64)}
    return Batch("gpu.transfer.v1", envelope, columns)
