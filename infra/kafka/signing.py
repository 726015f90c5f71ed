"""Signatures of records with the key of the producer's tenant (schemas/tenants.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.tenants import key_bytes
from drumline.schemas.tenants import signed_headers

#: (topic, key, value) -> further arguments of a client's `produce`.
Signer = Callable[[str, bytes, bytes], dict[str, Any]]


def signer(kafka: KafkaSettings) -> Signer:
    """Return what signs the records of this process; without a key it adds nothing."""
    if kafka.tenant_key is None:
        return lambda _topic, _key, _value: {}
    name, secret = kafka.tenant, key_bytes(kafka.tenant_key.get_secret_value())
    return lambda topic, key, value: {"headers": signed_headers(name, secret, topic, key, value)}
