"""A ring as NCCL's profiler plugin writes it, written by a test: no NCCL, no C."""

import numpy as np
from support.ring_writer import MS, RingWriter

from drumline.producers.rings.ring_file import SENT, TRANSFER_UNIT_NS, TRANSFERS, HeaderField, Kind


class FakeRing(RingWriter):
    """Writes operations that run still, and whole trainings."""

    paused = untimed = False

    def record(self, on, host_ns):
        """Switch the recording off or on; marks tell which."""
        self.paused = self.paused and not on
        self.mark(int(on), host_ns, kind=Kind.RECORD)
        self.paused = not on

    def mark(self, number, host_ns, count=0, kind=Kind.STEP_MARK, name=b""):
        """Write a mark."""
        super().mark(number, host_ns, count, kind, name)
        self.records["function"][(int(self.header[HeaderField.WRITTEN]) - 1) % self.capacity] = (
            self.paused | self.untimed << 1
        )

    def running(self, call_ns, comm=0, **fields):
        """Write operations that have been called only. Return the position of the last one."""
        at = self.operations(call_ns, 0, 0, comm, **fields)
        self.records["progress"][at % self.capacity] &= ~np.uint64(0xFFFFFFFF)
        self.records["seen_ns"][at % self.capacity] = 0
        return int(at[-1])

    def transfer(self, end_ns, peer=2, direction=SENT, channel=0, network_ms=1, busy=(0, 1), **fields):
        """Write a record of one transfer of 1,000 bytes. `busy`: begin and end by the link's clock; ms."""
        at = int(self.claim(1)[0])
        record = self.records.view(TRANSFERS)[at % self.capacity : at % self.capacity + 1]
        values = {
            "kind": Kind.TRANSFERS, "direction": direction, "channel": channel, "comm": 0, "peer": peer,
            "generation": 1, "step": -1, "transfers": 1, "bytes": 1_000, "host_ns": end_ns,
            "network": network_ms * MS // TRANSFER_UNIT_NS, "busy_from_ns": busy[0] * MS,
            "busy": (busy[1] - busy[0]) * MS // TRANSFER_UNIT_NS,
        }  # fmt: skip
        for name, value in (values | fields).items():
            record[name] = value
        record["number"] = at + 1

    def train(self, steps, begin_ns, step_ns=10 * MS, operations=4, first=0, untimed=()):
        """Write steps of equal operations, one after the other, and the mark of the next step.

        NCCL does not measure those of the steps `untimed`.
        """
        for number in range(first, first + steps):
            start = begin_ns + (number - first) * step_ns
            self.untimed = number in untimed
            if number != self.step:
                self.mark(number, start)
            call = start + np.arange(1, operations + 1) * (step_ns // (operations + 1))
            if self.untimed:
                self.running(call)
            else:
                self.operations(call, call + step_ns // 20, call + step_ns // 10)
        self.untimed = first + steps in untimed
        self.mark(first + steps, begin_ns + steps * step_ns)
