"""Settings of ClickHouse: addresses, users, certificates, secrets, retention, tiers."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, SecretStr, model_validator

from drumline.infra.config.validation import SettingsModel, check_certificates, check_url, read_secret, server_address
from drumline.schemas.topics import DAY_MS, TABLE_NAMES

#: Name of the ClickHouse server at CLICKHOUSE__URL among its replicas.
PRIMARY = "primary"


class RetentionSettings(SettingsModel):
    """Retention of each table, from when Kafka got a row; days, 0 = for ever. `drumline migrate` applies it."""

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

    def of(self, table: str) -> int:
        """Return the days for which a table, or the view of its newest rows, keeps rows; 0 = for ever."""
        # Without its evaluations the verdicts of a run that was evaluated twice would count twice.
        return int(getattr(self, "stragglers" if table == "evaluations" else table.removesuffix("_versions")))

    def kept_since_ns(self, topic: str, now_ns: int) -> int:
        """Return the time before which rows of a topic are older than their table keeps rows; ns since the epoch.

        It is 0 for ever, and for a topic without a table.
        """
        days = self.of(TABLE_NAMES[topic]) if topic in TABLE_NAMES else 0
        return now_ns - days * DAY_MS * 1_000_000 if days else 0


class TieringSettings(SettingsModel):
    """Move older events to a cheaper volume of one of the server's storage policies, counted as retention is.

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
    page: str = Field(
        "", description="read-only user of `drumline serve`; empty = the local engine's `page`, or a server's reader"
    )
    page_password: SecretStr | None = Field(None, description="password of that user")
    page_password_file: Path | None = Field(None, description="file with that password")
    ca: Path | None = Field(None, description="CA certificates, PEM, for https; none = the system's")
    certificate: Path | None = Field(None, description="certificate of this client, PEM, for https")
    key: Path | None = Field(None, description="private key of that certificate, PEM, without password")
    verify: bool = Field(True, description="verify the server's certificate; false lets any server take the password")
    retention: RetentionSettings = RetentionSettings()
    tiering: TieringSettings = TieringSettings()

    def read_by_page(self) -> ClickHouseSettings:
        """Return these settings with the user of the web page as the reader: it has limits and a quota of its own."""
        if not self.page and self.url:
            return self
        return self.model_copy(update={"reader": self.page or "page", "reader_password": self.page_password})

    @model_validator(mode="after")
    def _secrets(self) -> ClickHouseSettings:
        self.password = read_secret("CLICKHOUSE__PASSWORD", self.password, self.password_file)
        self.reader_password = read_secret(
            "CLICKHOUSE__READER_PASSWORD", self.reader_password, self.reader_password_file
        )
        self.page_password = read_secret("CLICKHOUSE__PAGE_PASSWORD", self.page_password, self.page_password_file)
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
