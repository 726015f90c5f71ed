"""Configuration of all confluent-kafka clients from the settings, in librdkafka's names."""

from __future__ import annotations

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry.insecure import kafka_exposure, warn_once

#: The most that a batch may unpack to. librdkafka applies it to zstd only.
UNPACKED_BYTES = 32 << 20
#: Compressed bytes of an answer to a sink: one batch of the largest size that a topic takes. librdkafka unpacks all of
#: an answer at once and asks for the next one when all is taken: a batch of gzip may take a thousand times its size,
#: and with several in an answer each of them would.
FETCH_BYTES = 1 << 20


def client_config(settings: Settings, client_id: str) -> dict[str, str | int | float | bool]:
    """Return the base configuration of every client: address, rack, TLS, SASL, reconnection."""
    kafka = settings.kafka
    for text in kafka_exposure(settings):
        warn_once(text)
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": settings.bootstrap,
        "client.id": client_id,
        "security.protocol": kafka.security_protocol,
        # A broker that was cut off from its controller may report no broker at all, and librdkafka then forgets the
        # last one it knows. Only "rebootstrap" (its default) queries the bootstrap addresses again, though 2.16 not
        # each time.
        "metadata.recovery.strategy": "rebootstrap",
        # With librdkafka's 100 ms a client without a broker, or rejected by it, tries 20 times a second for all that
        # time, whatever the maximum; so twice. Each client takes 0.5 s longer for its first connection.
        "reconnect.backoff.ms": 1_000,
        "reconnect.backoff.max.ms": 3_000,
    }
    if kafka.rack:
        config["client.rack"] = kafka.rack
    if kafka.security_protocol.startswith("SASL"):
        config["sasl.mechanism"] = kafka.sasl_mechanism
        config["sasl.username"] = kafka.sasl_username
        config["sasl.password"] = kafka.current_password()
    if kafka.security_protocol.endswith("SSL"):
        for name, path in (
            ("ssl.ca.location", kafka.ssl_ca),
            ("ssl.certificate.location", kafka.ssl_certificate),
            ("ssl.key.location", kafka.ssl_key),
        ):
            if path is not None:
                config[name] = str(path)
    return config


def admin_config(settings: Settings, client_id: str) -> dict[str, str | int | float | bool]:
    """Return the configuration of a long-lived admin client that queries end offsets.

    A restarted broker has new leader epochs. With the old ones, which librdkafka keeps for 15 minutes, it answers
    FENCED_LEADER_EPOCH.
    """
    return {**client_config(settings, client_id), "metadata.max.age.ms": 5_000}


def producer_config(settings: Settings, client_id: str) -> dict[str, str | int | float | bool]:
    """Return the configuration of an idempotent producer. Faust's client partitions with murmur2 too."""
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
    """Return the configuration of a producer that copies records unchanged, dead letters.

    Uncompressed records may be many times larger than the broker's limit, which it applies to the compressed size.
    """
    return {**producer_config(settings, client_id), "message.max.bytes": 100_000_000}
