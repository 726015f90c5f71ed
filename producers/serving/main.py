"""The recording process beside a process of an inference engine.

It runs as `python -m drumline.producers.serving.main`, which engines/recording_channel.py starts, detached. It ends
when the engine's end of the socket is closed and everything is read; also after the engine was killed.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

from drumline.producers.spool.detached import detach

#: Longest wait for a message; s.
WAIT_S = 0.25
#: Most messages that are read before rows are written.
MOST_AT_ONCE = 1_024


def serve(events_fd: int, pid: int) -> None:
    """Take messages until the engine's end is closed. Blocks. `pid`: the engine's process."""
    from drumline.producers.engines.iteration_messages import MESSAGE_BYTES
    from drumline.producers.serving.serving_session import ServingSession

    events = socket.socket(fileno=events_fd)
    session = ServingSession(pid, os.environ, time.time_ns())
    alive = True
    while alive:
        ready = bool(select.select([events], [], [], WAIT_S)[0])
        for _ in range(MOST_AT_ONCE if ready else 0):
            try:
                message = events.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                message = b""
            if not message:
                alive = False
                break
            session.message(message, time.time_ns())
        session.tick(time.time_ns())
    session.finish(time.time_ns())


def main() -> int:
    """Detach from the job's process tree, and serve. Returns the exit status."""
    events_fd, pid = (int(argument) for argument in sys.argv[1:3])
    detach()
    try:
        serve(events_fd, pid)
    except Exception as error:
        from drumline.producers.ipc.events import warn

        warn(f"recording of {pid}'s iterations: {type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
