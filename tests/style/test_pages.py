"""The documentation as a whole: every page is linked from another one, and the README counts right."""

import re
from pathlib import Path

from check_docs import pages
from glossary import ROOT

from drumline.infra.clickhouse.queries import queries
from drumline.infra.grafana.catalog import DASHBOARDS
from drumline.infra.grafana.provisioning.rules import rules

TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = pages([ROOT / "docs"])


def links(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)#:\s]+\.md)", page.read_text())
    return {(page.parent / target).resolve() for target in targets} - {page.resolve()}


def test_every_page_is_linked_from_another_page():
    linked = {target for page in TOP + PAGES for target in links(page)}
    assert [page for page in PAGES if page.resolve() not in linked] == []


def test_the_index_links_every_page_but_those_of_benchmarks():
    linked = links(ROOT / "docs" / "index.md")
    listed = [page for page in PAGES if page.parent.name != "bench" and page.name != "index.md"]
    assert [page for page in listed if page.resolve() not in linked] == []


def test_the_readme_counts_right():
    text = TOP[0].read_text()
    assert f"{len(DASHBOARDS)} dashboards, {len(rules())} alert rules." in text
    assert f"one of {len(queries())} questions by name" in text
