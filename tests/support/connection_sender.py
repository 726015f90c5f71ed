"""Sends to another host for some seconds, and prints the rows that a sampler makes of it: ADDRESS PORT SECONDS.

A row: key, rank, direction, other end, interface, bytes, delivery rate, ns on the network.
"""

import os
import socket
import sys
import time
from pathlib import Path

from drumline.producers.host.targets import RecordedProcess, start_ticks
from drumline.producers.network import connection_sampler
from drumline.producers.network.connection_sampler import ConnectionBatches, ConnectionSampler

RECORD = {
    "job": "job", "run": "run", "rank": 3, "local_rank": 1, "world_size": 4, "host": "node", "gpu_uuid": "",
    "process_id": "p", "pid": os.getpid(), "start_ns": 1,
}  # fmt: skip
NUMBERS = ("bytes", "delivery_rate", "network_ns")


def certain(pid: int) -> RecordedProcess:
    """Return a process of this host as its ring names it."""
    return RecordedProcess(RECORD, pid, os.geteuid(), start_ticks(Path(f"/proc/{pid}")))


class Printed:
    """Prints the rows that a spool would get."""

    def append_batch(self, key, batch):
        names = (batch.strings(column, f"{column}s").tolist() for column in ("direction", "remote", "nic"))
        numbers = (batch.columns[name].tolist() for name in NUMBERS)
        for row in zip(*names, *numbers, strict=True):
            print(key, batch.envelope["rank"], *row, flush=True)


def connected(address: tuple[str, int]) -> socket.socket:
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


def main(address: str, port: str, seconds: str) -> None:
    connection = connected((address, int(port)))
    connection_sampler.FILES_S = 0.0
    sampler = ConnectionSampler(Printed(), ConnectionBatches("agent", "node"), lambda: [certain(os.getpid())], 0.5)
    sampler.start()
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        connection.sendall(bytes(1 << 18))
        time.sleep(0.01)
    sampler.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
