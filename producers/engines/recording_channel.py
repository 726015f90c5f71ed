"""The way from an engine's process to its recording process: a socket that never blocks, and a bounded queue before it.

Standard library only.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from drumline.producers.collector import decoder_process
from drumline.producers.collector.event_socket import EventSocket, event_sockets
from drumline.producers.engines.iteration_messages import LOST
from drumline.producers.ipc.events import warn

#: Module that runs in the recording process.
PROGRAM = "drumline.producers.serving.main"
#: Most messages that wait for the socket: a minute of iterations.
MOST_WAITING = 8_192
#: Time between two looks of the thread that sends; a process that is killed loses what came since; s.
PERIOD_S = 0.05
#: Longest time for which the end of the process waits for the recording process to read them; s.
END_S = 1.0
#: Longest time for which the end of a short process waits until its recording process has begun; s.
START_S = 5.0


class EngineChannel:
    """Sends messages in their order. Methods may be called from any thread; none blocks or raises but `close`.

    A message that finds the queue full is dropped and counted; the recording process learns how many. In the child of a
    fork nothing is sent. `lost`: iterations and messages about requests that were dropped. `has_reader`: the recording
    process has begun, or will not. `sends_later`: a thread sends what waits (`send_waiting`); a system call in the
    engine's own thread gives up the GIL, and gets it back after 5 ms where another thread computes.
    """

    def __init__(self, end: EventSocket) -> None:
        self._end = end
        self._waiting: deque[bytes] = deque()
        # Collecting garbage in a call may end a request, in the thread that holds the lock.
        self._lock, self._sending = threading.RLock(), threading.Lock()
        self.sends_later = False
        self.lost = [0, 0]
        self._reported = (0, 0)
        self._is_closed = False
        self.has_reader = threading.Event()

    def send(self, message: bytes) -> None:
        """Send a message, at once or as soon as the socket has room for it; or let the thread send it."""
        with self._lock:
            if self._is_closed:
                return
            if len(self._waiting) >= MOST_WAITING and not self.sends_later:
                self._flush()
            if len(self._waiting) >= MOST_WAITING:
                self.lost[message[:1] != b"I"] += 1
                return
            self._waiting.append(message)
        if not self.sends_later:
            self._flush()

    def send_waiting(self) -> None:
        """Send what waits again and again, until the channel is closed: the work of a thread."""
        self.sends_later = True
        while not self._is_closed:
            time.sleep(PERIOD_S)
            self._flush()

    def send_json(self, kind: bytes, facts: dict[str, Any]) -> None:
        """Send a message of the kinds J, R and E."""
        self.send(kind + json.dumps(facts, separators=(",", ":")).encode())

    def close(self, timeout_s: float = END_S) -> None:
        """Send what waits, for a bounded time, and close the socket; first the recording process has to have begun."""
        self.has_reader.wait(START_S)
        until = time.monotonic() + timeout_s
        while True:
            self._flush()
            with self._lock:
                if self._is_closed or not self._waiting or time.monotonic() >= until:
                    self._is_closed = True
                    break
            time.sleep(0.01)
        if self._sending.acquire(timeout=timeout_s):
            self._end.close()

    def forget(self) -> None:
        """Leave the socket to the process that this one was forked from."""
        self._lock, self._sending, self._is_closed = threading.RLock(), threading.Lock(), True
        self.has_reader.set()

    def _flush(self) -> None:
        if not self._sending.acquire(blocking=False):  # another call sends it
            return
        waiting = self._waiting
        try:
            if (lost := (self.lost[0], self.lost[1])) != self._reported and len(waiting) < MOST_WAITING:
                self._end.send(LOST.pack(b"L", *lost))
                self._reported = lost
            while waiting:
                self._end.send(waiting[0])
                waiting.popleft()
        except BlockingIOError:
            return
        except OSError:  # the recording process has ended, or the job has closed all descriptors
            self._is_closed = True
            waiting.clear()
        finally:
            self._sending.release()


def open_channel() -> EngineChannel:
    """Return a channel whose recording process starts in a thread: messages wait in the socket until it reads them.

    Raises OSError where there can be no socket.
    """
    engine_end, recording_end = event_sockets()
    channel = EngineChannel(engine_end)

    def start() -> None:
        try:
            decoder_process.start_program(PROGRAM, [recording_end.fileno()])
        except Exception as error:
            warn(f"iterations and requests are not recorded: {error or type(error).__name__}")
            channel.forget()
        finally:
            recording_end.close()
            channel.has_reader.set()
        channel.send_waiting()

    threading.Thread(target=start, name="drumline-serving", daemon=True).start()
    atexit.register(_close, channel)
    with suppress(AttributeError):
        os.register_at_fork(after_in_child=channel.forget)
    return channel


def _close(channel: EngineChannel) -> None:
    with suppress(Exception):
        channel.close()
