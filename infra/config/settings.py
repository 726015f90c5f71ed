"""All settings as one typed object, read from environment variables (DRUMLINE_, `__` between levels) and secret files.

`DRUMLINE_KAFKA__BOOTSTRAP=host:9092`, `DRUMLINE_CLICKHOUSE__PASSWORD_FILE=/run/secrets/ch`. Secrets are SecretStr, so
logs and `drumline config` never show them. Files are read once, at the start. A missing or invalid file is an error
that names the setting, and so is a misspelt name (unknown_variables.py). docs/reference/settings.md lists all.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from drumline.infra.config.agent_settings import AgentSettings
from drumline.infra.config.clickhouse_settings import ClickHouseSettings
from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.servers import ArchiveSettings, GrafanaSettings, OffenderSettings, ServeSettings
from drumline.infra.config.unknown_variables import InvalidVariables, find_unknown_variables
from drumline.infra.config.validation import SettingsModel, check_certificates
from drumline.infra.runtime import spool_defaults
from drumline.infra.runtime.terminal import echo


class LocalSettings(SettingsModel):
    """The local stack of `drumline up`: its state directory and loopback ports."""

    state: Path = Field(Path("~/.local/state/drumline"), description="data, logs, lock and pid of the local stack")
    cache: Path = Field(Path("~/.cache/drumline"), description="Kafka's jars, fetched once")
    brokers: int = Field(1, ge=1, le=5, description="brokers; fixed once the state directory has data")
    kafka_port: int = Field(
        19092, description="port of the broker, and the next for its controller; each further broker's are 2 higher"
    )
    clickhouse_http_port: int = Field(
        18123, description="HTTP port of the ClickHouse engine; the next is its native port"
    )

    @property
    def clickhouse_tcp_port(self) -> int:
        """Native port of the ClickHouse engine."""
        return self.clickhouse_http_port + 1

    @model_validator(mode="after")
    def _expand(self) -> LocalSettings:
        try:
            self.state = self.state.expanduser().resolve()
            self.cache = self.cache.expanduser().resolve()
        except RuntimeError as error:  # a user that the system does not know, without HOME
            raise ValueError(f"DRUMLINE_LOCAL__STATE, DRUMLINE_LOCAL__CACHE: {error} Set HOME, or both") from None
        return self


class StreamSettings(SettingsModel):
    """The stream worker."""

    app_id: str = Field("drumline-streams", description="Kafka group of the workers, and prefix of their changelogs")
    window_s: float = Field(10.0, gt=0, description="length of a rolling window, of which two overlap; s of event time")
    idle_s: float = Field(5.0, gt=0, description="silence after which the windows of a process close; s")
    # A value of the state has the steps of 8 ranks, 142 bytes each, of the 4 MiB that a message may have.
    window_steps: int = Field(
        20, ge=2, le=2_000, description="steps of a straggler window; fewer where it would last longer than 30 s"
    )
    hung_s: float = Field(120.0, gt=0, description="time for which a job stands still until it counts as hung; s")
    price_per_gpu_hour: float = Field(0.0, ge=0, description="price of a GPU-hour in verdicts; any currency")
    state_mb: int | None = Field(
        None,
        ge=16,
        description="state above which no new jobs are taken in; 320 keeps a worker below 600 MB; none = a quarter of "
        "the memory; MB",
    )
    data_dir: Path | None = Field(None, description="working directory; none = `stream` in the local stack's state")


class SinkSettings(SettingsModel):
    """The sinks from Kafka to ClickHouse."""

    group: str = Field("drumline-sink", description="Kafka group of the sinks")
    flush_rows: int = Field(200_000, ge=1, le=1_000_000, description="rows after which a range is written")
    flush_s: float = Field(
        1.0, gt=0, description="time after which a range of processes, steps or verdicts is written; s"
    )
    bulk_flush_s: float = Field(
        10.0,
        gt=0,
        description="the same of other topics and of records without rows, at least `FLUSH_S`; s. Rolling windows: "
        "twice that, up to 20. After as long a pause 0.3 `FLUSH_S` once",
    )


class SpoolSettings(SettingsModel):
    """The spool between recorded GPU processes and the node agent of their host."""

    root: Path = Field(
        Path(spool_defaults.ROOT), description="folder with one spool per process, the agent's own included"
    )
    max_mb: int = Field(
        spool_defaults.MAX_MB,
        ge=spool_defaults.LOWEST_MAX_MB,
        description="maximum size of one spool; the oldest segments are evicted beyond it; MB",
    )
    agent_user: str = Field(
        "", description="user (name or number) whose policy and requests count for jobs, beside root's and their user's"
    )


class RingSettings(SettingsModel):
    """The rings: files that NCCL's operations are written to by its profiler plugin in the job."""

    # A recorded job has more variables of this section, which drumline sets for the plugin (unknown_variables.JOBS).
    model_config = ConfigDict(hide_input_in_errors=True, extra="ignore")

    records: int = Field(
        32_768, ge=64, le=1 << 20, description="operations that a ring holds until the agent has read them; 96 B each"
    )
    graphs: bool = Field(
        True, description="record operations in CUDA graphs; NCCL then adds a host function to each of them"
    )
    times: Literal["auto", "all", "gpu"] = Field(
        "auto",
        description="what is measured: GPU times and transfers, of a part of dense calls; of all; GPU times only",
    )


