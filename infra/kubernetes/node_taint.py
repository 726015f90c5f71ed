"""Example: marks the Kubernetes node of a host that `drumline notify` posts about. The Helm chart runs it.

It needs the standard library only. Each notice sets the node's condition DrumlineAtFault, and with TAINT=NoSchedule (or
another effect) the taint drumline/at-fault. Both may be set again and again, so ids of notices are not remembered.
After the repair: `kubectl taint node NAME drumline/at-fault-`; the condition stays until the node's status is patched.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import signal
import ssl
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONDITION, TAINT = "DrumlineAtFault", "drumline/at-fault"
#: Age up to which a signature counts: five minutes, as Standard Webhooks propose; s. Most bytes of a notice.
OLDEST_S, MOST_BYTES = 300, 1 << 20
#: Refusals of the API server that another attempt may not meet: timeout, conflict, too many requests.
PASSING = frozenset({408, 409, 429})


class Cluster:
    """Calls the API server with the account's token. Raises OSError; HTTPError is one."""

    def __init__(self, address: str, account: Path = ACCOUNT) -> None:
        self._address, self._account = address, account
        ca = account / "ca.crt"
        self._context = ssl.create_default_context(cafile=ca) if ca.exists() else None

    def call(self, method: str, path: str, body: Any = None, kind: str = "") -> Any:
        """Return the answer to a request."""
        token = (self._account / "token").read_text().strip()  # it is renewed
        headers = {"Authorization": f"Bearer {token}", **({"Content-Type": kind} if kind else {})}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._address + path, data, headers, method=method)
        with urlopen(request, timeout=10, context=self._context) as answer:
            return json.load(answer)

    def mark(self, notice: dict[str, Any], effect: str, now: str) -> str:
        """Mark the node of a notice's host; return its name, "" if no node has that host name."""
        selector = quote(f"kubernetes.io/hostname={notice['host']}")
        nodes = self.call("GET", f"/api/v1/nodes?labelSelector={selector}")["items"]
        if not nodes:
            return ""
        name = nodes[0]["metadata"]["name"]
        condition = {
            "type": CONDITION, "status": "True", "reason": "AtFaultAgain", "message": notice["text"],
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }  # fmt: skip
        status = {"status": {"conditions": [condition]}}  # merged with the others by type
        self.call("PATCH", f"/api/v1/nodes/{name}/status", status, "application/strategic-merge-patch+json")
        if effect:
            self._taint(name, effect)
        return str(name)

    def _taint(self, name: str, effect: str) -> None:
        node = self.call("GET", f"/api/v1/nodes/{name}")
        taints = node["spec"].get("taints", [])
        if any((taint["key"], taint["effect"]) == (TAINT, effect) for taint in taints):
            return
        # The list is replaced as a whole: with the version, a change by another program meanwhile is a conflict.
        changed = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": [*taints, {"key": TAINT, "value": "true", "effect": effect}]},
        }
        self.call("PATCH", f"/api/v1/nodes/{name}", changed, "application/merge-patch+json")


def is_signed(key: bytes, headers: Any, body: bytes, now: float) -> bool:
    """Return whether a notice is signed with the key, and recent."""
    try:
        timestamp = int(headers["webhook-timestamp"])
        signed = f"{headers['webhook-id']}.{timestamp}.".encode() + body
    except (TypeError, ValueError):
        return False
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    given = (headers["webhook-signature"] or "").split()
    return abs(now - timestamp) <= OLDEST_S and any(
        hmac.compare_digest(text.encode(), expected.encode()) for text in given
    )


class Receiver(ThreadingHTTPServer):
    """Takes notices. A failure of the API server answers 503: drumline sends again at once; a refusal answers 422."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], key: bytes, cluster: Cluster, effect: str) -> None:
        super().__init__(address, Handler)
        self.key, self.cluster, self.effect = key, cluster, effect


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Receiver

    def do_POST(self) -> None:
        """Take a notice."""
        size = int(self.headers["content-length"] or 0)
        body = self.rfile.read(size) if 0 <= size <= MOST_BYTES else b""
        now = time.time()
        if not is_signed(self.server.key, self.headers, body, now):
            return self._answer(401, "not signed")
        notice = json.loads(body)
        notice = notice.get("data", notice)  # of a CloudEvent
        try:
            text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
            node = self.server.cluster.mark(notice, self.server.effect, text)
        except OSError as error:  # HTTPError and URLError are some
            status = error.code if isinstance(error, HTTPError) else 503
            permanent = 400 <= status < 500 and status not in PASSING
            return self._answer(422 if permanent else 503, f"the API server: {error}")
        self._answer(204, f"{notice['text']}: {f'node {node} is marked' if node else 'no node has this host name'}")

    def do_GET(self) -> None:
        """Answer probes."""
        self._answer(204, "")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()
        if text:
            with suppress(OSError):  # a full disk ends no program
                print(f"{status} {text}".translate(dict.fromkeys(range(32), " ")), file=sys.stderr, flush=True)

    def log_message(self, *_: object) -> None:
        """Log nothing else."""


def main() -> None:
    """Serve on port 8080. Environment: WEBHOOK_KEY_FILE, TAINT, API."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # as a container's first process, too
    text = Path(os.environ["WEBHOOK_KEY_FILE"]).read_text().strip()
    key = base64.b64decode(text.removeprefix("whsec_"))
    cluster = Cluster(os.environ.get("API", "https://kubernetes.default.svc"))
    Receiver(("", 8080), key, cluster, os.environ.get("TAINT", "")).serve_forever()


if __name__ == "__main__":
    main()
