"""The names of topics stand in schemas/topics.py only: elsewhere a string takes them from `Topic`."""

import ast
from pathlib import Path

from check_names import PRODUCT

from drumline.schemas.topics import Topic

ROOT = Path(__file__).parents[2]
DECLARED = ROOT / "schemas/topics.py"
MODULES = sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py") if path != DECLARED)


def spelled_out(source: str) -> list[tuple[int, str]]:
    """(line, topic) of each topic whose name is part of a string; docstrings and comments are prose."""
    if not any(topic in source for topic in Topic):
        return []
    tree = ast.parse(source)
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [
        (node.lineno, topic.value)
        for node in texts
        if id(node) not in prose
        for topic in Topic
        if topic.value in node.value
    ]


def test_modules_take_the_names_of_topics_from_the_enumeration():
    assert len(MODULES) > 500
    spelled = {str(module.relative_to(ROOT)): spelled_out(module.read_text()) for module in MODULES}
    assert {path: names for path, names in spelled.items() if names} == {}


def test_a_name_is_found_in_any_string_and_not_in_prose():
    assert spelled_out("SQL = f\"topic = 'gpu.step.v1' AND {x}\"") == [(1, "gpu.step.v1")]
    assert spelled_out('read("gpu.kernel.v1")') == [(1, "gpu.kernel.v1")]
    assert (
        spelled_out('"""Rows of gpu.step.v1."""\n\n\ndef f():\n    """Of gpu.kernel.v1."""\n    # gpu.host.v1\n') == []
    )
    assert spelled_out("f\"topic = '{Topic.STEP}'\"") == []
