"""The generated pages of docs/reference are those of the code."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import alerts_page
import bounds_page
import causes_page
import cli_page
import collector_status_page
import dashboards_page
import fleet_page
import metrics_page
import pytest
import settings_page
from check_docs import BUILT, check_page
from glossary import read_glossary

from drumline.cli.app import MODULES
from drumline.infra.config.settings import Settings
from drumline.infra.config.unknown_variables import setting_names

PAGES = [
    causes_page,
    settings_page,
    cli_page,
    metrics_page,
    alerts_page,
    dashboards_page,
    collector_status_page,
    fleet_page,
]


@pytest.mark.parametrize("generator", PAGES, ids=lambda generator: generator.__name__)
def test_a_page_is_up_to_date(generator: ModuleType):
    assert generator.PAGE.read_text() == generator.page(), "run `make docs`"


def test_a_page_that_the_repository_does_not_have_reads_as_the_others(tmp_path: Path):
    assert bounds_page.PAGE in BUILT
    page = tmp_path / "reference" / bounds_page.PAGE.name
    page.parent.mkdir()
    page.write_text(bounds_page.page())
    assert [str(finding) for finding in check_page(read_glossary(), page) if finding.kind != "link"] == []


def test_every_setting_and_every_command_has_a_place():
    settings, commands = settings_page.PAGE.read_text(), cli_page.PAGE.read_text()
    assert [name for name in setting_names(Settings) if f"| `{name}` |" not in settings] == []
    assert [name for name in MODULES if f"### drumline {name}\n" not in commands] == []
