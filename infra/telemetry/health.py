"""HTTP server of a program's metrics and health, on 127.0.0.1 by default: /metrics, /healthz, /readyz.

/healthz is 200 while the main loop moves; a supervisor may kill a program that answers 503. /readyz is 200 while the
program can process records; a 503 has the reasons in JSON and recovers by itself. Bodies contain fixed sentences and
numbers, never settings, payloads or error texts.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry.metrics import READY, REGISTRIES, Program

log = structlog.get_logger()
HOST = "127.0.0.1"
#: Ports by default: the programs of one host have different ones.
PORTS: dict[Program, int] = {"stream": 19464, "sink": 19465, "agent": 19466, "exporter": 19467}
#: A main loop that has not moved for this time is dead; s. A sink may wait 60 s for an insert and as long for Kafka.
STALLED_S = 180.0
#: A main loop that has not moved for this time waits for a server, and is not ready; s.
BUSY_S = 15.0
Clock = Callable[[], float]
#: Header Accept of a scrape -> body, content type.
Expose = Callable[[str], tuple[bytes, str]]


class Health:
    """Holds the health of one program. Its main loop writes (`heartbeat`, `set_reason`), the server's threads read.

    A program starts with the reason "start", which the first `set_reason` removes. `clock` is monotonic, in s.
    """

    def __init__(self, *, stalled_s: float = STALLED_S, clock: Clock = time.monotonic) -> None:
        self._clock, self._stalled_s = clock, stalled_s
        self._heartbeat_at = clock()
        self._reasons: dict[str, str] = {"start": "not started yet"}
        self._probes: dict[str, Callable[[], str]] = {}

    def heartbeat(self) -> None:
        """Record that the main loop has moved."""
        self._heartbeat_at = self._clock()

    def set_reason(self, part: str, reason: str) -> None:
        """Set why `part` is not ready; "" = it is."""
        self._reasons = {
            name: text for name, text in {**self._reasons, part: reason}.items() if text and name != "start"
        }

    def probe(self, part: str, query: Callable[[], str]) -> None:
        """Register a function that each readiness request calls; it returns why `part` is not ready, or ""."""
        self._probes[part] = query

    def alive(self) -> dict[str, str]:
        """Return why the program is not alive, by part; empty = it is."""
        still = self._clock() - self._heartbeat_at
        return {"main_loop": f"has not moved for {still:.0f} s"} if still > self._stalled_s else {}

    def ready(self) -> dict[str, str]:
        """Return why the program is not ready, by part; empty = it is. One that is not alive is not ready."""
        probed = {part: query() for part, query in self._probes.items()}
        still = self._clock() - self._heartbeat_at
        busy = {"main_loop": f"has waited for an answer for {still:.0f} s"} if still > BUSY_S else {}
        return {**busy, **self.alive(), **self._reasons, **{part: reason for part, reason in probed.items() if reason}}


class CachedProbe:
    """Probe of a server that may answer slowly; for `Health.probe`.

    `query` runs in a thread, at most once in `for_s`. A call blocks for up to `timeout_s`; then it returns the previous
    answer, and after `slow_s` the text `slow`.
    """

    def __init__(
        self,
        query: Callable[[], str],
        slow: str,
        *,
        for_s: float = 5.0,
        timeout_s: float = 0.5,
        slow_s: float = 5.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._query, self._slow, self._clock = query, slow, clock
        self._for_s, self._timeout_s, self._slow_s = for_s, timeout_s, slow_s
        self._lock, self._answered = threading.Lock(), threading.Event()
        self._answered.set()
        self._queried_at, self._answered_at, self._reason = clock(), float("-inf"), slow

    def __call__(self) -> str:
        """Return the latest reason, or "" for none; `slow` after `slow_s` without an answer. Blocks for `timeout_s`."""
        with self._lock:
            if self._answered.is_set() and self._clock() - self._answered_at >= self._for_s:
                self._answered.clear()
                self._queried_at = self._clock()
                threading.Thread(target=self._run, name="probe", daemon=True).start()
        if self._answered.wait(self._timeout_s) or self._clock() - self._queried_at < self._slow_s:
            return self._reason
        return self._slow

    def _run(self) -> None:
        reason = self._slow
        try:
            reason = self._query()
        finally:
            self._reason, self._answered_at = reason, self._clock()
            self._answered.set()


class _Handler(BaseHTTPRequestHandler):
    server: HealthServer
    timeout = 10

    def do_GET(self) -> None:
        """Answer one of the three paths; 404 on others."""
        path = self.path.split("?", 1)[0]
        if path == "/metrics":
            self._answer(200, *self.server.expose(self.headers.get("Accept", "")))
        elif path == "/healthz":
            self._answer_health("alive", self.server.health.alive())
        elif path == "/readyz":
            self._answer_health("ready", self.server.health.ready())
        elif (text := self.server.page(path)) is not None:
            self._answer(200, text.encode(), "text/plain; charset=utf-8")
        else:
            self._answer(404, json.dumps({"paths": self.server.paths}).encode() + b"\n", "application/json")

    def _answer_health(self, state: str, reasons: dict[str, str]) -> None:
        body = json.dumps({state: not reasons, "reasons": reasons}) + "\n"
        self._answer(503 if reasons else 200, body.encode(), "application/json")

    def _answer(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Return the name for the header Server."""
        return "drumline"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: scrapes are frequent."""


class HealthServer(ThreadingHTTPServer):
    """Serves metrics and health of one program; listens as soon as it is constructed.

    `serve_health` starts its thread. `expose`: header Accept -> body and content type of /metrics, instead of those of
    the registry. `page`: path -> text of a page that only this program has, or None; `page_path`: what people may ask
    for. Raises OSError where the port is in use.
    """

    daemon_threads = True
    allow_reuse_address = True  # a restarted program gets its port at once; two listeners still fail

    def __init__(
        self,
        port: int,
        registry: CollectorRegistry,
        health: Health,
        address: str = HOST,
        expose: Expose | None = None,
        page: Callable[[str], str | None] | None = None,
        page_path: str = "",
    ) -> None:
        self.registry, self.health = registry, health
        self.page = page or (lambda path: None)
        self.paths = ["/metrics", "/healthz", "/readyz", *([page_path] if page_path else [])]
        self.expose = self._encoded if expose is None else expose
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), _Handler)

    def _encoded(self, accept: str) -> tuple[bytes, str]:
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind

    def server_bind(self) -> None:
        """Bind without the DNS query of HTTPServer."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def close(self) -> None:
        """Stop answering and free the port."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of one connection: the client hung up, or sent no HTTP."""


def serve_health(
    program: Program,
    settings: Settings,
    health: Health,
    expose: Expose | None = None,
    page: Callable[[str], str | None] | None = None,
    page_path: str = "",
) -> HealthServer | None:
    """Serve in a background thread; None when the port is 0 (off) or in use, which is only a warning."""
    port = PORTS[program] if settings.metrics_port is None else settings.metrics_port
    address = settings.metrics_address
    if port == 0:
        return None
    try:
        server = HealthServer(port, REGISTRIES[program], health, address, expose, page, page_path)
    except OSError as error:
        log.warning(
            "no metrics and no health: cannot listen; set another port or address, or port 0 for none",
            address=f"{address}:{port}",
            setting="DRUMLINE_METRICS_PORT, DRUMLINE_METRICS_ADDRESS",
            error=error.strerror,
        )
        return None
    READY[program].set_function(lambda: float(not health.ready()))
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    log.info("serving metrics and health", address=f"http://{address}:{port}", paths=" ".join(server.paths))
    return server
