"""Access to the page: checks of the Host header, of the method and of the token, and the headers of every answer."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from drumline.infra.config.servers import ServeSettings
from drumline.infra.telemetry.insecure import is_loopback

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "drumline"
#: No script and no style but the two files of the page; nothing from elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class AccessNotSafe(ValueError):
    """The page would be open to others; the message names the setting to change."""


def require_safe(settings: ServeSettings) -> None:
    """Check that nobody but this machine's users can read the page without a token. Raises AccessNotSafe."""
    if settings.token is None and not is_loopback(settings.address):
        raise AccessNotSafe(
            f"{settings.address} can be reached from other hosts: set DRUMLINE_SERVE__TOKEN_FILE to a file with a "
            "token of 16 characters or more, or leave --address 127.0.0.1"
        )


class Guard:
    """Wraps the application: rejects requests of foreign pages and without the token, and sets the headers.

    A token comes as `Authorization: Bearer`, as the password of HTTP basic authentication, or once as `?token=`. After
    that a cookie has a hash of it. A name that an attacker lets resolve to this address is no known host (DNS
    rebinding).
    """

    def __init__(self, app: Application, settings: ServeSettings) -> None:
        self._app = app
        self._token = settings.token.get_secret_value().encode() if settings.token else b""
        self._secure = settings.certificate is not None
        configured = {urlsplit(url.strip()).hostname or "" for url in settings.url.split(",")}
        self._hosts = {"localhost", settings.address.lower(), socket.gethostname().lower(), *configured} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Streams of other kinds (websockets) are closed by the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        rejected = self._rejection(scope)
        await (rejected or self._app)(scope, receive, send_with_headers)

    def _rejection(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_known(headers.get("host", "")):
            return PlainTextResponse(
                "This host name is not known. If it is right, add its address to DRUMLINE_SERVE__URL.\n", 421
            )
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page only reads: GET and HEAD.\n", 405, {"Allow": "GET, HEAD"})
        if not self._token or self._has_token(headers):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        for name, value in query:
            if name == "token" and self._is_token(value.encode()):
                path = scope.get("raw_path") or quote(scope["path"]).encode()
                return self._with_cookie(path.decode("latin-1"), [pair for pair in query if pair[0] != "token"])
        return PlainTextResponse(
            "This page needs its token: as the password of the browser's dialogue, as ?token=..., or as "
            "Authorization: Bearer ... The one who runs `drumline serve` has it.\n",
            401,
            {"WWW-Authenticate": 'Basic realm="drumline", charset="UTF-8"'},
        )

    def _is_known(self, host: str) -> bool:
        match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(:\d+)?", host.lower())
        if match is None:
            return False
        name = match[1].strip("[]")
        try:  # an attacker's page has a name: an address cannot be rebound
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True

    def _has_token(self, headers: Headers) -> bool:
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._is_token(value.strip().encode())
        if kind.lower() == "basic":
            try:
                return self._is_token(base64.b64decode(value).partition(b":")[2])
            except ValueError:  # no base64, or letters that ASCII has not
                return False
        cookies = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
        return any(
            name == COOKIE and hmac.compare_digest(text.encode(), self._hash().encode()) for name, _, text in cookies
        )

    def _is_token(self, text: bytes) -> bool:
        return hmac.compare_digest(text, self._token)

    def _hash(self) -> str:
        return hmac.new(self._token, b"drumline serve", hashlib.sha256).hexdigest()

    def _with_cookie(self, path: str, query: list[tuple[str, str]]) -> Response:
        # A path that begins with // or /\ would be another host.
        target = "/" + quote(path.partition("?")[0].lstrip("/"), safe="/%:@!$&'()*+,;=~")
        target += f"?{urlencode(query)}" if query else ""
        response = RedirectResponse(target, 303)
        # lax: a link in an alert opens the page.
        response.set_cookie(COOKIE, self._hash(), httponly=True, samesite="lax", secure=self._secure)
        return response
