"""Pages and tests that code, configuration and documentation name by their path exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from check_docs import PAGES, pages
from check_names import PRODUCT

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".c", ".sh", ".sql", ".toml", ".yaml", ".yml", ".html", ".env", ".service", ".avsc"}
#: A page of another project, which is cited.
FOREIGN = {"docs/developer_guide/rank-straggler-policy.md"}


def sources() -> list[Path]:
    folders = [ROOT / name for name in (*PRODUCT, "tests", "docs")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in SUFFIXES]
    return [*files, ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "__init__.py"]


def missing(text: str, pattern: str) -> set[str]:
    return {path for path in re.findall(pattern, text) if not (ROOT / path).exists()} - FOREIGN


def test_pages_named_in_code_exist():
    pattern = r"(?<![\w/])docs/[\w/.-]+\.(?:md|svg|png)"
    absent = {str(file.relative_to(ROOT)): paths for file in sources() if (paths := missing(file.read_text(), pattern))}
    assert not absent


@pytest.mark.parametrize("page", pages(ROOT / name for name in PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_in_pages_exist(page):
    pattern = (
        r"(?<![\w/.])(?:tests|docs|producers|streams|schemas|sinks|infra)/[\w/.-]+\.(?:py|c|sh|md|avsc|json|sql)\b"
    )
    assert not missing(re.sub(r"https?://\S+", "", page.read_text()), pattern)
