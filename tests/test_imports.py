"""Which module may import which program: the part that import-linter's contract leaves to the command modules."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ("comparison", "bench", "chaos")
PROGRAMS = tuple(f"drumline.{name}" for name in ("producers", "streams", "sinks", *TOOLS))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_in_infra_only_command_modules_import_a_program():
    for path in (ROOT / "infra").glob("*.py"):
        if path.name.startswith("command_"):
            continue
        found = {n for n in imported(path) if n.startswith(PROGRAMS)}
        assert not found, f"{path.name} imports {found}"


def test_command_modules_import_programs_only_inside_functions():
    for path in (ROOT / "infra").glob("command_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom | ast.Import):
                source = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                assert not (source or "").startswith(PROGRAMS), f"{path.name} loads {source} at import"


@pytest.mark.parametrize(("tool", "command"), [("comparison", "evaluate"), ("bench", "bench"), ("chaos", "chaos")])
def test_nothing_but_its_command_loads_what_lives_with_the_tests(tool, command):
    others = [f"tests/{other}" for other in TOOLS if other != tool]
    for folder in ("producers", "streams", "schemas", "sinks", "infra", *others):
        for path in (ROOT / folder).glob("*.py"):
            if path.name != f"command_{command}.py":
                assert not {n for n in imported(path) if n.startswith(f"drumline.{tool}")}, path
