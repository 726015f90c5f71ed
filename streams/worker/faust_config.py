"""Derive Faust's settings from drumline's. Every one that differs from Faust's default has a reason.

docs/design/streams.md gives the reasons.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from drumline.infra.config.settings import Settings
from drumline.infra.runtime import tls

#: Kafka gives the partitions of a worker without heartbeats to others after so long.
SESSION_S = 10.0
#: Records of a poll, of all topics.
MAX_POLL = 100


def credentials(settings: Settings) -> Any:
    """Return Faust credentials for TLS and SASL, or None for PLAINTEXT. Raises OSError, ssl.SSLError on bad files."""
    from faust.auth import SASLCredentials, SSLCredentials

    kafka = settings.kafka
    context: ssl.SSLContext | None = None
    if kafka.security_protocol.endswith("SSL"):
        context = tls.context(kafka.ssl_ca, kafka.ssl_certificate, kafka.ssl_key)
    if kafka.security_protocol.startswith("SASL"):
        return SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.sasl_password.get_secret_value() if kafka.sasl_password else "",
            mechanism=kafka.sasl_mechanism,
            ssl_context=context,
        )
    return SSLCredentials(context) if context is not None else None


def faust_settings(settings: Settings, folder: Path, partitions: int) -> dict[str, Any]:
    """Return the keyword arguments of faust.App.

    `folder`: its data folder. `partitions`: of every topic it reads; changelogs get as many.
    """
    brokers = [f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")]
    options: dict[str, Any] = {
        "id": settings.stream.app_id,
        "broker": brokers,
        "broker_credentials": credentials(settings),
        "datadir": str(folder),
        "autodiscover": False,
        "store": "memory://",
        "processing_guarantee": "at_least_once",  # exactly_once crashes or duplicates; the state keeps offsets instead
        "consumer_auto_offset_reset": "earliest",
        "broker_commit_interval": 1.0,
        "broker_session_timeout": SESSION_S,
        "broker_heartbeat_interval": 3.0,
        "broker_rebalance_timeout": 30.0,
        "stream_buffer_maxsize": 32,  # messages of up to 1 MB
        # Both bound the unpacked records of a worker that is behind; the defaults (1 MB packed of every partition, all
        # of it decoded at one poll) came to 180 MiB after a pause of seconds.
        "consumer_max_fetch_size": 262_144,
        "broker_max_poll_records": MAX_POLL,
        "stream_wait_empty": True,
        "table_standby_replicas": 0,
        "topic_disable_leader": True,
        "topic_allow_declare": False,  # only `drumline topics apply` creates topics, and preflight.py changelogs
        "topic_partitions": partitions,
        "topic_replication_factor": settings.kafka.replication,
        "producer_acks": -1,
        "producer_compression_type": "zstd",
        "producer_linger": 0.01,
        "producer_max_batch_size": 500_000,
        "producer_max_request_size": 100_000_000,  # dead letters are as large as their records; the broker checks
        "web_enabled": False,
        "key_serializer": "raw",
        "value_serializer": "raw",
    }
    if settings.instance:
        options["consumer_group_instance_id"] = settings.instance
    return options
