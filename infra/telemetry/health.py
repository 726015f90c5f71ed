"""Metrics and health of a program over HTTP, on 127.0.0.1 only: /metrics, /healthz, /readyz. A thread of its own.

/healthz is 200 while the main loop moves: a supervisor may kill what answers 503. /readyz is 200 while the program can
do its work; 503 says in JSON what it waits for, and passes by itself. Bodies hold fixed sentences and numbers, nothing
of settings, payloads or error texts.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from drumline.infra.telemetry.metrics import REGISTRIES, Program

log = structlog.get_logger()
HOST = "127.0.0.1"
#: A main loop that has not moved for so long is dead; s. A sink may wait 60 s for an insert and as long for Kafka.
STALLED_S = 180.0
#: A main loop that has not moved for so long waits for somebody, and is not ready; s.
BUSY_S = 15.0
Clock = Callable[[], float]


class Health:
    """What a program says of itself. Its main loop writes (`beat`, `waits`), the server's threads read.

    `probe`: asked when somebody asks for readiness; (name, why not or "")."""

    def __init__(self, *, stalled_s: float = STALLED_S, clock: Clock = time.monotonic) -> None:
        self._clock, self._stalled_s = clock, stalled_s
        self._beat = clock()
        self._waits: dict[str, str] = {"start": "not started yet"}
        self._probes: dict[str, Callable[[], str]] = {}

    def heartbeat(self) -> None:
        """The main loop has moved."""
        self._beat = self._clock()

    def set_reason(self, part: str, why: str) -> None:
        """`part` is not ready because of `why`; "" = it is. The first word about any part ends "start"."""
        self._waits = {name: text for name, text in {**self._waits, part: why}.items() if text and name != "start"}

    def probe(self, part: str, ask: Callable[[], str]) -> None:
        self._probes[part] = ask

    def alive(self) -> dict[str, str]:
        """Why it is not alive, by part; empty = it is."""
        still = self._clock() - self._beat
        return {"main_loop": f"has not moved for {still:.0f} s"} if still > self._stalled_s else {}

    def ready(self) -> dict[str, str]:
        """Why it is not ready, by part; empty = it is. A program that is not alive is not ready either."""
        asked = {part: ask() for part, ask in self._probes.items()}
        still = self._clock() - self._beat
        busy = {"main_loop": f"has waited for an answer for {still:.0f} s"} if still > BUSY_S else {}
        return {**busy, **self.alive(), **self._waits, **{part: why for part, why in asked.items() if why}}


class CachedProbe:
    """A probe that asks somebody who may take long: `ask` runs in a thread of its own, at most once in `for_s`. It is
    waited for `patience_s` at most; after that the answer is the one before, and `slow` from `slow_s` on."""

    def __init__(
        self,
        ask: Callable[[], str],
        slow: str,
        *,
        for_s: float = 5.0,
        patience_s: float = 0.5,
        slow_s: float = 5.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._ask, self._slow, self._clock = ask, slow, clock
        self._for_s, self._patience_s, self._slow_s = for_s, patience_s, slow_s
        self._lock, self._answered = threading.Lock(), threading.Event()
        self._answered.set()
        self._asked, self._at, self._why = clock(), float("-inf"), slow

    def __call__(self) -> str:
        with self._lock:
            if self._answered.is_set() and self._clock() - self._at >= self._for_s:
                self._answered.clear()
                self._asked = self._clock()
                threading.Thread(target=self._run, name="probe", daemon=True).start()
        if self._answered.wait(self._patience_s) or self._clock() - self._asked < self._slow_s:
            return self._why
        return self._slow

    def _run(self) -> None:
        why = self._slow
        try:
            why = self._ask()
        finally:
            self._why, self._at = why, self._clock()
            self._answered.set()


class _Handler(BaseHTTPRequestHandler):
    server: HealthServer
    timeout = 10

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, encode(self.server.registry), kind)
        elif path == "/healthz":
            self._say("alive", self.server.health.alive())
        elif path == "/readyz":
            self._say("ready", self.server.health.ready())
        else:
            self._answer(404, b'{"paths": ["/metrics", "/healthz", "/readyz"]}\n', "application/json")

    def _say(self, what: str, reasons: dict[str, str]) -> None:
        body = json.dumps({what: not reasons, "reasons": reasons}) + "\n"
        self._answer(503 if reasons else 200, body.encode(), "application/json")

    def _answer(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "drumline"

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""


class HealthServer(ThreadingHTTPServer):
    """Listens once built. Raises OSError when it cannot."""

    daemon_threads = True
    allow_reuse_address = True  # a restarted program gets its port at once; two listeners are still refused

    def __init__(self, port: int, registry: CollectorRegistry, health: Health) -> None:
        self.registry, self.health = registry, health
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Without HTTPServer's question to DNS what we are called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def close(self) -> None:
        """Stop answering and free the port."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has hung up, or sent no HTTP; nobody else is concerned."""


def serve_health(program: Program, port: int, health: Health) -> HealthServer | None:
    """Serve in the background; None when `port` is 0 (off) or in use. The program works without: that is a warning."""
    if port == 0:
        return None
    try:
        server = HealthServer(port, REGISTRIES[program], health)
    except OSError as error:
        log.warning(
            "no metrics and no health: cannot listen; set another port, or 0 for none",
            address=f"{HOST}:{port}",
            setting=f"DRUMLINE_{program.upper()}__METRICS_PORT",
            error=error.strerror,
        )
        return None
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    log.info("serving metrics and health", address=f"http://{HOST}:{port}", paths="/metrics /healthz /readyz")
    return server
