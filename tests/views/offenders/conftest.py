"""A receiver of webhooks: a real HTTP server."""

import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

SECRET_PATH = "/hooks/T0P-5ECRET"


class Receiver(ThreadingHTTPServer):
    """Keeps requests; `answers`: statuses to come, then 204; None = no answer."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.answers = queue.SimpleQueue(), []
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}{SECRET_PATH}?x=1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == f"{SECRET_PATH}?x=1"
        status = self.server.answers.pop(0) if self.server.answers else 204
        if status is None:
            self.server.released.wait(5)
            return
        self.server.requests.put(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()
