"""From a tree that nobody installed, programs run as well and say that their version is not known."""

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from drumline.infra import version
from drumline.infra.cli import root
from drumline.infra.settings import Settings
from drumline.producers.agent_devices import device_sampler
from drumline.sinks.deadletter import headers


@pytest.fixture(autouse=True)
def uninstalled(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)


def test_the_agent_starts(tmp_path):
    made = device_sampler(Settings(spool={"root": tmp_path}), list)
    assert made._versions == {"drumline": "0+unknown"}


def test_a_dead_letter_says_so():
    record = SimpleNamespace(value=b"", topic="t", partition=0, offset=1, timestamp_ms=2, headers=[])
    found = headers(SimpleNamespace(record=record, error=("c", "")), "id")
    assert ("drumline.version", "0+unknown") in found


def test_the_command_says_so():
    answer = CliRunner().invoke(root, ["--version"])
    assert (answer.exit_code, answer.output) == (0, "drumline 0+unknown\n")
