"""Connections that are slow, silent or many do not keep the page from others."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn
from support.wait_limit import WAIT_S

from drumline.views.serve.connections import BoundedConnection

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 20_000_000


async def answer(scope, receive, send):
    size = LARGE if scope["path"] == "/large" else 2
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
    for _ in range(size // 65_536):
        await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
    await send({"type": "http.response.body", "body": b"x" * (size % 65_536)})


@contextmanager
def served(**limits):
    """Yield a function that opens a connection to a server with these limits, and the server."""
    protocol = type("Limited", (BoundedConnection,), limits)
    config = uvicorn.Config(answer, http=protocol, lifespan="off", ws="none", log_level="error", timeout_keep_alive=60)
    page = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=page.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    opened = []

    def connection(receive_bytes=0):
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(WAIT_S)
        client.connect(listener.getsockname())
        opened.append(client)
        return client

    yield connection, page
    for client in opened:
        client.close()
    page.should_exit = True
    thread.join(WAIT_S)


def is_closed(client):
    try:
        return client.recv(1 << 16) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nHost: x", REQUEST + b"GET / HT"])
def test_a_request_that_never_ends_is_closed_however_often_bytes_come(begin):
    with served(request_s=0.5) as (connection, _):
        client = connection()
        client.sendall(begin)
        if begin.startswith(REQUEST):
            assert b"200 OK" in client.recv(1 << 16)
        began, closed = time.monotonic(), False
        while not closed and time.monotonic() - began < WAIT_S:
            time.sleep(0.1)
            client.setblocking(False)
            try:
                if begin:
                    client.send(b"a")
                closed = client.recv(1 << 16) == b""
            except BlockingIOError:
                closed = False
            except (ConnectionResetError, BrokenPipeError):
                closed = True
        assert closed


def test_a_browser_that_reads_no_answer_is_closed_and_one_that_reads_slowly_is_served():
    with served(write_s=1.0) as (connection, page):
        halted, slow = connection(4_096), connection()
        for client in (halted, slow):
            client.sendall(REQUEST.replace(b"/ ", b"/large ", 1))
        size = 0
        while size < LARGE:
            size += len(slow.recv(1 << 20))
            time.sleep(0.02)
        deadline = time.monotonic() + WAIT_S
        while len(page.server_state.connections) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(page.server_state.connections) == 1


def test_beyond_the_limit_the_connection_that_waits_longest_goes():
    with served(most=20) as (connection, page):
        first = connection()
        silent = [connection() for _ in range(60)]
        first_closed = is_closed(first)
        late = connection()
        late.sendall(REQUEST)
        assert b"200 OK" in late.recv(1 << 16)
        assert first_closed
        assert len(page.server_state.connections) <= 21
        assert is_closed(silent[0])
