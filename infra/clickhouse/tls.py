"""TLS to ClickHouse: clickhouse-connect's arguments, and which setting a failed connection is about."""

from __future__ import annotations

import re
import ssl
from typing import Any
from urllib.parse import urlsplit

from drumline.infra.config.settings import Settings
from drumline.infra.runtime import tls

#: ClickHouse's code for a wrong user or password.
WRONG_PASSWORD = 516
#: What we say of a connection that the other side ended without a word.
CLOSED = "the connection was closed"


def options(settings: Settings) -> dict[str, Any]:
    """clickhouse-connect's arguments for https."""
    clickhouse = settings.clickhouse
    if not settings.clickhouse_url.startswith("https"):
        return {}
    made: dict[str, Any] = {"verify": clickhouse.verify}
    if clickhouse.ca is not None:
        made["ca_cert"] = str(clickhouse.ca)
    if clickhouse.certificate is not None:  # "strict": certificate and password
        made |= {"client_cert": str(clickhouse.certificate), "client_cert_key": str(clickhouse.key)}
        made["tls_mode"] = "strict"
    return made


def context(settings: Settings) -> ssl.SSLContext:
    """The same for Python's own HTTP client."""
    clickhouse = settings.clickhouse
    made = tls.context(clickhouse.ca, clickhouse.certificate, clickhouse.key)
    if not clickhouse.verify:
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def tls_error(text: str) -> str:
    """What a driver's error text says of TLS that no retry mends, and what to set; "" if nothing."""
    if what := tls.certificate_error_in(text):
        cure = tls.certificate_hint(what, "DRUMLINE_CLICKHOUSE__URL", "DRUMLINE_CLICKHOUSE__CA")
        return f"the server's certificate is not accepted: {what}; {cure}"
    found = re.search(r"\[SSL: [A-Z0-9_]+\] (.+?)\.? \(_ssl", text)
    said = found[1] if found else ""
    if "alert" in said and ("certificate" in said or "unknown ca" in said):
        return "the server wants another client certificate; see DRUMLINE_CLICKHOUSE__CERTIFICATE and ..._KEY"
    if said == "wrong version number":
        return "the server speaks no TLS, and DRUMLINE_CLICKHOUSE__URL says https"
    return ""


def hint(settings: Settings, code: int, text: str, reader: bool) -> str:
    """What to check after a first contact that failed, where that is known; else ""."""
    if code == WRONG_PASSWORD:
        user, secret = ("READER", "READER_PASSWORD") if reader else ("USER", "PASSWORD")
        return f"; check DRUMLINE_CLICKHOUSE__{user} and DRUMLINE_CLICKHOUSE__{secret}_FILE (or ...__{secret})"
    url = urlsplit(settings.clickhouse_url)
    if CLOSED not in text:
        return ""
    if url.scheme == "https":
        return "; does it want a client certificate (DRUMLINE_CLICKHOUSE__CERTIFICATE, DRUMLINE_CLICKHOUSE__KEY)?"
    encrypted = tls.accepts_tls(url.hostname or "", url.port or 8123)
    return "; what listens there speaks TLS, and DRUMLINE_CLICKHOUSE__URL says http" if encrypted else ""
