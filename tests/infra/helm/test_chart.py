"""The chart as far as it can be checked without a cluster; `make test-kube` has the rest (tests/kube)."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import chart_files
import pytest
import yaml
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType
from support.kube import tools
from support.kube.chart import CHART, VALUES, resources, write_grafana_files
from support.secure_stack import documented_acls

from drumline.infra.config.settings import Settings
from drumline.infra.config.unknown_variables import CHART as OF_CHART
from drumline.infra.config.unknown_variables import JOBS, SPOOL, setting_names
from drumline.infra.telemetry.health import PORTS

ROOT = Path(__file__).parents[3]
TEMPLATES = sorted((CHART / "templates").iterdir())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
#: Users of the security page -> those of the chart, where they differ.
USERS = {"producer": "agent"}


@pytest.mark.parametrize("path", chart_files.PAGES, ids=lambda path: path.name)
def test_a_generated_file_is_up_to_date(path):
    assert path.read_text() == chart_files.PAGES[path](), "run `make docs`"


def test_users_have_the_rights_of_the_security_page():
    documented = {
        (USERS.get(acl.principal.removeprefix("User:"), acl.principal.removeprefix("User:")), acl.restype,
         acl.name, acl.resource_pattern_type, acl.operation)
        for acl in documented_acls()
    }  # fmt: skip
    patterns = {"literal": ResourcePatternType.LITERAL, "prefix": ResourcePatternType.PREFIXED}
    generated = {
        (user, ResourceType[acl["type"].upper()], acl["name"], patterns[acl["pattern"]],
         AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()])
        for user, acls in chart_files.users().items() for acl in acls for operation in acl["operations"]
    }  # fmt: skip
    assert generated == documented


def test_value_sets_fit_the_schema_and_a_wrong_field_does_not():
    import jsonschema  # slow to import

    validator = jsonschema.Draft7Validator(SCHEMA)
    for values in (DEFAULTS, *(yaml.safe_load(path.read_text()) for path in VALUES)):
        assert list(validator.iter_errors(values)) == []
    for wrong, named in (
        ({"worker": {"replica": 3}}, "replica"),
        ({"settings": {"DRUMLINE_KAFKA__BOOTSTRP": "x"}}, "DRUMLINE_KAFKA__BOOTSTRP"),
        ({"sink": {"settings": {"DRUMLINE_CLICKHOUSE__PASSWORD": "x"}}}, "DRUMLINE_CLICKHOUSE__PASSWORD"),
        ({"clickhouse": {"url": "http://user:password@host"}}, "http://user:password@host"),
    ):
        [error] = validator.iter_errors(wrong)
        assert named in error.message


def test_every_value_is_in_the_schema_and_used():
    text = "".join(path.read_text() for path in TEMPLATES)

    def leaves(values, schema, place):
        for name, value in values.items():
            known = schema["properties"][name]
            known = SCHEMA["definitions"][known["$ref"].rpartition("/")[2]] if "$ref" in known else known
            if isinstance(value, dict) and "properties" in known and name not in ("resources", "key"):
                leaves(value, known, f"{place}.{name}")
            else:
                assert re.search(rf"\.{name}\b", text), f"{place}.{name}"

    leaves(DEFAULTS, SCHEMA, "")


def test_variables_in_templates_are_settings_or_those_of_jobs():
    known = {*setting_names(Settings), *JOBS, *SPOOL, *OF_CHART}
    text = "".join(path.read_text() for path in TEMPLATES)
    named = set(re.findall(r'"(DRUMLINE_\w+)"|name: (DRUMLINE_[A-Z_]+)[,}]', text))
    assert {name for pair in named for name in pair if name} <= known


def test_versions_and_ports_are_those_of_the_product():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart, settings = yaml.safe_load((CHART / "Chart.yaml").read_text()), Settings()
    assert chart["appVersion"] == version
    text = "".join(path.read_text() for path in TEMPLATES)
    for port in PORTS.values():
        assert f'"port" {port} ' in text
    assert f'--port, "{settings.serve.port}"' in text


def test_the_link_leads_to_the_rules_of_prometheus():
    assert (CHART / "files" / "prometheus-rules.yml").exists()


@pytest.mark.skipif(not (tools.BIN / "helm").exists(), reason="no helm: make test-kube fetches it")
def test_helm_renders_every_value_set(tmp_path):
    shutil.copytree(CHART, tmp_path / "chart", ignore=shutil.ignore_patterns("grafana"))  # with what the link leads to
    bare = [tools.BIN / "helm", "template", "d", tmp_path / "chart", "--values", VALUES[0]]
    options = ["--set", "grafana.dashboards.enabled=true"]
    missing = subprocess.run([*bare, *options], capture_output=True, text=True, check=False)
    assert "run `drumline grafana write" in missing.stderr
    write_grafana_files(tmp_path / "chart")
    for values in VALUES:
        options = ["--values", values, "--kube-version", "1.37.0"]
        command = [tools.BIN / "helm", "template", "d", tmp_path / "chart", *options]
        items = resources(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        names = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in items]
        assert len(names) == len(set(names)) > 0
