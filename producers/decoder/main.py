"""The decoder: a process beside each GPU process that reads its CUPTI buffers.

It runs as `python -m drumline.producers.decoder.main`, which the collector starts, detached, and ends by itself.

It is a separate process because decoding inside the job would take the GIL from the training loop. It reads the job's
buffers through shared memory and its strings through process_vm_readv, and sees the job's end as the end of a socket.
Completed buffers are decoded also after the job was killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import sys
import time

from drumline.producers.spool.detached import detach

#: Interval at which buffers are polled while records come, and otherwise; s. A poll takes 0.5 ms of CPU.
POLL_S, IDLE_S = 0.05, 0.25
#: Longest message: paths, versions, and some hundred GPUs.
MESSAGE_BYTES = 65_536


def serve(pool_fd: int, events_fd: int, pid: int) -> None:
    """Decode until the job's end of the socket is closed and everything is read. Blocks.

    `pool_fd`: the buffer pool. `events_fd`: the socket to the collector. `pid`: the GPU process.
    """
    from drumline.producers.decoder.session import Session
    from drumline.producers.ipc.buffer_pool import BufferPool, Header

    pool = BufferPool(fd=pool_fd)
    events = socket.socket(fileno=events_fd)
    session = Session(pool, pid, os.environ, time.time_ns())
    alive, tick_at = True, 0.0
    while alive:
        ready, _, _ = select.select([events], [], [], max(0.0, tick_at - time.monotonic()))
        while ready:
            message = events.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT) if select.select([events], [], [], 0)[0] else None
            if message is None:
                break
            if not message:  # the other end is closed
                alive = False
                break
            session.event(message)
            if message[:1] == b"J":  # an event may change all; marks are many, and can wait
                tick_at = 0.0
        if time.monotonic() >= tick_at:
            session.tick(time.time_ns())
            pool.header[Header.TICKS] += 1
            tick_at = time.monotonic() + (POLL_S if session.is_busy else IDLE_S)
    session.finish(time.time_ns())
    events.close()  # a job that ends in order waits for this


def may_read(pid: int) -> bool:
    """Return whether a detached process of the same user may read the memory of `pid` under the system's settings.

    Reads nothing: address 0 is never mapped.
    """
    call, byte = ctypes.CDLL(None, use_errno=True).process_vm_readv, ctypes.create_string_buffer(1)
    count = ctypes.c_ulong(1)
    local, remote = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1), (ctypes.c_size_t * 2)(0, 1)
    call(pid, local, count, remote, count, ctypes.c_ulong(0))
    return ctypes.get_errno() == errno.EFAULT


def main() -> int:
    """Detach from the job's process tree, print the pid and `may_read`, and serve. Returns the exit status."""
    pool_fd, events_fd, pid = (int(argument) for argument in sys.argv[1:4])
    detach(int(may_read(pid)))
    try:
        serve(pool_fd, events_fd, pid)
    except Exception as error:
        from drumline.producers.ipc.events import warn

        warn(f"decoder of {pid}: {type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
