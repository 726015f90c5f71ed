"""The decoder: a process beside each GPU process that reads its CUPTI buffers.

It runs as `python -m drumline.producers.decoder.main`.

It is a process of its own because decoding in the job's would take the interpreter's lock from the training loop. It
sees the job's buffers through shared memory, its strings through process_vm_readv, and its end as the end of a socket;
what was completed is decoded also when the job was killed. Started by attach.py, as nobody's child; ends by itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import sys
import time

from drumline.infra.runtime import sys_path as own_packages

#: Between two looks at the buffers; s.
PAUSE_S = 0.05
#: Behind the job, never before it.
NICE = 5
#: No message is longer: paths, versions, and up to some hundred GPUs.
MESSAGE_BYTES = 65_536


def serve(pool_fd: int, events_fd: int, pid: int) -> None:
    """Until the job's end of the socket is closed and everything is read."""
    from drumline.producers.decoder.session import Session
    from drumline.producers.ipc import buffer_pool as pool_words
    from drumline.producers.ipc.buffer_pool import BufferPool

    pool = BufferPool(fd=pool_fd)
    events = socket.socket(fileno=events_fd)
    session = Session(pool, pid, os.environ, time.time_ns())
    alive = True
    while alive:
        ready, _, _ = select.select([events], [], [], PAUSE_S)
        while ready:
            message = events.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT) if select.select([events], [], [], 0)[0] else None
            if message is None:
                break
            if not message:  # the other end is closed
                alive = False
                break
            session.event(message)
        session.turn(time.time_ns())
        pool.words[pool_words.TICKS] += 1
    session.finish(time.time_ns())
    events.close()  # a job that ends in order waits for this


def may_read(pid: int) -> bool:
    """Whether a process of the same user that is no ancestor of `pid` may read its memory, as things are. Only asked:
    there is nothing at address 0."""
    call, byte = ctypes.CDLL(None, use_errno=True).process_vm_readv, ctypes.create_string_buffer(1)
    one = ctypes.c_ulong(1)
    here, there = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1), (ctypes.c_size_t * 2)(0, 1)
    call(pid, here, one, there, one, ctypes.c_ulong(0))
    return ctypes.get_errno() == errno.EFAULT


def main() -> int:
    """Steps out of the job's family, prints its pid and may_read, serves."""
    pool_fd, events_fd, pid = (int(argument) for argument in sys.argv[1:4])
    child = os.fork()
    if child:
        print(f"\n{child} {int(may_read(pid))}", flush=True)  # of the job's packages one may have spoken before
        os._exit(0)
    own_packages.prefer_own_packages()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the job's
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        os.nice(NICE)
        serve(pool_fd, events_fd, pid)
    except Exception as error:
        from drumline.producers.collector.attach import say

        say(f"decoder of {pid}: {type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
