"""The document's table of thresholds is the code's: every number once, with a reason."""

from __future__ import annotations

import re
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest

from drumline.streams.core.thresholds import StragglerConfig

TEXT = (Path(__file__).parents[3] / "docs" / "design" / "stragglers.md").read_text()
TABLE = TEXT.split("## Thresholds")[1].split("## Limits")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| ")]
#: (name, value) as the table has them.
NAMED = [pair for row in ROWS for pair in re.findall(r"`([\w.]+)` = ([\d.]+)", row[1])]
MODULES = {
    "groups": "streams.stragglers.analysis.groups",
    "devices": "streams.stragglers.analysis.gpu_cause",
    "inferred": "producers.derive.steps.inferred_steps",
    "resync": "producers.derive.nccl.resync",
    "verdict": "streams.stragglers.analysis.verdict",
    "flows": "streams.stragglers.links.flows",
    "shift": "producers.derive.nccl.alignment",
}


def test_every_threshold_is_named_once():
    assert sorted(name for name, _ in NAMED if "." not in name) == sorted(asdict(StragglerConfig()))
    assert len(dict(NAMED)) == len(NAMED)


@pytest.mark.parametrize(("name", "value"), NAMED)
def test_the_table_has_the_codes_value(name, value):
    if "." in name:
        module, constant = name.split(".")
        assert getattr(import_module(f"drumline.{MODULES[module]}"), constant) == float(value)
    else:
        assert getattr(StragglerConfig(), name) == float(value)


def test_every_row_has_a_reason():
    assert all(len(row) == 3 and len(row[2]) > 10 for row in ROWS[1:])
