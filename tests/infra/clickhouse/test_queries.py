"""Named queries: their files describe them, names and parameters are checked before a request."""

import re
from pathlib import Path

import pytest

from drumline.infra.clickhouse.queries import THEMES, BadParameters, Chart, UnknownQuery, adhoc, parse, queries, query
from drumline.lab.demo import report as demo_report
from drumline.views.report import queries as report_queries
from drumline.views.top import data as top_data

FILE = """-- What is asked?
-- theme: Kernels
-- try: --job demo --most 3
-- A note.
-- @most = 5: how many
SELECT {most:UInt32}, {job:String}, {since:DateTime64(3, 'UTC')}, {ids:Array(String)}
-- @ids: which
"""


def test_a_file_has_a_question_and_parameters():
    parsed = parse("x", FILE.replace("\n-- @ids: which\n", "\n").replace("-- A note.", "-- A note.\n-- @ids: which"))
    assert (parsed.question, parsed.theme, parsed.notes) == ("What is asked?", "Kernels", "A note.")
    assert parsed.example == {"job": "demo", "most": "3"}
    assert [(p.name, p.type, p.default) for p in parsed.parameters] == [
        ("ids", "Array(String)", None), ("most", "UInt32", "5"), ("job", "String", None),
        ("since", "DateTime64(3, 'UTC')", "1970-01-01 00:00:00"),
    ]  # fmt: skip


@pytest.mark.parametrize("left_out", ["-- theme: Kernels\n", "-- @most = 5: how many\n"])
def test_a_file_that_lacks_something_is_refused(left_out):
    with pytest.raises(ValueError, match=r"x\.sql"):
        parse("x", FILE.replace(left_out, ""))


@pytest.mark.parametrize(
    ("text", "chart"),
    [
        ("gpu_s by kernel", Chart(("gpu_s",), "", ("kernel",), is_stacked=False)),
        ("stacked a, b by rank, host", Chart(("a", "b"), "", ("rank", "host"), is_stacked=True)),
        ("rate over minute by rank", Chart(("rate",), "minute", ("rank",), is_stacked=False)),
        ("a, b over step", Chart(("a", "b"), "step", (), is_stacked=False)),
    ],
)
def test_a_file_states_how_its_answer_is_drawn(text, chart):
    assert parse("x", FILE.replace("-- A note.", f"-- chart: {text}").replace("-- @ids: which\n", "")
                 .replace(", {ids:Array(String)}", "")).chart == chart  # fmt: skip


@pytest.mark.parametrize("text", ["gpu_s", "by kernel", "gpu_s, by kernel", "a over b over c"])
def test_a_chart_without_a_measure_or_a_place_is_refused(text):
    with pytest.raises(ValueError, match=r"x\.sql.*gpu_s by kernel"):
        parse("x", FILE.replace("-- A note.", f"-- chart: {text}").replace(", {ids:Array(String)}", "")
              .replace("-- @ids: which\n", ""))  # fmt: skip


def test_every_query_is_complete_and_its_example_fits():
    assert len(queries()) >= 25
    for item in queries().values():
        assert item.theme in THEMES
        assert item.question.endswith(("?", "."))
        item.values(item.example)
        assert not re.search(r"\$\{|%s|;", item.sql), item.name
    assert {item.theme for item in queries().values()} == set(THEMES)


def test_the_readme_counts_them():
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    [count] = re.findall(r"one of (\d+) questions by name", readme)
    assert int(count) == len(queries())


def test_no_quantile_is_taken_of_a_sample():
    """ClickHouse's quantile() looks at 8192 values: off by some percent in the tail."""
    of_samples = re.compile(r"\bquantiles?(OrNull)?(If)?\(")
    assert not [item.name for item in queries().values() if of_samples.search(item.sql)]
    texts = [text for module in (report_queries, top_data, demo_report) for text in vars(module).values()]
    assert not [text for text in texts if isinstance(text, str) and of_samples.search(text)]


def test_what_asks_about_all_jobs_can_be_asked_about_one():
    for name in ("jobs", "cost"):
        parameters = [p.name for p in query(name).parameters]
        assert parameters.count("job") == parameters.count("run") == 1
        assert query(name).values({})["job"] == ""


def test_a_name_that_is_not_there_names_close_ones():
    with pytest.raises(UnknownQuery, match="did you mean top-kernels"):
        query("top-kernel")
    with pytest.raises(UnknownQuery, match="--list"):
        query("zzzz")


def test_parameters_are_filled_in_missing_and_unknown_ones_named():
    result = query("top-kernels")
    assert result.values({"job": "x"}) == {
        "job": "x", "run": "", "since": "1970-01-01 00:00:00", "until": "2106-01-01 00:00:00", "limit": "20",
    }  # fmt: skip
    with pytest.raises(BadParameters, match="top-kernels needs --job"):
        result.values({})
    with pytest.raises(BadParameters, match=r"no parameter --jbo; did you mean --job\? it has: --job, \[--run\], "):
        result.values({"jbo": "x", "job": "y"})


def test_sql_of_ones_own_needs_all_its_parameters():
    assert adhoc("SELECT 1").values({}) == {}
    with pytest.raises(BadParameters, match="needs --a and --b"):
        adhoc("SELECT {a:UInt8}, {b:Array(UInt8)}").values({})
    with pytest.raises(BadParameters, match="no parameter --c"):
        adhoc("SELECT 1").values({"c": "1"})
