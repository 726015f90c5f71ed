"""Answers for agents are bounded, say what they leave out, and hold stored text as data."""

import json

import pytest

from drumline.views.mcp.answers import ANSWER_CHARS, CELL_CHARS, MOST_BYTES, bounded, plain, short_type, table
from drumline.views.mcp.protocol import _answered


def answer(rows, names=("name",)):
    meta = [{"name": name, "type": "String"} for name in names]
    return json.dumps({"meta": meta, "data": rows, "rows": len(rows)}).encode()


def test_rows_beyond_the_limit_are_counted_out():
    assert table(answer([["a"], ["b"]]), 2) == {
        "columns": [{"name": "name", "type": "String"}], "rows": [["a"], ["b"]], "cut": "",
    }  # fmt: skip
    cut = table(answer([["a"], ["b"], ["c"]]), 2)
    assert cut["rows"] == [["a"], ["b"]]
    assert cut["cut"].startswith("only the first 2 rows: max_rows = 2.")


def test_an_answer_has_a_size_and_a_cell_too():
    result = table(answer([["x" * CELL_CHARS * 2]] * 500), 500)
    assert len(json.dumps(result)) < ANSWER_CHARS + 1_000
    assert "characters at most" in result["cut"]
    assert result["rows"][0][0].endswith(f"… ({CELL_CHARS} characters more)")


@pytest.mark.parametrize(("columns", "name"), [(15_000, "n"), (30, "n" * CELL_CHARS), (500, "\u6f22" * 100)])
def test_columns_have_a_size_and_rows_have_no_others(columns, name):
    names = [f"{name}{number}" for number in range(columns)]
    result = table(answer([names, names], names=names), 500)
    assert len(json.dumps(result)) < ANSWER_CHARS + 1_000
    assert 0 < len(result["columns"]) < columns
    assert all(len(row) == len(result["columns"]) for row in result["rows"])
    assert f"of {columns} columns" in result["cut"]


LONG = ["y" * 900] * 2_000


@pytest.mark.parametrize(
    "given",
    [
        {"job": "j", "verdicts": LONG, "hangs": LONG, "note": ""},
        {"tables": [{"name": "t", "comment": "\u6f22" * 2_000}] * 500},
        {"columns": [], "rows": LONG, "cut": "only the first 2 rows"},
        {"text": "z" * 3 * MOST_BYTES, "n": 1},
    ],
)
def test_no_answer_has_more_bytes_than_an_agent_reads_and_what_is_cut_is_named(given):
    result = bounded(given)
    assert len(json.dumps(result)) <= MOST_BYTES
    assert result.keys() == {*given, "cut"}
    longest = max(given, key=lambda name: len(json.dumps(given[name])))
    assert f"{longest} is cut" in result["cut"]
    assert given.get("cut", "") in result["cut"]
    assert bounded({"a": [1]}) == {"a": [1]}


@pytest.mark.parametrize("text", ["\x1b[31mred", "\x07", "\u202ereversed", "\x9b2J", "\r"])
def test_control_characters_are_escaped_in_values_and_names(text):
    for value in (
        plain(text),
        *plain({text: [text]}),
        *plain({"a": (text,)})["a"],
        table(answer([[text]]), 5)["rows"][0][0],
    ):
        assert all(char.isprintable() for char in value)
        assert "\\" in value
    assert table(answer([["a"]], names=[text]), 5)["columns"][0]["name"] == plain(text)


def test_numbers_keep_their_digits_and_no_answer_is_an_empty_table():
    numbers = b'{"meta": [{"name": "n", "type": "UInt64"}], "data": [[18446744073709551615], [null]]}'
    assert table(numbers, 5)["rows"] == [[18446744073709551615], [None]]
    assert table(b"", 5) == {"columns": [], "rows": [], "cut": ""}


@pytest.mark.parametrize(
    ("kind", "short"),
    [
        ("SimpleAggregateFunction(min, DateTime64(9, 'UTC'))", "DateTime64(9, 'UTC')"),
        ("LowCardinality(String)", "String"),
        ("Map(LowCardinality(Nullable(String)), UInt64)", "Map(Nullable(String), UInt64)"),
        ("Enum8('ok' = 0)", "Enum8('ok' = 0)"),
    ],
)
def test_types_are_shown_without_their_encoding(kind, short):
    assert short_type(kind) == short


def test_the_server_bounds_the_answer_of_every_tool():
    [block] = _answered(lambda: {"verdicts": LONG}).content
    assert len(block.text.encode()) <= MOST_BYTES
