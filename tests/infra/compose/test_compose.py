"""infra/compose as far as it can be checked without a container engine: no image is built or started here.

The file is checked against the Compose specification's JSON schema (as check-jsonschema ships it), and by `docker
compose config` where there is one.
"""

import importlib
import json
import re
import shlex
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import typer.main
import yaml

from drumline.cli.app import MODULES
from drumline.infra.config.settings import Settings
from drumline.infra.config.unknown_variables import setting_names
from drumline.infra.grafana.provisioning.files import provisioning_files
from drumline.infra.runtime.signals import LONGEST_S
from drumline.infra.telemetry.health import PORTS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "infra" / "compose"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
DRUMLINE = {name: s for name, s in SERVICES.items() if s["image"].startswith("drumline:")}
DOCKERFILES = [ROOT / "infra" / "image" / "Dockerfile", FOLDER / "grafana" / "Dockerfile"]
#: ${NAME}, ${NAME:-default}, ${NAME:?message}
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def example():
    lines = (FOLDER / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_it_follows_the_compose_specification():
    import jsonschema  # builds 38 grammars, in every process that only collects this file

    # Not imported: it wants a newer click than Faust.
    result = metadata.distribution("check-jsonschema")
    schema = Path(result.locate_file("check_jsonschema/builtin_schemas/vendor/compose-spec.json"))
    jsonschema.validate(COMPOSE, json.loads(schema.read_text()))


def test_docker_compose_accepts_it(tmp_path):
    try:
        subprocess.run(["docker", "compose", "version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no docker compose on this machine")
    filled = tmp_path / "env"
    filled.write_text("".join(f"{name}={value or 'x'}\n" for name, value in example().items()))
    command = ["docker", "compose", "-f", str(FOLDER / "compose.yaml"), "--profile", "agent", "--env-file"]
    subprocess.run([*command, str(filled), "config", "--quiet"], check=True)
    empty = subprocess.run(
        [*command, str(FOLDER / ".env.example"), "config", "--quiet"], capture_output=True, text=True
    )
    assert empty.returncode != 0
    assert "set it in infra/compose/.env" in empty.stderr


def test_every_variable_is_in_the_example_required_ones_empty_others_with_their_default():
    used = {name: (kind, rest) for name, kind, rest in VARIABLE.findall((FOLDER / "compose.yaml").read_text())}
    assert used.keys() == example().keys()
    for name, value in example().items():
        kind, rest = used[name]
        assert (kind == "?") == (value == ""), name
        if kind == "-":
            assert rest == value, name


def test_no_password_is_written_down():
    for service, result in SERVICES.items():
        for name, value in result["environment"].items():
            if name.endswith("PASSWORD"):
                assert VARIABLE.fullmatch(str(value)), f"{service}: {name}"
                assert ":?" in value, f"{service}: {name}"


def test_ports_are_published_on_loopback_only():
    published = [port for result in SERVICES.values() for port in result.get("ports", [])]
    assert len(published) == 5
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert not [name for name, result in SERVICES.items() if result.get("network_mode") or result.get("privileged")]


def test_images_are_pinned_by_whole_versions():
    foreign = [result["image"] for result in SERVICES.values() if "build" not in result]
    foreign += [m for path in DOCKERFILES for m in re.findall(r"^FROM (\S+)", path.read_text(), re.MULTILINE)]
    assert len(foreign) == 5
    for image in foreign:
        assert re.fullmatch(r"[a-z/-]+:\d+\.\d+\.\d+(\.\d+)?(-[a-z-]+)?(@sha256:[0-9a-f]{64})?", image), image
    assert len({"@" in image for image in foreign}) == 1, "all by digest, or none"
    assert len(set(foreign)) == 4, "both stages of the image come from the same base"
    assert "grafana-clickhouse-datasource 4.20.0" in DOCKERFILES[1].read_text()
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert {result["image"] for result in DRUMLINE.values()} == {f"drumline:{version}"}


def test_kafka_is_the_version_that_is_tested_and_has_the_settings_that_are_relied_upon():
    pom = (ROOT / "infra/localstack/assets/kafka/pom.xml").read_text()
    assert SERVICES["kafka"]["image"].removeprefix("apache/kafka:").split("@")[0] in pom
    local = dict(
        re.findall(
            r"^([a-z.]+)=(.*)$", (ROOT / "infra/localstack/assets/kafka/server.properties").read_text(), re.MULTILINE
        )
    )
    second = SERVICES["kafka"]["environment"]
    for name in ("message.max.bytes", "offset.metadata.max.bytes", "group.min.session.timeout.ms",
                 "auto.create.topics.enable"):  # fmt: skip
        assert str(second["KAFKA_" + name.replace(".", "_").upper()]) == local[name], name


def test_every_file_that_is_named_is_there():
    for result in SERVICES.values():
        for volume in result.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (FOLDER / source).exists(), source
            elif not source.startswith("/"):
                assert source in COMPOSE["volumes"], source
        if build := result.get("build"):
            context = FOLDER / build["context"]
            assert (context / build.get("dockerfile", "Dockerfile")).is_file(), build


def test_our_programs_have_the_time_that_a_clean_end_takes():
    for name, result in DRUMLINE.items():
        assert int(result["stop_grace_period"].removesuffix("s")) >= 30 > LONGEST_S, name


def test_every_variable_of_our_programs_is_a_setting():
    known = set(setting_names(Settings))
    for name, result in DRUMLINE.items():
        assert {v for v in result["environment"] if v.startswith("DRUMLINE_")} <= known, name
    assert set(re.findall(r"DRUMLINE_\w+", DOCKERFILES[0].read_text())) <= known


def test_grafana_gets_exactly_what_its_provisioning_asks_for():
    queried = set()
    for text in provisioning_files().values():
        queried |= set(re.findall(r"\$\{?(DRUMLINE_\w+)", text))
    assert {v for v in SERVICES["grafana"]["environment"] if v.startswith("DRUMLINE_")} == queried


def command_lines():
    """(service, arguments of drumline)."""
    for name, result in DRUMLINE.items():
        if result.get("entrypoint"):
            for line in result["command"][0].split("&&"):
                program, *arguments = shlex.split(line.removeprefix(" exec"))
                if program == "drumline":
                    yield name, arguments
        else:
            yield name, result["command"]


@pytest.mark.parametrize(
    ("service", "arguments"), [pytest.param(*line, id=" ".join(line[1])) for line in command_lines()]
)
def test_every_command_line_is_one_of_drumline(service, arguments):
    name, *rest = arguments
    command = typer.main.get_command(importlib.import_module(f"drumline.cli.{MODULES[name]}").app)
    if hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, list(rest))  # raises on an option that is none


def test_health_is_asked_at_the_port_each_program_serves():
    default = 19464
    assert f"HEALTH_PORT={default}" in DOCKERFILES[0].read_text()
    for name in ("stream", "sink", "agent", "exporter"):
        assert DRUMLINE[name]["environment"].get("HEALTH_PORT", default) == PORTS[name]


def test_the_image_runs_without_privileges_and_has_all_packages():
    text = DOCKERFILES[0].read_text()
    assert re.search(r"^USER (\d+)$", text, re.MULTILINE)[1] != "0"
    assert {name for name, result in DRUMLINE.items() if "user" in result} == {"agent"}
    ignored = DOCKERFILES[0].with_suffix(".dockerignore").read_text()
    kept = {line[1:] for line in ignored.splitlines() if line.startswith("!")}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {name.split(".")[1] for name in packages if "." in name}
    assert folders | {"__init__.py", "py.typed", "pyproject.toml"} <= kept


def test_nothing_starts_before_topics_tables_and_roles_are_there():
    for name in ("stream", "sink", "agent", "grafana"):
        assert SERVICES[name]["depends_on"] == {"init": {"condition": "service_completed_successfully"}}
    assert SERVICES["init"]["restart"] == "no"
