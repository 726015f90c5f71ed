"""Settings of a private stack reach its programs whole, and the user's own do not."""

import socket
from pathlib import Path

from drumline.infra.config.clickhouse_settings import ClickHouseSettings, RetentionSettings
from drumline.infra.config.settings import Settings, SinkSettings
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, free_block, free_ports
from drumline.infra.localstack.ports import is_free


def test_a_subprocess_sees_the_same_settings_and_none_of_the_callers(tmp_path, monkeypatch):
    monkeypatch.setenv("DRUMLINE_KAFKA__PARTITIONS", "7")
    monkeypatch.setenv("DRUMLINE_CLICKHOUSE__READER", "of the user")
    settings = ephemeral_settings(
        tmp_path,
        sink=SinkSettings(group="g", flush_s=0.5),
        clickhouse=ClickHouseSettings(retention=RetentionSettings(kernels=0)),
    )
    for name in ("KAFKA__PARTITIONS", "CLICKHOUSE__READER"):
        monkeypatch.delenv(f"DRUMLINE_{name}")
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings
    assert settings.kafka.partitions == 4
    assert settings.sink.bulk_flush_s == 10.0  # a whole section replaces the default


def test_no_outgoing_connection_takes_a_port_before_its_server_listens():
    first_of_connections = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(200)
    assert len(set(ports)) == 200
    assert max(ports) < first_of_connections


def test_a_port_in_use_is_not_free(monkeypatch):
    [port] = free_ports(1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        monkeypatch.setattr("drumline.infra.localstack.ephemeral.SERVER_PORTS", range(port, port + 2))
        assert free_ports(1) == [port + 1]


def test_a_block_of_ports_reaches_no_taken_port_and_none_of_connections(monkeypatch):
    while not all(map(is_free, range(first := free_ports(1)[0], first + 4))):
        pass
    monkeypatch.setattr("drumline.infra.localstack.ephemeral.SERVER_PORTS", range(first, first + 4))
    assert {free_block(3) for _ in range(20)} == {first, first + 1}
    assert {free_block(3, [first]) for _ in range(20)} == {first + 1}
