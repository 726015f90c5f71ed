"""The paths to read in architecture.md: short, and each module is linked by an import to one before it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "design" / "architecture.md"
#: Modules of a path at most: more, and nobody reads them to the end.
MOST = 25


def path_of(title: str) -> list[str]:
    """The modules of a path, by their first mention; a bare name lies in the folder that its line names."""
    section = PAGE.read_text().split("## Paths to read")[1].split("\n## ")[0]
    steps = section.split(f"**{title}:**")[1].split("**")[0]
    modules = []
    for line in steps.splitlines():
        folders = re.findall(r"`([\w/]+/)`", line)
        for name in re.findall(r"`([\w/]+\.py)`", line):
            modules.append(name if "/" in name else folders[0] + name)
    return list(dict.fromkeys(modules))


def imports_of(module: str) -> set[str]:
    """The modules of drumline that one imports, as paths."""
    tree = ast.parse((ROOT / module).read_text())
    names = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    dotted = {node.module for node in names} | {f"{node.module}.{alias.name}" for node in names for alias in node.names}
    return {name.removeprefix("drumline.").replace(".", "/") + ".py" for name in dotted}


@pytest.mark.parametrize("title", ["A record of steps, from Kafka to a verdict", "A record, from Kafka to an insert"])
def test_a_path_is_short_and_each_module_is_linked_to_one_before_it(title):
    path = path_of(title)
    assert 15 < len(path) <= MOST
    imported = {module: imports_of(module) for module in path}
    for at, module in enumerate(path[1:], 1):
        before = path[:at]
        assert any(module in imported[other] or other in imported[module] for other in before), module
