"""Check identifiers and docstrings against the glossary.

    check_names.py [--summary] [--text] [FOLDER_OR_FILE ...]

Without arguments it reads the whole project. `--summary` prints counts per package. `--text` adds refused words of
docstrings, comments and strings with a space in them, which the check leaves out otherwise. Exits with 1 on a finding.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from glossary import ROOT, Glossary, read_glossary

PRODUCT = ("cli", "lab", "views", "producers", "streams", "sinks", "infra", "schemas")
REST = (ROOT / "tests", ROOT / "docs")
QUESTION_OPENERS = {"what", "who", "whose", "whom", "whether", "where", "when", "why", "how", "which"}
EXEMPTION = re.compile(r"#\s*glossary:\s*\S")
#: Module names that one package may have several times: the folder says of what they are.
GENERIC_MODULES = {
    "config",
    "data",
    "errors",
    "main",
    "offsets",
    "processes",
    "queries",
    "report",
    "stage",
    "state",
    "tls",
}
#: Folders whose modules are named after a command, benchmark, dashboard or alert group.
CATALOGUES = ("cli", "lab/bench/benchmarks", "infra/grafana/dashboards", "infra/grafana/alerts")


@dataclass(frozen=True, order=True)
class Finding:
    """A line that breaks a rule; `kind` is the rule's short name."""

    path: str
    line: int
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def python_files(paths: Iterable[Path]) -> list[Path]:
    """Return the Python files under the given paths, without caches and build folders."""
    files = {file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))}
    return sorted(file for file in files if not {"__pycache__", ".venv", "build"} & set(file.parts))


def check_file(glossary: Glossary, file: Path, text: bool = False) -> Iterator[Finding]:
    """Yield the findings of one file. Raises SyntaxError where it is not Python."""
    source = file.read_text()
    lines = source.splitlines()
    shown = _shown(file)
    nodes = list(ast.walk(ast.parse(source, filename=shown)))
    if banned := glossary.banned_in_name(_module_name(file)):
        yield Finding(shown, 1, "module", f"module '{_module_name(file)}' contains '{banned}': use {banned.use}")
    for kind, name, line in _identifiers(nodes):
        if EXEMPTION.search(lines[line - 1]):
            continue
        is_test = kind == "function" and name.startswith("test_")
        if banned := glossary.banned_in_test_name(name) if is_test else glossary.banned_in_name(name):
            yield Finding(shown, line, kind, f"{kind} '{name}' contains '{banned}': use {banned.use}")
    for docstring, line in _docstrings(nodes):
        first = re.match(r"\W*(\w+)", docstring)
        if first and first[1].lower() in QUESTION_OPENERS:
            yield Finding(shown, line, "docstring", f"docstring opens with '{first[1]}': begin with a verb or a noun")
    if text:
        for piece, line in _texts(nodes, source):
            for at, banned in glossary.banned_in_prose(piece):
                found_at = line + piece.count("\n", 0, at)
                if not EXEMPTION.search(lines[min(found_at, len(lines)) - 1]):
                    yield Finding(shown, found_at, "text", f"text contains '{banned}': use {banned.use}")


def check_uniqueness(files: Iterable[Path]) -> Iterator[Finding]:
    """Yield classes of the product, and modules of one of its packages, that share a name."""
    classes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    modules: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file in files:
        shown = _shown(file)
        if file.stem not in GENERIC_MODULES | {"__init__"} and not shown.startswith(CATALOGUES):
            modules[shown.partition("/")[0], file.stem].append(shown)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append((shown, node.lineno))
    for name, places in classes.items():
        for path, line in places[1:]:
            yield Finding(path, line, "class twice", f"class '{name}' is also in {places[0][0]}: name them apart")
    for (_, name), paths in modules.items():
        for path in paths[1:]:
            yield Finding(path, 1, "module twice", f"module '{name}' is also {paths[0]}: name them apart")


def _identifiers(nodes: list[ast.AST]) -> Iterator[tuple[str, str, int]]:
    """Yield (kind, name, line) of all names that the code gives: an attribute or variable once, where it is first."""
    seen: set[tuple[str, str]] = set()
    for node in nodes:
        for kind, name, line in _given(node):
            if kind in ("class", "function", "argument"):
                yield kind, name, line
            elif (kind, name) not in seen:
                seen.add((kind, name))
                yield kind, name, line


def _given(node: ast.AST) -> Iterator[tuple[str, str, int]]:
    if isinstance(node, ast.ClassDef):
        yield "class", node.name, node.lineno
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield "function", node.name, node.lineno
    elif isinstance(node, ast.arg):
        yield "argument", node.arg, node.lineno
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not node.id.startswith("__"):  # `__all__`
        yield "variable", node.id, node.lineno
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield "attribute", node.attr, node.lineno
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield "variable", node.name, node.lineno
    elif isinstance(node, ast.alias) and node.asname:
        yield "import", node.asname, node.lineno


def _docstrings(nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield docstring, node.body[0].lineno


def _texts(nodes: list[ast.AST], source: str) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield re.sub(r"`[^`]*`", lambda match: " " * len(match[0]), node.value), node.lineno
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield re.sub(r"`[^`]*`", "", token.string), token.start[0]


def _module_name(file: Path) -> str:
    if file.parent == ROOT and file.name == "__init__.py":
        return "drumline"  # whatever the checkout's folder is called
    return file.parent.name if file.name == "__init__.py" else file.stem


def _shown(file: Path) -> str:
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)


def _print_summary(findings: list[Finding]) -> None:
    by_package: dict[str, Counter[str]] = defaultdict(Counter)
    for finding in findings:
        by_package["/".join(Path(finding.path).parent.parts[:2]) or "."][finding.kind] += 1
    for package, kinds in sorted(by_package.items()):
        detail = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        print(f"{sum(kinds.values()):6} {package}: {detail}")
    print(f"{len(findings):6} in all")


def main(arguments: list[str]) -> int:
    """Run the check and return the exit status."""
    parser = argparse.ArgumentParser(description="Check identifiers and docstrings against the glossary.")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--text", action="store_true")
    options = parser.parse_args(arguments)
    glossary = read_glossary()
    product = [ROOT / name for name in PRODUCT]
    paths = [path.resolve() for path in options.paths] or [*product, *REST, *ROOT.glob("*.py")]
    findings = [finding for file in python_files(paths) for finding in check_file(glossary, file, options.text)]
    if not options.paths:
        findings += check_uniqueness(python_files(product))
    findings.sort()
    if options.summary:
        _print_summary(findings)
    else:
        print("".join(f"{finding}\n" for finding in findings), end="")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
