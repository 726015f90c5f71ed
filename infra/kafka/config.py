"""Kafka clients' configuration from settings: one place for address, TLS and SASL (librdkafka's names)."""

from __future__ import annotations

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry.insecure import kafka_exposure, warn_once


def client_config(settings: Settings, client_id: str) -> dict[str, str | int | float | bool]:
    """Configuration that every confluent-kafka client of ours starts from."""
    kafka = settings.kafka
    for text in kafka_exposure(settings):
        warn_once(text)
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": settings.bootstrap,
        "client.id": client_id,
        "security.protocol": kafka.security_protocol,
        # A broker that was cut off from its controller may tell of no broker at all, and librdkafka then forgets the
        # last one it knows. Only "rebootstrap" (its default) ever asks the bootstrap addresses again, though 2.16 not
        # each time (docs/design/kafka-clients.md).
        "metadata.recovery.strategy": "rebootstrap",
        # With librdkafka's 100 ms a client that has lost its broker or is refused by it tries 20 times a second, for as
        # long as that lasts and whatever the maximum; so twice. Every client takes 0.5 s longer to connect at first.
        "reconnect.backoff.ms": 1_000,
        "reconnect.backoff.max.ms": 3_000,
    }
    if kafka.security_protocol.startswith("SASL"):
        config["sasl.mechanism"] = kafka.sasl_mechanism
        config["sasl.username"] = kafka.sasl_username
        config["sasl.password"] = kafka.sasl_password.get_secret_value() if kafka.sasl_password else ""
    if kafka.security_protocol.endswith("SSL"):
        for name, path in (
            ("ssl.ca.location", kafka.ssl_ca),
            ("ssl.certificate.location", kafka.ssl_certificate),
            ("ssl.key.location", kafka.ssl_key),
        ):
            if path is not None:
                config[name] = str(path)
        if kafka.ssl_key_password is not None:
            config["ssl.key.password"] = kafka.ssl_key_password.get_secret_value()
    return config


def admin_config(settings: Settings, client_id: str) -> dict[str, str | int | float | bool]:
    """An admin client that lives for long and asks for ends of partitions. A broker that was killed comes back with
    other leader epochs; with the old ones, which librdkafka keeps for 15 minutes, it answers FENCED_LEADER_EPOCH."""
    return {**client_config(settings, client_id), "metadata.max.age.ms": 5_000}


def producer_config(settings: Settings, client_id: str) -> dict[str, str | int | float | bool]:
    """An idempotent producer. murmur2 is what Faust's client uses too: equal keys meet in equal partitions."""
    return {
        **client_config(settings, client_id),
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "compression.type": "zstd",
        "linger.ms": 20,
        "batch.size": 1_000_000,
        "message.max.bytes": 1_000_000,
        "delivery.timeout.ms": 120_000,
    }


def dead_letter_config(settings: Settings, client_id: str) -> dict[str, str | int | float | bool]:
    """A producer of records that others made, as they came: up to what a broker may have taken, and compressed records
    may be many times larger than that. The broker still judges the compressed size."""
    return {**producer_config(settings, client_id), "message.max.bytes": 100_000_000}
