"""TCP connections of a simulated job on several hosts: the rows that agents make of what their kernels count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from drumline.producers.network.connection_sampler import ConnectionBatches
from drumline.schemas.batch import Batch

if TYPE_CHECKING:
    from support.network_world import Network

SECOND_NS = 1_000_000_000
#: Part of its rate at which a link seems to carry small bursts, as their acknowledgements wait behind other data.
BURSTS = 0.7


def row(local: str, remote: str, direction: str, second: int, size: float) -> dict[str, int | str]:
    return {
        "start_ns": second * SECOND_NS, "duration_ns": SECOND_NS, "local": local, "remote": remote,
        "direction": direction, "communicator": "", "nic": "", "comm_rank": -1, "peer": -1, "slowest_channel": -1,
        "first_step": -1, "last_step": -1, "bytes": int(size), "retransmitted": -1, "delivery_rate": -1,
    }  # fmt: skip


class Connections:
    """Makes rows second by second. Each flow has some connections, which share its rate."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.batches = {
            host: ConnectionBatches(f"agent {host}", host) for host in map(network.host, range(network.ranks))
        }
        self.dice = np.random.default_rng([network.seed, 11])

    def second(self, second: int, size: float, rates: dict[tuple[int, int], float], late_ns: float) -> list[Batch]:
        """Return the batches of a second in which each flow carried `size` bytes, at GB/s.

        `late_ns`: time for which the receivers of `network.late_receivers` did not read. Other senders wait for a slow
        ring in between, and are less busy.
        """
        network, rows = self.network, dict[int, list[dict[str, int | str]]]()
        late = {(a, b) for a, b, _ in network.late_receivers}
        for (sender, receiver), rate in rates.items():
            for number in range(network.connections):
                ends = f"10.0.0.{sender}:{5000 + number}", f"10.0.0.{receiver}:{7000 + number}"
                part, paced = size / network.connections, rate < 0.99 * max(rates.values())
                busy_ns = size / (rate if paced else rate * float(self.dice.uniform(BURSTS, 1.0)))
                busy_ns += late_ns if (sender, receiver) in late else 0.0
                delivery = rate / network.connections * float(np.exp(network.spread * self.dice.standard_normal()))
                sent = row(*ends, "send", second, part) | {
                    "busy_ns": int(busy_ns), "network_ns": int(busy_ns), "retransmitted": 1_000_000 if paced else 0,
                    "delivery_rate": int(delivery * 1e9),
                }  # fmt: skip
                rows.setdefault(sender, []).append(sent)
                rows.setdefault(receiver, []).append(row(*ends[::-1], "receive", second, part))
        return [self._batch(rank, rank_rows) for rank, rank_rows in rows.items() if rank not in network.silent]

    def _batch(self, rank: int, rows: list[dict[str, int | str]]) -> Batch:
        host = self.network.host(rank)
        record = {"job": "job", "run": "run", "rank": rank, "world_size": self.network.ranks, "host": host,
                  "gpu_uuid": f"GPU-{rank}"}  # fmt: skip
        _, batch = self.batches[host].batch(record, rows)
        batch.envelope["process_start_ns"] = 0
        return batch
