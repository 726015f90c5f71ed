"""Pages, files and modules that code, configuration and documentation name exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest
from check_docs import BUILT, PAGES, pages
from check_names import PRODUCT, python_files

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".c", ".sh", ".sql", ".toml", ".yaml", ".yml", ".html", ".env", ".service", ".avsc"}
#: A page of another project, which is cited.
FOREIGN = {"docs/developer_guide/rank-straggler-policy.md"}
#: Python files of other projects, which are cited, and examples.
FOREIGN_MODULES = {
    "hta/analyzers/straggler.py",
    "reporting.py",
    "src/nvidia_resiliency_ext/straggler/reporting.py",
    "src/device/generate.py",
    "src/device/symmetric/generate.py",
    "package/module.py",
    "train.py",
}


def sources() -> list[Path]:
    folders = [ROOT / name for name in (*PRODUCT, "tests", "docs")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in SUFFIXES]
    return [*files, ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "__init__.py"]


def missing(text: str, pattern: str) -> set[str]:
    named = {path for path in re.findall(pattern, text) if not (ROOT / path).exists()}
    return named - FOREIGN - {str(page.relative_to(ROOT)) for page in BUILT}


def test_pages_named_in_code_exist():
    pattern = r"(?<![\w/])docs/[\w/.-]+\.(?:md|svg|png)"
    absent = {str(file.relative_to(ROOT)): paths for file in sources() if (paths := missing(file.read_text(), pattern))}
    assert not absent


@pytest.mark.parametrize("page", pages(ROOT / name for name in PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_in_pages_exist(page):
    pattern = (
        r"(?<![\w/.])(?:tests|docs|cli|lab|views|producers|streams|schemas|sinks|infra)/[\w/.-]+\."
        r"(?:py|c|sh|md|avsc|sql|json(?:\.gz)?)\b"
    )
    assert not missing(re.sub(r"https?://\S+", "", page.read_text()), pattern)


def unknown_modules(text: str) -> set[str]:
    """Return the dotted names of product modules of which neither a module nor an attribute of one exists."""
    packages = "|".join(PRODUCT)
    pattern = rf"(?<![\w.\-@/])drumline\.((?:{packages})(?:\.[A-Za-z_]\w*)*)(?![\w{{]|\.[{{<])"
    return {name for name in set(re.findall(pattern, text)) if not _exists(name.split("."))}


def _exists(parts: list[str]) -> bool:
    for count in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:count])
        module = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if module.exists():
            return count == len(parts) or re.search(rf"\b{parts[count]}\b", module.read_text()) is not None
    return False


@pytest.mark.parametrize("folder", [*PRODUCT, "tests", "docs"])
def test_modules_named_by_their_path_exist(folder):
    files = [file for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES | {".md"}]
    assert not {str(file): names for file in files if (names := unknown_modules(file.read_text()))}


@cache
def python_paths() -> frozenset[str]:
    """Return every ending of the path of each Python file: with all folders, with some, and the bare name."""
    folders = [ROOT / name for name in (*PRODUCT, "tests", "docs")]
    paths = [file.relative_to(ROOT).parts for file in python_files(folders)] + [("__init__.py",)]
    return frozenset("/".join(parts[start:]) for parts in paths for start in range(len(parts)))


def comments_and_docstrings(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return [token.string for token in tokens if token.type == tokenize.COMMENT] + docstrings


def absent_modules(source: str) -> set[str]:
    """Return the Python files that comments and docstrings name by a path or a bare name, and that do not exist."""
    pattern = r"(?<![\w/.\-{}*@<>:])((?:[\w-]+/)*\w+\.py)\b"
    known = python_paths() | FOREIGN_MODULES
    if known.issuperset(re.findall(pattern, source)):  # to find the comments costs a hundred times as much
        return set()
    return {name for text in comments_and_docstrings(source) for name in re.findall(pattern, text)} - known


def test_an_absent_module_is_found():
    source = '"""gone/codec.py, schemas/codec.py, codec.py, https://host/gone.py"""\nx = "gone.py"  # lost.py\n'
    assert absent_modules(source) == {"gone/codec.py", "lost.py"}


@pytest.mark.parametrize("folder", [*PRODUCT, "tests"])
def test_modules_named_in_comments_and_docstrings_exist(folder):
    files = python_files([ROOT / folder])
    assert not {str(file): names for file in files if (names := absent_modules(file.read_text()))}


def test_the_packages_of_architecture_name_every_folder_of_a_program_and_of_the_views():
    text = (ROOT / "docs/design/architecture.md").read_text()
    packages = text.split("\n## Packages\n")[1].split("\n## ")[0]
    tops = [ROOT / name for name in ("producers", "streams", "sinks", "infra", "views", "lab")]
    folders = {path.name for top in tops for path in top.iterdir() if path.is_dir() and any(path.rglob("*.*"))}
    named = {part for path in re.findall(r"`([\w/]+)/`", packages) for part in path.split("/")} | {"__pycache__"}
    assert folders - named == set()
