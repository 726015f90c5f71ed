"""A step's length is the GPU's: the guides take no step's length from its host, which runs ahead."""

import re

import pytest
from glossary import ROOT

GUIDES = sorted(path for path in (ROOT / "docs" / "guide").iterdir() if path.suffix in (".md", ".ipynb"))
HOST_LENGTH = re.compile(r"(?<!\w)duration_ns")
#: A fenced block of a page, or a notebook's source.
BLOCK = re.compile(r"```.*?```|\"source\".*?\]", re.DOTALL)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_no_example_takes_the_length_of_a_step_from_its_host(page):
    blocks = [block for block in BLOCK.findall(page.read_text()) if re.search(r"FROM steps\b", block)]
    assert [block for block in blocks if HOST_LENGTH.search(block)] == []


def test_both_lengths_of_a_step_are_named_where_a_reader_of_sql_looks():
    sql = "".join(path.read_text() for path in (ROOT / "infra/clickhouse/migrations").iterdir())
    [steps] = re.findall(
        r"^CREATE TABLE IF NOT EXISTS \{database\}\.steps\n(.*?)^ENGINE", sql, re.DOTALL | re.MULTILINE
    )
    assert re.search(r"^ *duration_ns .*host.*length of the step is gpu_duration_ns", steps, re.MULTILINE)
    assert re.search(r"^ *gpu_duration_ns .*length of the step", steps, re.MULTILINE)
    assert "`gpu_duration_ns`" in (ROOT / "docs" / "guide" / "sql.md").read_text()
