"""Settings of a private stack reach its programs whole, and the user's own do not."""

from drumline.infra.config.clickhouse_settings import ClickHouseSettings, RetentionSettings
from drumline.infra.config.settings import Settings, SinkSettings
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings


def test_a_subprocess_sees_the_same_settings_and_none_of_the_callers(tmp_path, monkeypatch):
    monkeypatch.setenv("DRUMLINE_KAFKA__PARTITIONS", "7")
    monkeypatch.setenv("DRUMLINE_CLICKHOUSE__PASSWORD", "of the user")
    settings = ephemeral_settings(
        tmp_path,
        sink=SinkSettings(group="g", flush_s=0.5),
        clickhouse=ClickHouseSettings(retention=RetentionSettings(kernels=0)),
    )
    for name in ("KAFKA__PARTITIONS", "CLICKHOUSE__PASSWORD"):
        monkeypatch.delenv(f"DRUMLINE_{name}")
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings
    assert settings.kafka.partitions == 4
    assert settings.sink.metrics_port == 19465  # a whole section replaces the default
