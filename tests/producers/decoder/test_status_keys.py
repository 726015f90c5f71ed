"""The list of `collector` keys, which the documentation shows, is that of the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from drumline.producers.decoder.status_keys import PROBLEMS, STATUS_KEYS

PRODUCERS = Path(__file__).parents[3] / "producers"
SOURCES = [
    path
    for folder in ("collector", "decoder", "live_matching", "rings", "serving")
    for path in (PRODUCERS / folder).rglob("*.py")
]


def written(*names: str) -> Iterator[str]:
    """Constant keys that the code assigns in dicts with these names (`self._problems["decode"] = ...`)."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.slice, ast.Constant)
            ):
                target = node.value
                name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
                if name.lstrip("_") in names and isinstance(node.slice.value, str):
                    yield node.slice.value


def dict_keys(path: Path) -> set[str]:
    """Constant keys of the dict displays in a module."""
    dicts = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Dict)]
    return {key.value for display in dicts for key in display.keys if isinstance(key, ast.Constant)}


def test_every_key_is_listed_with_its_meaning():
    tables = {"kernels", "copies", "markers", "payloads"}  # counted in a loop over the decoded tables
    keys = {"control", *tables, *written("records", "counts"), *dict_keys(PRODUCERS / "decoder" / "self_metrics.py")}
    assert keys == STATUS_KEYS.keys()
    assert all(STATUS_KEYS.values())


def test_every_problem_is_listed_with_its_meaning():
    restarts = {"taken", "no_kernels"}  # names of the collector's events
    assert {*restarts, *written("problems")} == PROBLEMS.keys()
    texts = "".join(path.read_text() for path in SOURCES)
    assert all(f'"{name}"' in texts for name in restarts)
