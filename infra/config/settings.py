"""Settings: one typed object, from the environment (prefix DRUMLINE_, `__` between levels) and secret files.

`DRUMLINE_KAFKA__BOOTSTRAP=host:9092`, `DRUMLINE_CLICKHOUSE__PASSWORD_FILE=/run/secrets/ch`. Secrets are SecretStr:
they never appear in logs or in `drumline config`. Files are read once, when the program starts; one that is missing or
is not what it should be is an error that names the setting. So is a name that is misspelt (settings_names.py).
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from drumline.infra.config.servers import ArchiveSettings, ClickHouseSettings, GrafanaSettings, KafkaSettings
from drumline.infra.config.unknown_variables import InvalidVariables, find_unknown_variables
from drumline.infra.config.validation import SettingsModel
from drumline.infra.runtime import spool_defaults


class LocalSettings(SettingsModel):
    """The local stack: one state directory, loopback ports."""

    state: Path = Field(Path("~/.local/state/drumline"), description="data, logs, lock and pid of the local stack")
    cache: Path = Field(Path("~/.cache/drumline"), description="Kafka's jars")
    kafka_port: int = 19092
    controller_port: int = 19093
    clickhouse_http_port: int = 18123
    clickhouse_tcp_port: int = 19000
    clickhouse_memory_mb: int = Field(1200, ge=512, description="the most the local engine may use; MB")
    kafka_heap_mb: int = Field(320, ge=192)

    @model_validator(mode="after")
    def _expand(self) -> LocalSettings:
        try:
            self.state = self.state.expanduser().resolve()
            self.cache = self.cache.expanduser().resolve()
        except RuntimeError as error:  # a user that the system does not know, without HOME
            raise ValueError(f"DRUMLINE_LOCAL__STATE, DRUMLINE_LOCAL__CACHE: {error} Set HOME, or both") from None
        return self


class StreamSettings(SettingsModel):
    """The Faust worker."""

    app_id: str = "drumline-streams"
    window_s: float = Field(10.0, gt=0, description="hopping windows: length; s of event time")
    hop_s: float = Field(5.0, gt=0, description="hopping windows: distance; s; divides window_s")
    grace_s: float = Field(30.0, ge=0, description="how long a closed window still takes late rows; s of event time")
    idle_s: float = Field(5.0, gt=0, description="silence after which windows of a process close; s")
    window_steps: int = Field(20, ge=2, description="straggler windows: steps")
    price_per_gpu_hour: float = Field(0.0, ge=0, description="for the money in verdicts; any currency")
    data_dir: Path | None = None
    instance: str = Field("", description="static group membership: a name per worker")
    metrics_port: int = Field(19464, ge=0, le=65535, description="127.0.0.1: /metrics, /healthz, /readyz; 0 = none")


class SinkSettings(SettingsModel):
    """The ClickHouse sinks."""

    group: str = "drumline-sink"
    flush_rows: int = Field(100_000, ge=1, le=1_000_000, description="rows after which a range is written")
    flush_s: float = Field(1.0, gt=0, description="time after which a range is written; s")
    dead_letter_ratio: float = Field(0.5, gt=0, le=1, description="share of dead records in a flood")
    dead_letter_run: int = Field(200, ge=1, description="dead records in a row that stop the sink")
    instance: str = Field("", description="static group membership: a name per sink process; restarts do not wait")
    metrics_port: int = Field(19465, ge=0, le=65535, description="127.0.0.1: /metrics, /healthz, /readyz; 0 = none")


class SpoolSettings(SettingsModel):
    """Where GPU processes leave their batches for the node agent."""

    root: Path = Field(Path(spool_defaults.ROOT), description="one folder per process below it; the agent's spool too")
    max_mb: int = Field(
        spool_defaults.MAX_MB,
        ge=spool_defaults.LOWEST_MAX_MB,
        description="the most of one process; MB; beyond it the oldest is dropped, counted",
    )
    segment_s: float = Field(spool_defaults.SEGMENT_S, gt=0, description="age at which a segment is closed; s")


class AgentSettings(SettingsModel):
    """The node agent."""

    flush_s: float = Field(10.0, ge=0, description="how long a stop waits for Kafka's last answers; s")
    gpu_s: float = Field(1.0, ge=0, description="between two NVML samples of a GPU; s; 0 = none")
    metrics_port: int = Field(19466, ge=0, le=65535, description="127.0.0.1: /metrics, /healthz, /readyz; 0 = none")


class Settings(BaseSettings):
    """All of drumline's settings."""

    model_config = SettingsConfigDict(
        env_prefix="DRUMLINE_", env_nested_delimiter="__", extra="ignore", hide_input_in_errors=True
    )

    kafka: KafkaSettings = KafkaSettings()
    clickhouse: ClickHouseSettings = ClickHouseSettings()
    local: LocalSettings = Field(default_factory=LocalSettings)  # looks for the home folder, which may not be there
    stream: StreamSettings = StreamSettings()
    sink: SinkSettings = SinkSettings()
    spool: SpoolSettings = SpoolSettings()
    agent: AgentSettings = AgentSettings()
    archive: ArchiveSettings = ArchiveSettings()
    grafana: GrafanaSettings = GrafanaSettings()
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_json: bool = False

    @property
    def bootstrap(self) -> str:
        """The broker to talk to: the configured one, else the local stack's."""
        return self.kafka.bootstrap or f"127.0.0.1:{self.local.kafka_port}"

    @property
    def clickhouse_url(self) -> str:
        """The ClickHouse HTTP address: the configured one, else the local engine's."""
        return self.clickhouse.url or f"http://127.0.0.1:{self.local.clickhouse_http_port}"


@cache
def settings() -> Settings:
    """The settings of this process, read once. What may be a misspelt name is told on stderr.

    Raises InvalidVariables, and pydantic.ValidationError naming the field.
    """
    found = find_unknown_variables(Settings, os.environ)
    if wrong := [each.text for each in found if each.sure]:
        raise InvalidVariables("\n".join(wrong))
    for each in found:
        print(f"drumline: {each.text}", file=sys.stderr)
    return Settings()
