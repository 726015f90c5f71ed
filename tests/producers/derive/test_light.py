"""Rows of collectives and steps that are derived from NCCL operations alone."""

import numpy as np

from drumline.producers.derive.light import Operations, light_rows
from drumline.producers.derive.nccl.kernel_names import OPERATIONS
from drumline.producers.derive.steps.steps import Steps
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

ALL_REDUCE = OPERATIONS.index("AllReduce")
HASHES = np.array([0xAB, 0xCD], np.uint64)


def operations(*rows):
    """Rows of (communicator, call, start, stop, step)."""
    communicator, call, start, stop, step = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    operation, size = np.full(len(rows), ALL_REDUCE, np.uint8), np.full(len(rows), 64, np.uint64)
    return Operations(communicator.astype(np.uint16), call, start, stop, step, operation, size)


def steps(*numbers, length=1000):
    number = np.array(numbers, np.int64)
    return Steps(number, number * length, number * length + length)


def row(table, index, *names):
    return [int(table[name][index]) for name in names]


def test_time_between_call_and_start_is_compute_and_the_rest_is_idle():
    rows = light_rows(operations((0, 100, 300, 500, 0), (0, 1100, 1300, 1700, 1)), HASHES, steps(0, 1))
    names = ("gpu_start_ns", "gpu_duration_ns", "compute_ns", "comm_exposed_ns", "idle_ns", "collectives", "skipped")
    assert row(rows.steps, 1, *names) == [500, 1200, 200, 400, 600, 1, 0]
    assert row(rows.steps, 0, *names) == [0, 500, 200, 200, 100, 1, 0]


def test_columns_are_those_of_the_contract():
    rows = light_rows(operations((0, 100, 300, 500, 0)), HASHES, steps(0))
    assert set(rows.steps.columns) == {column.name for column in model(Topic.STEP).columns}
    assert set(rows.collectives.columns) == {column.name for column in model(Topic.COLLECTIVE).columns} | {
        "communicator"
    }


def test_a_call_that_waits_behind_another_operation_is_communication_not_compute():
    rows = light_rows(operations((0, 100, 200, 900, 0), (1, 150, 900, 1000, 0)), HASHES, steps(0))
    assert row(rows.steps, 0, "compute_ns", "comm_exposed_ns", "idle_ns") == [100, 800, 100]


def test_ordinals_count_by_communicator_and_step():
    given = operations((0, 1, 2, 3, 0), (0, 4, 5, 6, 0), (0, 7, 8, 9, 1), (1, 2, 3, 4, 0), (1, 5, 6, 7, -1))
    rows = light_rows(given, HASHES, steps(0, 1)).collectives
    assert rows["ordinal"].tolist() == [0, 1, 0, 0, 0]
    assert rows["communicator"].tolist() == [0xAB, 0xAB, 0xAB, 0xCD, 0xCD]
    assert rows["step"].tolist() == [0, 0, 1, 0, -1]


def test_an_operation_without_times_leaves_a_hole_and_no_budget():
    given = operations((0, 1, 2, 3, 0), (0, 4, 0, 0, 0), (0, 1007, 1008, 1009, 1), (0, 2007, 2008, 2009, 2))
    rows = light_rows(given, HASHES, steps(0, 1, 2))
    assert rows.unknown == 1
    assert rows.collectives["ordinal"].tolist() == [0, 0, 0]
    assert rows.steps["skipped"].tolist() == [1, 1, 0], "step 1 begins where the lost operation ended"


def test_a_step_without_operations_has_no_budget():
    rows = light_rows(operations((0, 100, 300, 500, 0)), HASHES, steps(0, 1))
    assert row(rows.steps, 1, "compute_ns", "comm_exposed_ns", "idle_ns", "collectives") == [-1, -1, -1, 0]


def test_a_start_before_its_call_by_the_clocks_error_is_no_wait():
    rows = light_rows(operations((0, 305, 300, 500, 0)), HASHES, steps(0))
    assert row(rows.steps, 0, "compute_ns", "idle_ns") == [0, 300]


def test_nothing_recorded_gives_no_rows():
    none = Operations(*(np.zeros(0, dtype) for dtype in ("u2", "i8", "i8", "i8", "i8", "u1", "u8")))
    rows = light_rows(none, HASHES[:0], steps())
    assert (rows.collectives.rows, rows.steps.rows, rows.unknown) == (0, 0, 0)
