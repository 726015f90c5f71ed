"""Settings of Kafka and the schema registry: addresses, topics, users, certificates, secrets, tenants."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from drumline.infra.config.tenants import key_bytes, read_tenants
from drumline.infra.config.validation import SettingsModel, check_certificates, check_url, read_secret
from drumline.schemas.topics import TOPICS


class KafkaSettings(SettingsModel):
    """The Kafka broker and the schema registry."""

    bootstrap: str = Field("", description="host:port, comma separated; empty = the local stack")
    partitions: int = Field(4, ge=1, description="partitions of each topic: the maximum number of stream workers")
    topic_partitions: dict[str, int] = Field(
        {}, description="partitions of topics that no stream worker reads, where they differ: JSON, topic -> number"
    )
    replication: int = Field(1, ge=1, description="replicas of each topic; 3 survive any one broker, two at once too")
    min_insync_replicas: int | None = Field(
        None,
        ge=1,
        description="replicas that have a record before Kafka acknowledges it; none = 2, or 1 of one replica",
    )
    rack: str = Field("", description="rack or zone of this host; sinks and agents then read from a replica in it")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="encryption and authentication of the listener"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="how a SASL listener checks the password"
    )
    sasl_username: str = Field("", description="user of a SASL listener")
    sasl_password: SecretStr | None = Field(None, description="password of that user")
    sasl_password_file: Path | None = Field(None, description="file with that password")
    ssl_ca: Path | None = Field(None, description="CA certificates, PEM; none = the system's")
    ssl_certificate: Path | None = Field(None, description="certificate of this client, PEM")
    ssl_key: Path | None = Field(None, description="private key of that certificate, PEM")
    ssl_key_password: SecretStr | None = Field(None, description="password of an encrypted private key")
    ssl_key_password_file: Path | None = Field(None, description="file with that password")
    tenant: str = Field("", description="tenant of this agent or replay, which signs its records; empty = no signature")
    tenant_key: SecretStr | None = Field(None, description="key of that tenant: 32 bytes or more in hexadecimal digits")
    tenant_key_file: Path | None = Field(None, description="file with that key")
    tenants_file: Path | None = Field(
        None, description="JSON with the tenants that sinks and stream workers accept; none = records need no signature"
    )
    registry_url: str = Field("", description="Confluent-compatible schema registry; empty = lock file in the package")
    registry_register: bool = Field(True, description="register missing schemas; false = they must be registered")
    registry_user: str = Field("", description="user of the registry (HTTP basic authentication)")
    registry_password: SecretStr | None = Field(None, description="password of that user")
    registry_password_file: Path | None = Field(None, description="file with that password")
    registry_ca: Path | None = Field(None, description="CA certificates, PEM, for https")

    @field_validator("topic_partitions")
    @classmethod
    def _own_partitions(cls, numbers: dict[str, int]) -> dict[str, int]:
        allowed = [str(spec.topic) for spec in TOPICS if not spec.joined]
        for topic, number in numbers.items():
            if topic not in allowed or number < 1:
                raise ValueError(f"{topic}: {number}, not one or more for one of {', '.join(allowed)}")
        return numbers

    @property
    def in_sync(self) -> int:
        """Replicas that have a record before it is acknowledged: two where there are two, so never one broker alone."""
        return self.min_insync_replicas or min(2, self.replication)

    def current_password(self) -> str:
        """Return the password of the SASL user as its file has it now: it may have been changed since the start."""
        with suppress(ValueError):
            secret = read_secret("KAFKA__SASL_PASSWORD", self.sasl_password, self.sasl_password_file)
            return secret.get_secret_value() if secret else ""
        return self.sasl_password.get_secret_value() if self.sasl_password else ""

    @model_validator(mode="after")
    def _secrets(self) -> KafkaSettings:
        if self.in_sync > self.replication:
            raise ValueError(
                f"DRUMLINE_KAFKA__MIN_INSYNC_REPLICAS={self.in_sync} is more than DRUMLINE_KAFKA__REPLICATION="
                f"{self.replication}: Kafka would acknowledge nothing"
            )
        self.sasl_password = read_secret("KAFKA__SASL_PASSWORD", self.sasl_password, self.sasl_password_file)
        self.ssl_key_password = read_secret(
            "KAFKA__SSL_KEY_PASSWORD", self.ssl_key_password, self.ssl_key_password_file
        )
        self.registry_password = read_secret(
            "KAFKA__REGISTRY_PASSWORD", self.registry_password, self.registry_password_file
        )
        self.tenant_key = read_secret("KAFKA__TENANT_KEY", self.tenant_key, self.tenant_key_file)
        if bool(self.tenant) != bool(self.tenant_key):
            raise ValueError("DRUMLINE_KAFKA__TENANT and DRUMLINE_KAFKA__TENANT_KEY_FILE (or ..._KEY) belong together")
        if self.tenant_key is not None:
            key_bytes(self.tenant_key.get_secret_value())
        if self.tenants_file is not None:
            read_tenants(self.tenants_file)
        if self.security_protocol.startswith("SASL") and not (self.sasl_username and self.sasl_password):
            raise ValueError(
                f"{self.security_protocol} needs DRUMLINE_KAFKA__SASL_USERNAME and DRUMLINE_KAFKA__SASL_PASSWORD_FILE "
                "(or ..._PASSWORD)"
            )
        check_certificates(
            ("KAFKA__SSL_CA", self.ssl_ca), ("KAFKA__SSL_CERTIFICATE", self.ssl_certificate),
            ("KAFKA__SSL_KEY", self.ssl_key), self.ssl_key_password,
        )  # fmt: skip
        check_certificates(("KAFKA__REGISTRY_CA", self.registry_ca))
        check_url("KAFKA__REGISTRY_URL", self.registry_url)
        return self
