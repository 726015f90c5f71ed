"""Code inside a job imports the standard library and its own package only."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSIDE_THE_JOB = [
    ROOT / "__init__.py",
    ROOT / "producers" / "__init__.py",
    ROOT / "producers" / "identity.py",
    *sorted((ROOT / "producers" / "ipc").rglob("*.py")),
    *sorted((ROOT / "producers" / "collector").rglob("*.py")),
    *sorted((ROOT / "producers" / "nccl_profiler").rglob("*.py")),
]
#: Modules beside drumline_hook.py in the folder that PYTHONPATH has.
STARTUP = {path.stem for path in (ROOT / "producers" / "collector" / "startup").glob("*.py")}


def imported(source: str) -> set[str]:
    """Return the top packages of all imports, also of those inside functions; drumline is left out."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names} - {"drumline"}


def test_imports_inside_functions_are_found():
    source = "import os.path\ndef f():\n    from numpy import array\nimport drumline.schemas\n"
    assert imported(source) == {"os", "numpy"}


@pytest.mark.parametrize("path", INSIDE_THE_JOB, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_job_imports_the_standard_library_only(path):
    assert imported(path.read_text()) - sys.stdlib_module_names - STARTUP == set()
