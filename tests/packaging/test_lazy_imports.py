"""Commands load the program that they run only when they are called: `drumline sql` does not load Faust."""

import ast
from pathlib import Path

import pytest

from drumline.cli.app import MODULES

CLI = Path(__file__).parents[2] / "cli"
PROGRAMS = tuple(
    f"drumline.{name}" for name in ("producers", "streams", "sinks", "lab.bench", "lab.chaos", "lab.evaluate.compare")
)


@pytest.mark.parametrize("command", MODULES)
def test_a_command_imports_programs_only_inside_functions(command):
    path = CLI / (MODULES[command].replace(".", "/") + ".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            source = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            assert not (source or "").startswith(PROGRAMS), f"{path.name} loads {source} at import"
