"""Settings of Kafka, ClickHouse, archive, Grafana and web page: addresses, users, certificates, secrets, retention."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from drumline.infra.config.tenants import key_bytes, read_tenants
from drumline.infra.config.validation import SettingsModel, check_certificates, check_url, read_secret, server_address
from drumline.infra.config.webhook_key import webhook_key_bytes
from drumline.schemas.topics import TOPICS

#: Name of the ClickHouse server at CLICKHOUSE__URL among its replicas.
PRIMARY = "primary"


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


class RetentionSettings(SettingsModel):
    """Retention of each table by event time; days, 0 = for ever. `drumline migrate` applies it."""

    kernels: int = Field(7, ge=0, description="kernels; days")
    memcpys: int = Field(14, ge=0, description="memory copies; days")
    collectives: int = Field(14, ge=0, description="collectives; days")
    ranges: int = Field(14, ge=0, description="NVTX ranges; days")
    steps: int = Field(180, ge=0, description="steps; days")
    device_samples: int = Field(90, ge=0, description="NVML samples; days")
    host_samples: int = Field(30, ge=0, description="samples of processes; days")
    network_samples: int = Field(90, ge=0, description="samples of links; days")
    checks: int = Field(365, ge=0, description="health checks; days")
    stacks: int = Field(90, ge=0, description="Python stacks of named ranks; days")
    launches: int = Field(14, ge=0, description="launches of deep windows; days")
    stalls: int = Field(30, ge=0, description="samples of the GPU in deep windows; days")
    kernel_frequency: int = Field(90, ge=0, description="rolling kernel frequency; days")
    memcpy_bandwidth: int = Field(90, ge=0, description="rolling memcpy bandwidth; days")
    lateness: int = Field(14, ge=0, description="lateness of ranks; days")
    stragglers: int = Field(365, ge=0, description="verdicts; days")
    progress: int = Field(14, ge=0, description="progress of ranks; days")
    hangs: int = Field(365, ge=0, description="jobs that stood still; days")
    processes: int = Field(365, ge=0, description="identities of processes; days")
    ledger: int = Field(365, ge=0, description="stored Kafka records; days")
    ranks_per_second: int = Field(30, ge=0, description="rollup per second and rank; days")
    steps_per_second: int = Field(365, ge=0, description="rollup of steps per second; days")
    kernels_per_minute: int = Field(90, ge=0, description="rollup of kernels; days")
    memcpys_per_minute: int = Field(180, ge=0, description="rollup of copies; days")
    devices_per_minute: int = Field(365, ge=0, description="rollup of device samples; days")
    records_per_minute: int = Field(365, ge=0, description="rollup of records, for the health dashboard; days")


class TieringSettings(SettingsModel):
    """Move older events to a cheaper volume of one of the server's storage policies, by event time.

    `drumline migrate` applies it to kernels, memcpys, collectives, ranges, and samples of devices and hosts.
    """

    storage_policy: str = Field(
        "", pattern="^[A-Za-z0-9_]*$", description="storage policy with this volume and `default`; empty = no tiers"
    )
    volume: str = Field("cold", pattern="^[A-Za-z0-9_]+$", description="volume of the policy for older rows")
    after: int = Field(2, ge=1, description="age at which rows move; days")


class ClickHouseSettings(SettingsModel):
    """The ClickHouse server: the writer's account for migrations and sinks, the reader's for queries."""

    url: str = Field("", description="http(s)://host:port; empty = the local stack's engine")
    replicas: dict[str, str] = Field(
        {}, description="further servers, each with a sink of its own (`drumline sink --replica`): JSON, name -> URL"
    )
    database: str = Field("gpu", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="database of all tables")
    user: str = Field("writer", description="user of migrations, sinks and audit")
    password: SecretStr | None = Field(None, description="password of that user")
    password_file: Path | None = Field(None, description="file with that password")
    reader: str = Field("analyst", description="read-only user of `drumline sql`, `report` and `top`")
    reader_password: SecretStr | None = Field(None, description="password of the reader")
    reader_password_file: Path | None = Field(None, description="file with that password")
    ca: Path | None = Field(None, description="CA certificates, PEM, for https; none = the system's")
    certificate: Path | None = Field(None, description="certificate of this client, PEM, for https")
    key: Path | None = Field(None, description="private key of that certificate, PEM, without password")
    verify: bool = Field(True, description="verify the server's certificate; false lets any server take the password")
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
        for name, url in self.replicas.items():
            if not re.fullmatch("[a-z][a-z0-9-]*", name) or name == PRIMARY or not url or "," in url:
                raise ValueError(
                    f"DRUMLINE_CLICKHOUSE__REPLICAS: {name!r}: a name of a-z, 0-9 and -, not {PRIMARY!r}, with one URL"
                )
            check_url("CLICKHOUSE__REPLICAS", url)
        servers = [server_address(url) for url in (self.url, *self.replicas.values()) if url]
        if len(set(servers)) < len(servers):  # two groups would fill it, each with every row
            raise ValueError("DRUMLINE_CLICKHOUSE__REPLICAS names a server twice, or the primary")
        return self


class ArchiveSettings(SettingsModel):
    """The archive: storage where the agent puts segments after Kafka acknowledged them."""

    url: str = Field("", pattern="^(s3://.+)?$", description="s3://bucket/prefix; empty = no archive")
    endpoint: str = Field("", description="http(s)://host:port of S3-compatible storage; empty = AWS")
    region: str = Field("us-east-1", description="region of the bucket")
    key_id: str = Field("", description="access key; empty = credentials of the environment, web identity or instance")
    secret: SecretStr | None = Field(None, description="secret of the access key")
    secret_file: Path | None = Field(None, description="file with that secret")
    backlog_mb: int = Field(
        256, ge=1, description="maximum size of waiting segments; the oldest are dropped beyond it; MB"
    )

    @model_validator(mode="after")
    def _secrets(self) -> ArchiveSettings:
        self.secret = read_secret("ARCHIVE__SECRET", self.secret, self.secret_file)
        check_url("ARCHIVE__ENDPOINT", self.endpoint)
        return self


class GrafanaSettings(SettingsModel):
    """The Grafana server of `drumline grafana apply`, its data source, and the receivers of alerts."""

    url: str = Field("", description="http(s)://host:port of Grafana")
    token: SecretStr | None = Field(None, description="token of a service account with role Admin")
    token_file: Path | None = Field(None, description="file with that token")
    ca: Path | None = Field(None, description="CA certificates, PEM, for https; none = the system's")
    clickhouse_url: str = Field("", description="address of ClickHouse for Grafana; empty = CLICKHOUSE__URL")
    clickhouse_user: str = Field("grafana", description="ClickHouse user of the data source")
    clickhouse_password: SecretStr | None = Field(None, description="password of that user")
    clickhouse_password_file: Path | None = Field(None, description="file with that password")
    webhook: SecretStr | None = Field(None, description="URL to which alerts are posted")
    slack: SecretStr | None = Field(None, description="incoming-webhook URL of Slack")
    pagerduty: SecretStr | None = Field(None, description="integration key of PagerDuty")

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


class OffenderSettings(SettingsModel):
    """The webhook of `drumline notify`, about hosts that are at fault again."""

    webhook: SecretStr | None = Field(None, description="URL to which notices are posted")
    webhook_file: Path | None = Field(None, description="file with that URL")
    webhook_key: SecretStr | None = Field(
        None, description="key that signs them: `whsec_` and 24 to 64 random bytes in base64"
    )
    webhook_key_file: Path | None = Field(None, description="file with that key")
    ca: Path | None = Field(None, description="CA certificates, PEM, for https; none = the system's")
    runs: int = Field(
        3, ge=1, description="runs with a fault until a host is due; a job that restarts in the same place makes two"
    )
    days: int = Field(30, ge=1, le=365, description="age up to which faults count; days")

    @model_validator(mode="after")
    def _secrets(self) -> OffenderSettings:
        self.webhook = read_secret("OFFENDERS__WEBHOOK", self.webhook, self.webhook_file)
        self.webhook_key = read_secret("OFFENDERS__WEBHOOK_KEY", self.webhook_key, self.webhook_key_file)
        check_url("OFFENDERS__WEBHOOK", self.webhook.get_secret_value() if self.webhook else "")
        if self.webhook_key is not None:
            try:
                webhook_key_bytes(self.webhook_key.get_secret_value())
            except ValueError as error:
                raise ValueError(f"DRUMLINE_OFFENDERS__WEBHOOK_KEY {error}") from None
        check_certificates(("OFFENDERS__CA", self.ca))
        return self


#: Address of the web page by default: links in alerts lead there.
WEB_PAGE = "http://127.0.0.1:18080"


class ServeSettings(SettingsModel):
    """The web page of `drumline serve`."""

    address: str = Field("127.0.0.1", description="address to listen on; others than loopback need a token")
    port: int = Field(18080, ge=0, le=65535, description="port; 0 = any free one")
    hosts: str = Field("", description="names, comma separated, by which browsers reach it, beside this host's own")
    url: str = Field("", description="http(s)://host:port by which people reach it; commands and alerts link to it")
    token: SecretStr | None = Field(None, description="token that browsers must send; none = no token")
    token_file: Path | None = Field(None, description="file with that token")
    certificate: Path | None = Field(None, description="certificate, PEM, for https; none = http")
    key: Path | None = Field(None, description="private key of that certificate, PEM, without password")

    @property
    def web_page(self) -> str:
        """Return the address that links lead to."""
        return self.url or WEB_PAGE

    @model_validator(mode="after")
    def _secrets(self) -> ServeSettings:
        self.token = read_secret("SERVE__TOKEN", self.token, self.token_file)
        if self.token is not None and len(self.token.get_secret_value()) < 16:
            raise ValueError("DRUMLINE_SERVE__TOKEN_FILE (or ..._TOKEN) needs 16 characters or more")
        check_certificates(("", None), ("SERVE__CERTIFICATE", self.certificate), ("SERVE__KEY", self.key))
        check_url("SERVE__URL", self.url)
        return self
