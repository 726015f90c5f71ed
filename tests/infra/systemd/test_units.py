"""The systemd units and their settings, as far as they can be checked without a system that systemd started."""

import importlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main

from drumline.cli.app import MODULES
from drumline.infra.config.settings import Settings
from drumline.infra.config.unknown_variables import setting_names
from drumline.infra.runtime.exit_codes import BAD_INPUT, RECORDS_LOST
from drumline.infra.runtime.signals import LONGEST_S
from drumline.infra.telemetry.health import PORTS

FOLDER = Path(__file__).parents[3] / "infra" / "systemd"
UNITS = {path.name: path for path in FOLDER.glob("*.service")}
#: Program -> exit codes after which a start changes nothing.
HOPELESS = {
    "agent": {BAD_INPUT},
    "stream": {BAD_INPUT},
    "sink": {BAD_INPUT, RECORDS_LOST},
    "serve": {BAD_INPUT},
    "notify": {BAD_INPUT},
    "exporter": {BAD_INPUT},
    "up": {BAD_INPUT},
}
each_unit = pytest.mark.parametrize("name", sorted(UNITS))


def lines(name):
    """(key, value) of each line of a unit, repeated keys included."""
    return re.findall(r"^(\w+)=(.*)$", UNITS[name].read_text(), re.MULTILINE)


def arguments(name):
    """The command line of a unit, as its first instance has it."""
    [command] = [value for key, value in lines(name) if key == "ExecStart"]
    program, *rest = shlex.split(
        command.replace("%H", "host").replace("%i", "1").replace(" $SINK_OPTIONS", "").replace(" $EXPORTER_OPTIONS", "")
    )
    assert program == "/opt/drumline/bin/drumline"
    return rest


def settings_file(name):
    """The environment file that a unit needs."""
    [path] = [value for key, value in lines(name) if key == "EnvironmentFile" and not value.startswith("-")]
    assert path.startswith("/etc/drumline/")
    return FOLDER / path.rpartition("/")[2]


def test_each_program_that_goes_on_has_a_unit():
    assert sorted(arguments(name)[0] for name in UNITS) == sorted(HOPELESS)


@each_unit
def test_a_unit_runs_a_command_there_is_as_a_user_without_rights(name):
    command, *options = arguments(name)
    parser = typer.main.get_command(importlib.import_module(f"drumline.cli.{MODULES[command]}").app)
    parser.make_context(command, options)  # raises on an option that is none
    unit = dict(lines(name))
    assert (unit["User"], unit["CapabilityBoundingSet"], unit["NoNewPrivileges"]) == ("drumline", "", "yes")
    assert (unit["ProtectSystem"], unit["ProtectHome"], "AmbientCapabilities" in unit) == ("strict", "yes", False)


@each_unit
def test_a_unit_starts_again_what_a_start_may_help_and_waits_for_a_clean_end(name):
    unit = dict(lines(name))
    assert unit["Restart"] == "always"
    codes = {int(code) for code in unit["RestartPreventExitStatus"].split()}
    assert codes == HOPELESS[arguments(name)[0]]
    assert int(unit["TimeoutStopSec"]) >= 30 > LONGEST_S


def test_a_replicas_sink_gets_its_options():
    [command] = [value for key, value in lines("drumline-sink@.service") if key == "ExecStart"]
    assert command.endswith(" $SINK_OPTIONS")
    parser = typer.main.get_command(importlib.import_module(f"drumline.cli.{MODULES['sink']}").app)
    for options in re.findall(r"--(?:replica b|accept-loss)", UNITS["drumline-sink@.service"].read_text()):
        parser.make_context("sink", options.split())


@each_unit
def test_the_settings_of_a_unit_are_settings_and_load(name, monkeypatch, tmp_path):
    """With each line that is a comment too, and the credentials that the unit names."""
    credentials = re.findall(r"^(?:# )?LoadCredential=(\w+):/etc/drumline/\w+$", UNITS[name].read_text(), re.MULTILINE)
    for credential in credentials:
        (tmp_path / credential).write_text(f"whsec_{'A' * 43}=" if credential == "webhook_key" else "a" * 16)
    given = re.findall(r"^(#?)(DRUMLINE_\w+)=(.+)$", settings_file(name).read_text(), re.MULTILINE)
    assert len(given) == len({variable for _, variable, _ in given}) > 3
    known = set(setting_names(Settings))
    for comment, variable, value in given:
        assert variable in known
        credential_of = re.fullmatch(r"/run/credentials/([\w@.-]+)/(\w+)", value)
        if credential_of:
            assert credential_of[1].replace("@1", "@") == name
            assert credential_of[2] in credentials
        if not comment:
            monkeypatch.setenv(variable, str(tmp_path / credential_of[2]) if credential_of else value)
    Settings()


@pytest.mark.parametrize("name", [name for name in sorted(UNITS) if "@" in name])
def test_instances_of_a_host_may_have_settings_of_their_own(name):
    command = arguments(name)[0]
    assert ("EnvironmentFile", f"-/etc/drumline/{command}-%i.env") in lines(name)
    assert arguments(name)[1:] == ["--instance", "host-1"]
    assert f"DRUMLINE_METRICS_PORT={PORTS[command]}\n" in settings_file(name).read_text()


def test_a_worker_keeps_its_files_where_its_unit_lets_it_write():
    assert ("StateDirectory", "drumline") in lines("drumline-stream@.service")
    assert "DRUMLINE_STREAM__DATA_DIR=/var/lib/drumline\n" in (FOLDER / "stream.env").read_text()


def test_the_spools_root_belongs_to_the_agents_user():
    kind, root, mode, user, *_ = (FOLDER / "drumline.conf").read_text().splitlines()[-1].split()
    assert (kind, Path(root), mode) == ("d", Settings().spool.root, "3777")
    assert ("User", user) in lines("drumline-agent.service")
    assert "DRUMLINE_SPOOL__ROOT=/dev/shm/drumline\n" in (FOLDER / "agent.env").read_text()


@pytest.mark.parametrize("wrong", ["", "MemoryMaxx=1G\n"])
def test_systemd_takes_every_unit_and_rejects_a_misspelt_key(tmp_path, wrong):
    if not (analyze := shutil.which("systemd-analyze")):
        pytest.skip("no systemd-analyze on this machine")
    for name, path in UNITS.items():  # the program is not installed here
        text = path.read_text().replace("/opt/drumline/bin/drumline", shutil.which("true"))
        (tmp_path / name).write_text(text.replace("[Service]\n", f"[Service]\n{wrong}"))
    command = [analyze, "verify", "--man=no", "--recursive-errors=no", *sorted(map(str, tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    reasons = [line for line in done.stderr.splitlines() if "drumline" in line]
    assert (done.returncode == 0, len(reasons)) == (not wrong, len(UNITS) if wrong else 0), done.stderr
