"""TLS to ClickHouse: clickhouse-connect's arguments, and hints about the setting to correct."""

from __future__ import annotations

import re
import ssl
from typing import Any
from urllib.parse import urlsplit

from drumline.infra.clickhouse.error_codes import ErrorCode
from drumline.infra.config.settings import Settings
from drumline.infra.runtime import tls

#: Text for a connection that the server closed without a reason.
CLOSED = "the connection was closed"


def options(settings: Settings) -> dict[str, Any]:
    """Return clickhouse-connect's arguments for https."""
    clickhouse = settings.clickhouse
    if not settings.clickhouse_url.startswith("https"):
        return {}
    arguments: dict[str, Any] = {"ca_cert": str(settings.ca)} if settings.ca is not None else {}
    if clickhouse.certificate is not None:  # "strict": certificate and password
        arguments |= {"client_cert": str(clickhouse.certificate), "client_cert_key": str(clickhouse.key)}
        arguments["tls_mode"] = "strict"
    return arguments


def context(settings: Settings) -> ssl.SSLContext:
    """Return the same as a context of Python's `ssl`."""
    clickhouse = settings.clickhouse
    return tls.context(settings.ca, clickhouse.certificate, clickhouse.key)


def tls_error(text: str) -> str:
    """Return the permanent TLS error in a driver's text, with the setting to correct; "" without one."""
    if reason := tls.certificate_error_in(text):
        hint = tls.certificate_hint(reason, "DRUMLINE_CLICKHOUSE__URL", "DRUMLINE_CA")
        return f"the server's certificate is not accepted: {reason}; {hint}"
    match = re.search(r"\[SSL: [A-Z0-9_]+\] (.+?)\.? \(_ssl", text)
    text = match[1] if match else ""
    if "alert" in text and ("certificate" in text or "unknown ca" in text):
        return "the server wants another client certificate; see DRUMLINE_CLICKHOUSE__CERTIFICATE and ..._KEY"
    if text == "wrong version number":
        return "the server does not use TLS, and DRUMLINE_CLICKHOUSE__URL is https"
    return ""


def hint(settings: Settings, code: int, text: str, reader: bool) -> str:
    """Return a hint after a first connection that failed; "" without one."""
    if code == ErrorCode.AUTHENTICATION_FAILED:
        user, secret = ("READER", "READER_PASSWORD") if reader else ("USER", "PASSWORD")
        return f"; check DRUMLINE_CLICKHOUSE__{user} and DRUMLINE_CLICKHOUSE__{secret}_FILE"
    url = urlsplit(settings.clickhouse_url)
    if CLOSED not in text:
        return ""
    if url.scheme == "https":
        return "; does it want a client certificate (DRUMLINE_CLICKHOUSE__CERTIFICATE, DRUMLINE_CLICKHOUSE__KEY)?"
    encrypted = tls.accepts_tls(url.hostname or "", url.port or 8123)
    return "; the server uses TLS, and DRUMLINE_CLICKHOUSE__URL is http" if encrypted else ""
