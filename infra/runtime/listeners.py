"""Plain TCP connects: whether a program listens at an address, known before a client library retries for seconds."""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from collections.abc import Iterable

from drumline.infra.runtime.terminal import echo

#: Bound of a connect to an address that does not answer, and time after which a person reads what it waits for; s.
CONNECT_S, NOTE_S = 5.0, 1.0


def connect_error(server: str, addresses: Iterable[tuple[str, int]], timeout_s: float = CONNECT_S) -> str:
    """Return why none of the addresses takes a TCP connection; "" as soon as one does.

    A rejected connect counts at once; an address that does not answer is waited for, `timeout_s` at most. On a terminal
    a line on stderr then names the `server`.
    """
    results: queue.SimpleQueue[str] = queue.SimpleQueue()

    def connect(host: str, port: int) -> None:
        try:
            socket.create_connection((host, port), timeout_s).close()
            results.put("")
        except OSError as error:
            results.put("timed out" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower())

    targets = list(dict.fromkeys(addresses))
    for target in targets:
        threading.Thread(target=connect, args=target, daemon=True).start()
    errors: list[str] = []
    began, is_noted = time.monotonic(), not sys.stderr.isatty()
    while len(errors) < len(targets):
        left_s = began + timeout_s + NOTE_S - time.monotonic()  # names are looked up before the connect's own timeout
        try:
            error = results.get(timeout=max(0.0, left_s if is_noted else NOTE_S))
        except queue.Empty:
            if left_s <= 0:
                return "timed out"
            if not is_noted:
                echo(f"drumline: waiting for {server}", err=True)
                is_noted = True
            continue
        if not error:
            return ""
        errors.append(error)
    return ", ".join(dict.fromkeys(errors))
