"""A ring as NCCL's profiler plugin writes it, written by a test: no NCCL, no C."""

import numpy as np

from drumline.infra.bench.processes.ring_writer import MS, RingWriter


class FakeRing(RingWriter):
    """Writes operations that run still, and whole trainings."""

    def running(self, call_ns, comm=0, **fields):
        """Write an operation that has been called only. Return its position."""
        (at,) = self.operations(call_ns, 0, 0, comm, **fields)
        self.records["progress"][at % self.capacity] &= ~np.uint64(0xFFFFFFFF)
        self.records["seen_ns"][at % self.capacity] = 0
        return at

    def train(self, steps, begin_ns, step_ns=10 * MS, operations=4, first=0):
        """Write steps of equal operations, one after the other, and the mark of the next step."""
        for number in range(first, first + steps):
            start = begin_ns + (number - first) * step_ns
            if number != self.step:
                self.mark(number, start)
            call = start + np.arange(1, operations + 1) * (step_ns // (operations + 1))
            self.operations(call, call + step_ns // 20, call + step_ns // 10)
        self.mark(first + steps, begin_ns + steps * step_ns)
