"""Answers for agents are bounded, say what they leave out, and hold stored text as data."""

import json

import pytest

from drumline.infra.mcp.answers import ANSWER_CHARS, CELL_CHARS, plain, short_type, table


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
