"""Types that ClickHouse's Arrow format loses are put back."""

import datetime as dt

import pyarrow as pa
import pytest

from drumline.infra.clickhouse.client import PermanentError
from drumline.views.client.arrow import with_types


def test_enumerations_are_labels_and_seconds_are_timestamps():
    numbers = pa.table({
        "severity": pa.array([-1, 3, None], pa.int8()),
        "odd": pa.array([1, 1, 2], pa.int8()),
        "minute": pa.array([0, 60, None], pa.uint32()),
        "local": pa.array([0, 60, 120], pa.uint32()),
        "pid": pa.array([0, 60, 120], pa.uint32()),
    })  # fmt: skip
    types = {
        "severity": "Nullable(Enum8('insufficient_data' = -1, 'critical' = 3))",
        "odd": r"Enum8('it\'s' = 1, 'a = 2, b' = 2)",
        "minute": "Nullable(DateTime('UTC'))",
        "local": "DateTime('Europe/Berlin')",
        "pid": "UInt32",
    }
    result = with_types(numbers, lambda: types)
    assert result["severity"].to_pylist() == ["insufficient_data", "critical", None]
    assert result["odd"].to_pylist() == ["it's", "it's", "a = 2, b"]
    assert result["minute"].to_pylist() == [
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC), None,
    ]  # fmt: skip
    assert result.schema.field("local").type == pa.timestamp("s", tz="Europe/Berlin")
    assert result["pid"].to_pylist() == [0, 60, 120]


def test_types_are_asked_for_only_where_something_may_be_lost():
    def types():
        raise AssertionError("not needed")

    table = pa.table({"a": [1], "b": ["x"]})
    assert with_types(table, types) is table


def test_a_statement_that_cannot_be_described_stays_as_it_is():
    def types():
        raise PermanentError("Syntax error", 62)

    table = pa.table({"a": pa.array([1], pa.uint32())})
    assert with_types(table, types) is table


def test_a_label_that_the_server_did_not_name_is_an_error():
    with pytest.raises(KeyError):
        with_types(pa.table({"e": pa.array([9], pa.int8())}), lambda: {"e": "Enum8('a' = 1)"})
