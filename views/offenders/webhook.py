"""A webhook: JSON over HTTP, signed as Standard Webhooks have it (standardwebhooks.com): receivers have libraries.

Headers: `webhook-id`, `webhook-timestamp` (s since the epoch) and `webhook-signature`: `v1,` and the HMAC-SHA256 of
`id.timestamp.body` in base64.
"""

from __future__ import annotations

import base64
import hmac
import http.client
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from drumline.infra.runtime import tls
from drumline.infra.runtime.retry import Retry
from drumline.views.offenders.cloud_event import CONTENT_TYPE, cloud_event

#: Longest wait for the receiver; s. Attempts until the next pass tries again.
TIMEOUT_S, ATTEMPTS = 10.0, 5
#: Answers that may be another one next time.
_PASSING = frozenset({408, 425, 429})


class WebhookFailed(RuntimeError):
    """The receiver has not taken a notice. `may_pass`: another attempt may succeed. The message names no secret.

    `answered`: it refused this notice, and may take the next one.
    """

    def __init__(self, message: str, *, may_pass: bool, answered: bool = True) -> None:
        super().__init__(message)
        self.may_pass, self.answered = may_pass, answered


def signature(key: bytes, number: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    signed = b".".join((number.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.new(key, signed, "sha256").digest()).decode()


@dataclass(frozen=True)
class Webhook:
    """Sends to one receiver; calls block. `url` may have a secret in its path: messages name only its host.

    `format`: plain, or cloudevents.
    """

    url: str
    key: bytes
    ca: Path | None = None
    format: str = "plain"
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def send(self, number: str, body: bytes) -> None:
        """Send until the receiver has taken it, ATTEMPTS times at the most. Raises WebhookFailed."""
        if self.format == "cloudevents":
            body = cloud_event(number, body)
        retry = Retry()
        while True:
            try:
                return self._post(number, body)
            except WebhookFailed as error:
                wait_s = retry.failed(self.now(), 0.5 + random.random() / 2)
                if not error.may_pass or retry.attempt >= ATTEMPTS:
                    raise
                self.sleep(wait_s)

    def _post(self, number: str, body: bytes) -> None:
        parts = urlsplit(self.url)
        timestamp = int(self.now())
        headers = {
            "Content-Type": CONTENT_TYPE if self.format == "cloudevents" else "application/json",
            "User-Agent": "drumline",
            "webhook-id": number,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self.key, number, timestamp, body),
        }
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = tls.context(self.ca)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, timeout=TIMEOUT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        where = f"{parts.scheme}://{parts.netloc}"
        try:
            connection.request("POST", path, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            reason = tls.certificate_error(error) or getattr(error, "strerror", None) or type(error).__name__
            raise WebhookFailed(f"{where} does not answer: {reason}", may_pass=True, answered=False) from None
        finally:
            connection.close()
        if 200 <= status < 300:
            return
        hint = "; redirects are not followed" if 300 <= status < 400 else ""
        raise WebhookFailed(f"{where} answers {status}{hint}", may_pass=status >= 500 or status in _PASSING)