class Settings(BaseSettings):
    """All settings of drumline; a section is a nested model."""

    model_config = SettingsConfigDict(
        env_prefix="DRUMLINE_", env_nested_delimiter="__", extra="ignore", hide_input_in_errors=True
    )

    kafka: KafkaSettings = KafkaSettings()
    clickhouse: ClickHouseSettings = ClickHouseSettings()
    local: LocalSettings = Field(default_factory=LocalSettings)  # looks for the home folder, which may not be there
    stream: StreamSettings = StreamSettings()
    sink: SinkSettings = SinkSettings()
    spool: SpoolSettings = SpoolSettings()
    rings: RingSettings = RingSettings()
    agent: AgentSettings = AgentSettings()
    archive: ArchiveSettings = ArchiveSettings()
    grafana: GrafanaSettings = GrafanaSettings()
    offenders: OffenderSettings = OffenderSettings()
    serve: ServeSettings = ServeSettings()
    host: str = Field(
        "",
        description="name of this host in rows and requests; empty = the machine's; a pod needs its node's",
    )
    instance: str = Field(
        "", description="static membership of a worker or sink in its Kafka group: a name each; restarts move nothing"
    )
    ca: Path | None = Field(
        None, description="CA certificates, PEM, for https: ClickHouse, registry, Grafana, notices; none = the system's"
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port of /metrics, /healthz, /readyz; none = 19464 worker, 19465 sink, 19466 agent, "
        "19467 exporter; 0 = no port",
    )
    metrics_address: str = Field(
        "127.0.0.1", description="address of /metrics, /healthz and /readyz; a pod's probes need 0.0.0.0 or ::"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="lowest level that is logged")
    log_json: bool = Field(False, description="log one JSON object per line")

    @model_validator(mode="after")
    def _authorities(self) -> Settings:
        check_certificates(("CA", self.ca))
        return self

    @property
    def bootstrap(self) -> str:
        """The addresses of the configured brokers, else of the local stack's."""
        ports = (self.local.kafka_port + 2 * index for index in range(self.local.brokers))
        return self.kafka.bootstrap or ",".join(f"127.0.0.1:{port}" for port in ports)

    @property
    def rings_folder(self) -> Path:
        """The folder of the rings."""
        return self.spool.root / spool_defaults.RINGS

    @property
    def clickhouse_url(self) -> str:
        """The ClickHouse HTTP address: the configured one, else the local engine's."""
        return self.clickhouse.url or f"http://127.0.0.1:{self.local.clickhouse_http_port}"


@cache
def settings() -> Settings:
    """Return the settings of this process, read once. Print possibly misspelt names on stderr.

    Raises:
        InvalidVariables: a variable can only be a misspelt setting.
        pydantic.ValidationError: a value is invalid; it names the field.
    """
    unknown = find_unknown_variables(Settings, os.environ)
    if errors := [variable.text for variable in unknown if variable.is_setting]:
        raise InvalidVariables("\n".join(errors))
    for variable in unknown:
        echo(f"drumline: {variable.text}", err=True)
    return Settings()
