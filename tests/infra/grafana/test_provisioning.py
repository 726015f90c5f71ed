"""The provisioned data source: TLS where it is asked for, and nothing that keeps Grafana from starting."""

from pathlib import Path

import yaml
from typer.testing import CliRunner

from drumline.cli.operate.grafana import app
from drumline.infra.grafana.provisioning.files import data_source, provisioning_files

FILE = Path("provisioning/datasources/clickhouse.yaml")


def generated(folder, *options):
    done = CliRunner().invoke(app, ["write", "-o", str(folder), *options])
    assert done.exit_code == 0, done.output
    [source] = yaml.safe_load((folder / FILE).read_text())["datasources"]
    return source


def test_tls_and_a_ca_of_ones_own_can_be_asked_for(tmp_path):
    plain = generated(tmp_path / "plain")
    assert plain["jsonData"]["secure"] is False
    public = generated(tmp_path / "public", "--tls")
    assert public["jsonData"] == {**plain["jsonData"], "secure": True}
    assert public["secureJsonData"] == plain["secureJsonData"]
    private = generated(tmp_path / "own", "--tls", "--ca")
    assert private["jsonData"] == {**public["jsonData"], "tlsAuthWithCACert": True}
    assert private["secureJsonData"] == {**plain["secureJsonData"], "tlsCACert": "$DRUMLINE_CLICKHOUSE_CA"}


def test_a_ca_without_tls_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["write", "-o", str(tmp_path), "--ca"])
    assert (done.exit_code, done.stderr) == (2, "drumline grafana: --ca is for --tls\n")
    assert [*tmp_path.iterdir()] == []


def test_another_default_data_source_stays_the_default():
    """Grafana does not start if two files declare a default one; over HTTP drumline's would take its place."""
    assert yaml.safe_load(provisioning_files()[FILE])["datasources"][0]["isDefault"] is False
    assert data_source("h", 1, "u", "d", True, "http")["isDefault"] is False
