"""Configuration of several local brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.infra.config.settings import LocalSettings, Settings
from drumline.infra.config.state_dir import StackError
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.infra.localstack.kafka import broker
from drumline.infra.localstack.kafka.broker import broker_ports, prepare_brokers, properties


def parsed(settings: Settings, number: int) -> dict[str, str]:
    """As Java reads it: the last line of a name counts."""
    lines = (line.partition("=") for line in properties(settings, number).splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}


def test_three_brokers_share_a_quorum_and_keep_three_copies(tmp_path: Path) -> None:
    settings = Settings(local=LocalSettings(state=tmp_path, brokers=3, kafka_port=7000))
    assert settings.bootstrap == "127.0.0.1:7000,127.0.0.1:7002,127.0.0.1:7004"
    lines = [parsed(settings, number) for number in (1, 2, 3)]
    assert [line["node.id"] for line in lines] == ["1", "2", "3"]
    assert {line["controller.quorum.voters"] for line in lines} == {
        "1@127.0.0.1:7001,2@127.0.0.1:7003,3@127.0.0.1:7005"
    }
    assert len({line["log.dirs"] for line in lines}) == len({line["broker.rack"] for line in lines}) == 3
    assert {(line["offsets.topic.replication.factor"], line["min.insync.replicas"]) for line in lines} == {("3", "2")}
    assert sorted(port for _, port in broker_ports(settings).values()) == list(range(7000, 7006))


def test_a_private_stack_of_three_brokers_replicates_its_topics(tmp_path: Path) -> None:
    settings = ephemeral_settings(tmp_path, brokers=3)
    assert (settings.kafka.replication, len(settings.bootstrap.split(","))) == (3, 3)
    assert ephemeral_settings(tmp_path).kafka.replication == 1


def test_another_number_of_brokers_than_the_data_has_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "find_java", lambda: "java")
    monkeypatch.setattr(broker, "ensure_jars", lambda _: tmp_path)
    (tmp_path / "kafka" / "data").mkdir(parents=True)
    (tmp_path / "kafka" / "data" / "meta.properties").touch()
    with pytest.raises(StackError, match="data of 1 brokers, and DRUMLINE_LOCAL__BROKERS is 3"):
        prepare_brokers(Settings(local=LocalSettings(state=tmp_path, brokers=3)))
