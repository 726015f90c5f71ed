"""`drumline backfill --from`: the server to copy from. No server is asked."""

import pytest
from click.testing import CliRunner

from drumline.cli.app import root
from drumline.cli.operate.backfill import _source
from drumline.infra.config.clickhouse_settings import ClickHouseSettings
from drumline.infra.config.replica_settings import of_replica
from drumline.infra.config.settings import Settings


@pytest.fixture
def config():
    server = ClickHouseSettings(
        url="http://a:1", replicas={"b": "http://b:2"}, user="writing", password="secret", database="gpu_a"
    )
    return Settings(clickhouse=server)


def test_a_url_is_another_server_with_the_same_writer_and_database(config):
    other = _source(config, "https://old.example:8443").clickhouse
    assert (other.url, other.replicas) == ("https://old.example:8443", {})
    assert (other.user, other.password.get_secret_value(), other.database) == ("writing", "secret", "gpu_a")


@pytest.mark.parametrize(("url", "name"), [("http://A:1/", "primary"), ("http://b.:2", "b")])
def test_the_url_of_a_replica_is_that_replica(config, url, name):
    assert _source(config, url) == of_replica(config, name) == _source(config, name)


def test_the_url_of_the_replica_to_copy_to_is_refused(config, monkeypatch):
    monkeypatch.setattr("drumline.cli.operate.backfill.settings", lambda: config)
    answer = CliRunner().invoke(root, ["backfill", "--from", "http://A:1/"])
    assert answer.exit_code == 2
    assert "http://a:1 is the replica to copy to; name another with --from" in answer.stderr
