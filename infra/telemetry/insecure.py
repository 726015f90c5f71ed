"""Warnings about settings that expose a password or its data on the network; logged once per process."""

from __future__ import annotations

import ipaddress
import logging
from functools import cache
from urllib.parse import urlsplit

from drumline.infra.config.settings import Settings

log = logging.getLogger("drumline.security")


def kafka_exposure(settings: Settings) -> list[str]:
    """Return a sentence for each exposure of the connections to Kafka and the registry."""
    kafka, warnings = settings.kafka, []
    away = any(not is_loopback(server.strip().rsplit(":", 1)[0]) for server in settings.bootstrap.split(","))
    where = f"Kafka at {settings.bootstrap}"
    if kafka.sasl_password is not None and not kafka.security_protocol.startswith("SASL"):
        warnings.append(f"{where} gets no password: DRUMLINE_KAFKA__SECURITY_PROTOCOL is {kafka.security_protocol}")
    if away and kafka.security_protocol == "PLAINTEXT" and (kafka.sasl_password or kafka.ssl_ca):
        warnings.append(
            f"nothing between here and {where} is encrypted: DRUMLINE_KAFKA__SECURITY_PROTOCOL is PLAINTEXT"
        )
    if away and kafka.security_protocol == "SASL_PLAINTEXT":
        data = "the password and everything else" if kafka.sasl_mechanism == "PLAIN" else "everything but the password"
        warnings.append(
            f"{data} can be read on the way to {where}; DRUMLINE_KAFKA__SECURITY_PROTOCOL=SASL_SSL encrypts"
        )
    for url in kafka.registry_url.split(",") if kafka.registry_password else []:
        warnings += _url_exposure("the schema registry", url.strip(), "DRUMLINE_KAFKA__REGISTRY_URL")
    return warnings


def clickhouse_exposure(settings: Settings) -> list[str]:
    """Return a sentence for each exposure of the connection to ClickHouse."""
    url = settings.clickhouse.url
    return _url_exposure("ClickHouse", url, "DRUMLINE_CLICKHOUSE__URL") if url else []


@cache
def warn_once(text: str) -> None:
    """Log a warning; the same text only once per process."""
    log.warning(text)


def _url_exposure(server: str, url: str, setting: str) -> list[str]:
    parts = urlsplit(url)
    if parts.scheme == "https" or is_loopback(parts.hostname or ""):
        return []
    return [f"the password for {server} and everything else can be read on the way to {url}; {setting} may be https"]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
