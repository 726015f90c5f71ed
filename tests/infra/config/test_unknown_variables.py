"""A misspelt setting is reported, or ends the program where it cannot be anything else. Foreign variables do
neither, and never prevent a job from running."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drumline.infra.config import settings as settings_module
from drumline.infra.config.settings import Settings, settings
from drumline.infra.config.unknown_variables import (
    CHART,
    GRAFANA,
    JOBS,
    TESTS,
    InvalidVariables,
    find_unknown_variables,
    setting_names,
)
from drumline.infra.config.validation import has_variable
from drumline.infra.grafana.provisioning.contacts import CONTACTS
from drumline.infra.grafana.provisioning.files import provisioning_files

ROOT = Path(__file__).parents[3]


def drumline(*arguments, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRUMLINE_")}
    command = [sys.executable, "-m", "drumline.cli.app", *arguments]
    return subprocess.run(command, env=kept | variables, capture_output=True, text=True, check=False)


def result(folder, pattern):
    return {name for path in folder.rglob("*.py") for name in re.findall(pattern, path.read_text())}


def test_the_names_that_are_no_settings_are_those_that_the_code_reads():
    known = set(setting_names(Settings))
    assert result(ROOT / "producers", r'"(DRUMLINE_[A-Z_]*[A-Z])"') - known == set(JOBS)
    files = provisioning_files(CONTACTS, tls=True, ca=True).values()
    assert {name for text in files for name in re.findall(r"\$(DRUMLINE_\w+)", text)} == set(GRAFANA)
    assert result(ROOT / "tests", r'environ\.get\("(DRUMLINE_\w+)"') - known == set(TESTS)
    template = (ROOT / "infra" / "helm" / "drumline" / "templates" / "inject.yaml").read_text()
    assert all(name in template for name in CHART)


@pytest.mark.parametrize(
    ("name", "value", "near"),
    [
        ("KAFKA_SECURITY_PROTOCOL", "SASL_SSL", "KAFKA__SECURITY_PROTOCOL"),
        ("CLICKHOUSE__RETENTION__KERNELS", "1", "CLICKHOUSE__RETENTION"),
        ("KAFKA__SSL_CAA", "/ca.pem", "KAFKA__SSL_CA"),
        ("KAFK__SSL_CA", "/ca.pem", "KAFKA__SSL_CA"),
        ("KAFKA__SSL_CA__PATH", "/ca.pem", "KAFKA__SSL_CA"),
        ("LOG__LEVEL", "DEBUG", "LOG_LEVEL"),
        ("COLLECT__POLCY", "off", "COLLECT__POLICY"),
        ("SINK__METRICS_PORT", "1234", "METRICS_PORT"),
        ("KAFKA", "kafka-1:9092", "KAFKA__"),
        ("SPOOL", "/tmp", "SPOOL__"),
    ],
)
def test_what_only_can_be_a_misspelt_setting_is_an_error_that_names_the_right_one(monkeypatch, name, value, near):
    [foreign] = find_unknown_variables(Settings, {f"DRUMLINE_{name}": value})
    assert foreign.is_setting
    assert foreign.text.startswith(f"DRUMLINE_{name}: ")
    assert f"DRUMLINE_{near}" in foreign.text.removeprefix(f"DRUMLINE_{name}")
    monkeypatch.setattr(settings_module.os, "environ", {f"DRUMLINE_{name}": value})
    with pytest.raises(InvalidVariables, match=f"^DRUMLINE_{name}: "):
        settings.__wrapped__()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("DRUMLINE_LOG_LVL", "DRUMLINE_LOG_LEVEL"), ("drumline_log_lvl", "DRUMLINE_LOG_LEVEL"),
        ("DRUMLINE_KAFKA_PROTOCOL", "DRUMLINE_KAFKA__SECURITY_PROTOCOL"), ("DRUMLINE_LABEL", "DRUMLINE_LABELS"),
        ("DRUMLINE_KAFKA_PARTITION", "DRUMLINE_KAFKA__PARTITIONS"), ("DRUMLINE_A\x1b[1m", ""),
    ],
)  # fmt: skip
def test_a_possibly_foreign_variable_is_reported_once_and_ignored(monkeypatch, capsys, name, near):
    monkeypatch.setattr(settings_module.os, "environ", {name: "sesame"})
    settings.__wrapped__()
    [message] = capsys.readouterr().err.splitlines()
    assert message.startswith(f"drumline: {name.encode('unicode_escape').decode()} is ")
    assert near in message
    assert "sesame" not in message


def test_known_foreign_variables_cause_no_message():
    service = {
        "DRUMLINE_SERVICE_HOST": "10.0.0.1", "DRUMLINE_SERVICE_PORT": "9465", "DRUMLINE_SERVICE_PORT_HTTP": "9465",
        "DRUMLINE_PORT": "tcp://10.0.0.1:9465", "DRUMLINE_PORT_9465_TCP": "tcp://10.0.0.1:9465",
        "DRUMLINE_PORT_9465_TCP_PROTO": "tcp", "DRUMLINE_PORT_9465_TCP_ADDR": "10.0.0.1",
        "DRUMLINE_SINK_METRICS_PORT": "tcp://10.0.0.1:9465",
    }  # fmt: skip
    right = dict.fromkeys(setting_names(Settings, wanted=has_variable), "1")
    whole = {"DRUMLINE_KAFKA": '{"partitions": 4}', "drumline_kafka__partitions": "4", "DRUM": "1"}
    foreign = dict.fromkeys((*JOBS, *CHART, *GRAFANA, *TESTS), "1")
    assert find_unknown_variables(Settings, service | right | whole | foreign) == []


def test_commands_end_with_2_or_go_on_and_a_job_always_runs():
    wrong, doubtful = {"DRUMLINE_KAFKA_BOOTSTRAP": "host:1"}, {"DRUMLINE_LABEL": "a=b"}
    done = drumline("config", **wrong, **doubtful)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith("drumline: DRUMLINE_KAFKA_BOOTSTRAP: no such setting (DRUMLINE_KAFKA__BOOTSTRAP?); ")
    assert drumline("config", **doubtful).returncode == 0
    done = drumline("run", "--", "sh", "-c", "exit 9", **wrong, **doubtful, DRUMLINE_JOB="j")
    assert (done.returncode, len(done.stderr.splitlines())) == (9, 2)
    quiet = drumline("run", "--quiet", "--", "sh", "-c", "exit 9", **wrong, **doubtful)
    assert (quiet.returncode, quiet.stderr) == (9, "")


def test_a_missing_home_folder_is_an_error_of_the_settings_that_need_it(monkeypatch, tmp_path):
    monkeypatch.setattr("posixpath.expanduser", lambda path: path)  # a user that the system does not know
    with pytest.raises(ValueError, match=r"DRUMLINE_LOCAL__STATE, DRUMLINE_LOCAL__CACHE: .* Set HOME"):
        Settings()
    monkeypatch.setenv("DRUMLINE_LOCAL__STATE", str(tmp_path))
    monkeypatch.setenv("DRUMLINE_LOCAL__CACHE", str(tmp_path))
    assert Settings().local.state == tmp_path
