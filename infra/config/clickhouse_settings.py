"""Settings of ClickHouse: addresses, users, certificates, secrets, retention, tiers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from drumline.infra.config.validation import (
    FileContent,
    JsonSetting,
    SettingsModel,
    check_certificates,
    check_url,
    read_secret,
    server_address,
)
from drumline.schemas.topics import DAY_MS, TABLE_NAMES

#: Name of the ClickHouse server at CLICKHOUSE__URL among its replicas.
PRIMARY = "primary"


#: Days for which a table keeps rows.
Days = Annotated[int, Field(ge=0)]


class RetentionSettings(JsonSetting):
    """Retention of each table, from when Kafka got a row; days, 0 = for ever. `drumline migrate` applies it."""

    kernels: Days = 7
    memcpys: Days = 14
    collectives: Days = 14
    ranges: Days = 14
    steps: Days = 180
    device_samples: Days = 90
    host_samples: Days = 30
    network_samples: Days = 90
    checks: Days = 365
    transfers: Days = 30
    stacks: Days = 90
    launches: Days = 14
    launch_counts: Days = 30
    stalls: Days = 30
    iterations: Days = 30
    requests: Days = 90
    kernel_frequency: Days = 90
    memcpy_bandwidth: Days = 90
    lateness: Days = 14
    stragglers: Days = 365
    progress: Days = 14
    hangs: Days = 365
    processes: Days = 365
    ledger: Days = 365
    ranks_per_second: Days = 30
    steps_per_second: Days = 365
    kernels_per_minute: Days = 90
    memcpys_per_minute: Days = 180
    devices_per_minute: Days = 365
    records_per_minute: Days = 365

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


class TieringSettings(JsonSetting):
    """Move older events to a cheaper volume of one of the server's storage policies, counted as retention is.

    `drumline migrate` applies it to kernels, memcpys, collectives, ranges, and samples of devices and hosts.
    """

    storage_policy: str = Field("", pattern="^[A-Za-z0-9_]*$")
    after: int = Field(2, ge=1)


class ClickHouseSettings(SettingsModel):
    """The ClickHouse server: the writer's account for migrations and sinks, the reader's for queries."""

    url: str = Field("", description="http(s)://host:port; empty = the local stack's engine")
    replicas: dict[str, str] = Field(
        {}, description="further servers, each with a sink of its own (`drumline sink --replica`): JSON, name -> URL"
    )
    database: str = Field("gpu", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="database of all tables")
    user: str = Field("writer", description="user of migrations, sinks and audit")
    password: FileContent = None
    password_file: Path | None = Field(None, description="file with the password of that user")
    reader: str = Field("analyst", description="read-only user of `drumline sql`, `report`, `top` and `serve`")
    reader_password: FileContent = None
    reader_password_file: Path | None = Field(None, description="file with the password of the reader")
    certificate: Path | None = Field(None, description="certificate of this client, PEM, for https")
    key: Path | None = Field(None, description="private key of that certificate, PEM, without password")
    retention: RetentionSettings = Field(
        RetentionSettings(),
        description="days for which tables keep rows, where they differ from the defaults: JSON, table -> days; 0 = "
        "for ever. `drumline config` prints all",
    )
    tiering: TieringSettings = Field(
        TieringSettings(),
        description="move older events to a cheaper volume: JSON, `storage_policy` with the volumes `default` and "
        "`cold`, and `after`, the age at which rows move (2; days)",
    )

    def read_by_page(self) -> ClickHouseSettings:
        """Return these settings with the local engine's user of the web page: it has limits and a quota of its own."""
        return self if self.url else self.model_copy(update={"reader": "page", "reader_password": None})

    @model_validator(mode="after")
    def _secrets(self) -> ClickHouseSettings:
        self.password = read_secret("CLICKHOUSE__PASSWORD", self.password, self.password_file)
        self.reader_password = read_secret(
            "CLICKHOUSE__READER_PASSWORD", self.reader_password, self.reader_password_file
        )
        check_certificates(("", None), ("CLICKHOUSE__CERTIFICATE", self.certificate), ("CLICKHOUSE__KEY", self.key))
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
