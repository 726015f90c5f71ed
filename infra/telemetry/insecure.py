"""Settings under which a password, or what it protects, can be read or taken on the way: said once per process."""

from __future__ import annotations

import ipaddress
import logging
from functools import cache
from urllib.parse import urlsplit

from drumline.infra.config.settings import Settings

log = logging.getLogger("drumline.security")


def kafka_exposure(settings: Settings) -> list[str]:
    """What is wrong with how Kafka and the registry are talked to, in sentences."""
    kafka, found = settings.kafka, []
    away = any(not _loopback(one.strip().rsplit(":", 1)[0]) for one in settings.bootstrap.split(","))
    where = f"Kafka at {settings.bootstrap}"
    if kafka.sasl_password is not None and not kafka.security_protocol.startswith("SASL"):
        found.append(f"{where} gets no password: DRUMLINE_KAFKA__SECURITY_PROTOCOL is {kafka.security_protocol}")
    if away and kafka.security_protocol == "PLAINTEXT" and (kafka.sasl_password or kafka.ssl_ca):
        found.append(f"nothing between here and {where} is encrypted: DRUMLINE_KAFKA__SECURITY_PROTOCOL is PLAINTEXT")
    if away and kafka.security_protocol == "SASL_PLAINTEXT":
        what = "the password and everything else" if kafka.sasl_mechanism == "PLAIN" else "everything but the password"
        found.append(f"{what} can be read on the way to {where}; DRUMLINE_KAFKA__SECURITY_PROTOCOL=SASL_SSL encrypts")
    for one in kafka.registry_url.split(",") if kafka.registry_password else []:
        found += _url_exposure("the schema registry", one.strip(), "DRUMLINE_KAFKA__REGISTRY_URL")
    return found


def clickhouse_exposure(settings: Settings) -> list[str]:
    """What is wrong with how ClickHouse is talked to, in sentences."""
    clickhouse = settings.clickhouse
    found = _url_exposure("ClickHouse", clickhouse.url, "DRUMLINE_CLICKHOUSE__URL") if clickhouse.url else []
    if clickhouse.url.startswith("https") and not clickhouse.verify:
        found.append(
            f"the certificate of ClickHouse at {clickhouse.url} is NOT verified (DRUMLINE_CLICKHOUSE__VERIFY=false): "
            "whoever answers there gets the password and the data"
        )
    return found


@cache
def warn_once(text: str) -> None:
    log.warning(text)


def _url_exposure(what: str, url: str, setting: str) -> list[str]:
    parts = urlsplit(url)
    if parts.scheme == "https" or _loopback(parts.hostname or ""):
        return []
    return [f"the password for {what} and everything else can be read on the way to {url}; {setting} may be https"]


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
