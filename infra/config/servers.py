"""Settings of the servers that drumline talks to: addresses, users, certificates, secrets, and what it keeps there."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator

from drumline.infra.config.validation import SettingsModel, check_certificates, check_url, read_secret


class KafkaSettings(SettingsModel):
    """Where the broker is. Without `bootstrap`, the local stack's."""

    bootstrap: str = Field("", description="host:port, comma separated; empty = the local stack")
    partitions: int = Field(4, ge=1, description="partitions of every topic: the most workers there will ever be")
    replication: int = Field(1, ge=1, description="replicas of every topic")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password: SecretStr | None = None
    sasl_password_file: Path | None = None
    ssl_ca: Path | None = Field(None, description="CA certificates, PEM; none = the system's")
    ssl_certificate: Path | None = Field(None, description="this client's certificate, PEM")
    ssl_key: Path | None = Field(None, description="its private key, PEM")
    ssl_key_password: SecretStr | None = None
    ssl_key_password_file: Path | None = None
    registry_url: str = Field("", description="Confluent-compatible schema registry; empty = lock file in the package")
    registry_register: bool = Field(True, description="register our schemas there; false = they must be there already")
    registry_user: str = ""
    registry_password: SecretStr | None = None
    registry_password_file: Path | None = None
    registry_ca: Path | None = Field(None, description="CA certificates, PEM, for https")

    @model_validator(mode="after")
    def _secrets(self) -> KafkaSettings:
        self.sasl_password = read_secret("KAFKA__SASL_PASSWORD", self.sasl_password, self.sasl_password_file)
        self.ssl_key_password = read_secret(
            "KAFKA__SSL_KEY_PASSWORD", self.ssl_key_password, self.ssl_key_password_file
        )
        self.registry_password = read_secret(
            "KAFKA__REGISTRY_PASSWORD", self.registry_password, self.registry_password_file
        )
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


class RetentionSettings(SettingsModel):
    """How long ClickHouse keeps what, by event time; days, 0 = for ever. `drumline migrate` applies it."""

    kernels: int = Field(7, ge=0)
    memcpys: int = Field(14, ge=0)
    collectives: int = Field(14, ge=0)
    ranges: int = Field(14, ge=0)
    steps: int = Field(180, ge=0)
    device_samples: int = Field(90, ge=0)
    kernel_frequency: int = Field(90, ge=0)
    memcpy_bandwidth: int = Field(90, ge=0)
    lateness: int = Field(14, ge=0)
    stragglers: int = Field(365, ge=0)
    processes: int = Field(365, ge=0)
    ledger: int = Field(365, ge=0)
    ranks_per_second: int = Field(30, ge=0)
    kernels_per_minute: int = Field(90, ge=0)
    memcpys_per_minute: int = Field(180, ge=0)
    devices_per_minute: int = Field(365, ge=0)
    records_per_minute: int = Field(365, ge=0)


class TieringSettings(SettingsModel):
    """Where ClickHouse keeps older events: after some days of event time they move to a cheaper volume of a storage
    policy that the server has. `drumline migrate` applies it to kernels, memcpys, collectives, ranges, samples."""

    storage_policy: str = Field(
        "", pattern="^[A-Za-z0-9_]*$", description="must have the volume `default` too; empty = no tiers"
    )
    volume: str = Field("cold", pattern="^[A-Za-z0-9_]+$", description="the policy's volume for what is old")
    after: int = Field(2, ge=1, description="age at which rows move; days")


class ClickHouseSettings(SettingsModel):
    """Where ClickHouse is. Without `url`, the local stack's engine."""

    url: str = Field("", description="http(s)://host:port; empty = the local stack's engine")
    database: str = Field("gpu", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    user: str = "writer"
    password: SecretStr | None = None
    password_file: Path | None = None
    reader: str = Field("analyst", description="read-only user of `drumline sql`")
    reader_password: SecretStr | None = None
    reader_password_file: Path | None = None
    ca: Path | None = Field(None, description="CA certificates, PEM, for https; none = the system's")
    certificate: Path | None = Field(None, description="this client's certificate, PEM, for https")
    key: Path | None = Field(None, description="its private key, PEM, without password")
    verify: bool = Field(True, description="false = any certificate will do, so anybody may take the password")
    retention: RetentionSettings = RetentionSettings()
    tiering: TieringSettings = TieringSettings()

    @model_validator(mode="after")
    def _secrets(self) -> ClickHouseSettings:
        self.password = read_secret("CLICKHOUSE__PASSWORD", self.password, self.password_file)
        self.reader_password = read_secret(
            "CLICKHOUSE__READER_PASSWORD", self.reader_password, self.reader_password_file
        )
        check_certificates(
            ("CLICKHOUSE__CA", self.ca), ("CLICKHOUSE__CERTIFICATE", self.certificate), ("CLICKHOUSE__KEY", self.key)
        )
        check_url("CLICKHOUSE__URL", self.url)
        return self


class ArchiveSettings(SettingsModel):
    """Where the agent keeps segments after Kafka has them."""

    url: str = Field("", pattern="^(s3://.+)?$", description="s3://bucket/prefix; empty = no archive")
    endpoint: str = Field("", description="http(s)://host:port of S3-compatible storage; empty = AWS")
    region: str = "us-east-1"
    key_id: str = Field("", description="empty = the environment's, web identity's or instance's credentials")
    secret: SecretStr | None = None
    secret_file: Path | None = None
    backlog_mb: int = Field(256, ge=1, description="the most that waits for the storage; MB; beyond it the oldest goes")

    @model_validator(mode="after")
    def _secrets(self) -> ArchiveSettings:
        self.secret = read_secret("ARCHIVE__SECRET", self.secret, self.secret_file)
        check_url("ARCHIVE__ENDPOINT", self.endpoint)
        return self


class GrafanaSettings(SettingsModel):
    """`drumline grafana`: a server without file access, and where its alerts go."""

    url: str = Field("", description="http(s)://host:port of Grafana")
    token: SecretStr | None = Field(None, description="of a service account with role Admin")
    token_file: Path | None = None
    ca: Path | None = Field(None, description="CA certificates, PEM, for https; none = the system's")
    clickhouse_url: str = Field("", description="ClickHouse as Grafana reaches it; empty = as we do")
    clickhouse_user: str = "grafana"
    clickhouse_password: SecretStr | None = None
    clickhouse_password_file: Path | None = None
    webhook: SecretStr | None = Field(None, description="URL that alerts are posted to")
    slack: SecretStr | None = Field(None, description="Slack's incoming-webhook URL")
    pagerduty: SecretStr | None = Field(None, description="PagerDuty's integration key")

    @model_validator(mode="after")
    def _secrets(self) -> GrafanaSettings:
        self.token = read_secret("GRAFANA__TOKEN", self.token, self.token_file)
        self.clickhouse_password = read_secret(
            "GRAFANA__CLICKHOUSE_PASSWORD", self.clickhouse_password, self.clickhouse_password_file
        )
        check_certificates(("GRAFANA__CA", self.ca))
        check_url("GRAFANA__URL", self.url)
        check_url("GRAFANA__CLICKHOUSE_URL", self.clickhouse_url)
        return self
