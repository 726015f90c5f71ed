"""Settings of Kafka and the schema registry: addresses, topics, users, certificates, secrets, tenants."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from drumline.infra.config.tenants import key_bytes, read_tenants
from drumline.infra.config.validation import FileContent, SettingsModel, check_certificates, check_url, read_secret
from drumline.schemas.topics import TOPICS


class KafkaSettings(SettingsModel):
    """The Kafka broker and the schema registry."""

    bootstrap: str = Field("", description="host:port, comma separated; empty = the local stack")
    partitions: int = Field(4, ge=1, description="partitions of each topic: the maximum number of stream workers")
    topic_partitions: dict[str, int] = Field(
        {}, description="partitions of topics that no stream worker reads, where they differ: JSON, topic -> number"
    )
    replication: int = Field(1, ge=1, description="replicas of each topic; 3 survive any one broker, two at once too")
    rack: str = Field("", description="rack or zone of this host; sinks and agents then read from a replica in it")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="encryption and authentication of the listener"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="how a SASL listener checks the password"
    )
    sasl_username: str = Field("", description="user of a SASL listener")
    sasl_password: FileContent = None
    sasl_password_file: Path | None = Field(None, description="file with the password of that user")
    ssl_ca: Path | None = Field(None, description="CA certificates, PEM; none = the system's")
    ssl_certificate: Path | None = Field(None, description="certificate of this client, PEM")
    ssl_key: Path | None = Field(None, description="private key of that certificate, PEM, without password")
    tenant: str = Field("", description="tenant of this agent or replay, which signs its records; empty = no signature")
    tenant_key: FileContent = None
    tenant_key_file: Path | None = Field(
        None, description="file with the tenant's key: 32 bytes or more in hexadecimal digits"
    )
    tenants_file: Path | None = Field(
        None, description="JSON with the tenants that sinks and stream workers accept; none = records need no signature"
    )
    registry_url: str = Field("", description="Confluent-compatible schema registry; empty = lock file in the package")
    registry_register: bool = Field(True, description="register missing schemas; false = they must be registered")
    registry_user: str = Field("", description="user of the registry (HTTP basic authentication)")
    registry_password: FileContent = None
    registry_password_file: Path | None = Field(None, description="file with the password of that user")

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
        return min(2, self.replication)

    def current_password(self) -> str:
        """Return the password of the SASL user as its file has it now: it may have been changed since the start."""
        with suppress(ValueError):
            secret = read_secret("KAFKA__SASL_PASSWORD", self.sasl_password, self.sasl_password_file)
            return secret.get_secret_value() if secret else ""
        return self.sasl_password.get_secret_value() if self.sasl_password else ""

    @model_validator(mode="after")
    def _secrets(self) -> KafkaSettings:
        self.sasl_password = read_secret("KAFKA__SASL_PASSWORD", self.sasl_password, self.sasl_password_file)
        self.registry_password = read_secret(
            "KAFKA__REGISTRY_PASSWORD", self.registry_password, self.registry_password_file
        )
        self.tenant_key = read_secret("KAFKA__TENANT_KEY", self.tenant_key, self.tenant_key_file)
        if bool(self.tenant) != bool(self.tenant_key):
            raise ValueError("DRUMLINE_KAFKA__TENANT and DRUMLINE_KAFKA__TENANT_KEY_FILE belong together")
        if self.tenant_key is not None:
            key_bytes(self.tenant_key.get_secret_value())
        if self.tenants_file is not None:
            read_tenants(self.tenants_file)
        if self.security_protocol.startswith("SASL") and not (self.sasl_username and self.sasl_password):
            raise ValueError(
                f"{self.security_protocol} needs DRUMLINE_KAFKA__SASL_USERNAME and DRUMLINE_KAFKA__SASL_PASSWORD_FILE"
            )
        check_certificates(
            ("KAFKA__SSL_CA", self.ssl_ca), ("KAFKA__SSL_CERTIFICATE", self.ssl_certificate),
            ("KAFKA__SSL_KEY", self.ssl_key),
        )  # fmt: skip
        check_url("KAFKA__REGISTRY_URL", self.registry_url)
        return self
