"""Tables that cannot be read: the error names the file, the column and the row."""

import numpy as np
import pyarrow as pa
import pytest
from support.operation_tables import step_rows, write_table

from drumline.producers.replay.operation_table.job import OperationJob
from drumline.producers.replay.operation_table.table_reader import find_table, read_table
from drumline.producers.replay.parquet import BadTrace

ROWS = [*step_rows(0), *step_rows(1)]


def column(number, row, value):
    values = [r[number] for r in ROWS]
    values[row] = value
    return values


BROKEN = {
    "column missing": ({"duration": None}, "columns duration are missing"),
    "value missing": ({"stage": column(2, 5, None)}, "row 5: column stage is empty"),
    "text for a number": ({"rank": ["a"] * len(ROWS)}, "column rank must have whole numbers, not string"),
    "fraction for a number": ({"step": [0.5] * len(ROWS)}, "column step must have whole numbers, not double"),
    "not a time": ({"start_ts": column(5, 3, float("nan"))}, "row 3: column start_ts is no number of seconds"),
    "endless": ({"duration": column(6, 7, float("inf"))}, "row 7: column duration is no number of seconds"),
    "negative duration": ({"duration": column(6, 7, -1.0)}, "row 7: column duration is negative"),
    "unknown type": ({"optype": column(4, 9, "think")}, "row 9: column optype is none of forward-compute"),
    "type a number": ({"optype": [1] * len(ROWS)}, "column optype must have text, not int64"),
    "stage beyond the layout": ({"stage": column(2, 4, 2)}, "row 4: column stage is not below stage size 2"),
    "rank of two stages": ({"stage": column(2, 46, 0)}, "row 46: column stage is 0, not 1 as before (rank 8)"),
    "no next stage": ({"optype": column(4, 14, "forward-send")}, "row 14: column optype is forward-send, but stage 1"),
    "not received": (
        {"optype": column(4, 15, "forward-compute")},
        "step 0: column optype has forward-send of rank 0 1 times, forward-recv of rank 8 0 times",
    ),
}


@pytest.mark.parametrize(("columns", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_the_error_names_file_column_and_row(tmp_path, columns, message):
    path = write_table(tmp_path, ROWS, **columns)
    with pytest.raises(BadTrace) as raised:
        OperationJob(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


LAYOUTS = {
    "no size": ("dp_size: 2\n", "pp_size is missing"),
    "no number": ("dp_size: 2\npp_size: two\n", "line 2: pp_size must be a number from 1 to 1048576, not 'two'"),
    "zero": ("dp_size: 0\npp_size: 2\n", "line 1: dp_size"),
    "no pairs": ("dp_size 2\n", "line 1: not `name: value`"),
    "too small": ("dp_size: 1\npp_size: 2\n", "row 7, and 29 more rows: column dp_rank"),
}


@pytest.mark.parametrize(("layout", "message"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_wrong_layout_is_named(tmp_path, layout, message):
    with pytest.raises(BadTrace, match=message):
        OperationJob(write_table(tmp_path, ROWS, layout))


def test_a_missing_layout_is_named(tmp_path):
    path = write_table(tmp_path, ROWS)
    (tmp_path / "meta-job.yaml").unlink()
    with pytest.raises(BadTrace, match=r"meta-job\.yaml"):
        OperationJob(path)


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    path = write_table(tmp_path, ROWS)
    path.write_text("step,rank\n")
    with pytest.raises(BadTrace, match=r"trace-job\.parquet"):
        read_table(path)


def test_types_may_be_stored_as_a_dictionary(tmp_path):
    types = pa.array([row[4] for row in ROWS]).dictionary_encode()
    plain, encoded = read_table(write_table(tmp_path, ROWS)), read_table(write_table(tmp_path, ROWS, optype=types))
    assert np.array_equal(plain.of_type("gc"), encoded.of_type("gc"))
    assert plain.of_type("gc").sum() == 4


def test_a_folder_holds_one_table_or_the_error_lists_them(tmp_path):
    path = write_table(tmp_path, ROWS)
    assert find_table(tmp_path) == find_table(path) == path
    (tmp_path / "trace-b.parquet").write_bytes(path.read_bytes())
    with pytest.raises(BadTrace, match=r"2 operation tables, read each: trace-b.parquet, trace-job.parquet"):
        find_table(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    assert find_table(tmp_path) is None, "a recorded trace"
