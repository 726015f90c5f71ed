"""Two ranks that send to and receive from each other leave together; other sends and receives show nothing."""

import numpy as np
import pytest
from support.labs.lateness import matched, rows

from drumline.streams.lateness.collective_rows import LOCKSTEP, POINT_TO_POINT, SEND_RECV, operation_number

ALL_REDUCE, SEND, RECV, WIRE = 0, operation_number("Send"), operation_number("Recv"), 10


def rank(durations, entries=(1000, 2000), operations=(SEND_RECV, SEND_RECV), left=5000, light=0, clock=0):
    """Two sends or receives, entered at these times, then a reduction of 50 that all leave at `left`."""
    kinds = [LOCKSTEP if operation == ALL_REDUCE else POINT_TO_POINT for operation in (*operations, ALL_REDUCE)]
    result = rows([*durations, 50], operation=[*operations, ALL_REDUCE], lockstep=kinds)
    result["start_ns"], result["light"] = np.array([*entries, left - 50]) + clock, light
    return result


def test_who_enters_an_exchange_last_keeps_the_other_waiting():
    result = matched(0, {0: rank((300, WIRE)), 1: rank((WIRE, WIRE + 40))}, 2, 0.8)
    assert result["wait_ns"].tolist() == [290, 40]
    assert result["lateness_ns"].tolist() == [40, 290]
    assert result["collectives"].tolist() == [3, 3]


@pytest.mark.parametrize("clock", [0, 10**15])
def test_nccl_reports_the_end_of_sending_so_waits_come_from_the_entries(clock):
    table = {
        0: rank((WIRE, WIRE), (1000, 2000), light=1), 1: rank((WIRE, WIRE), (1300, 2000), light=1, clock=clock)
    }  # fmt: skip
    assert matched(0, table, 2, 0.8)["wait_ns"].tolist() == [300, 0]


@pytest.mark.parametrize(
    ("table", "ranks"),
    [
        ({0: rank((300, WIRE)), 1: rank((WIRE, WIRE)), 2: rank((WIRE, WIRE))}, 3),
        ({0: rank((300, WIRE)), 1: rank((WIRE, WIRE))}, 3),  # the third rank's rows are not there
        ({0: rank((300, WIRE), operations=(SEND, RECV)), 1: rank((WIRE, WIRE), operations=(RECV, SEND))}, 2),
        ({0: rank((300, WIRE), operations=(SEND, SEND)), 1: rank((WIRE, WIRE), operations=(SEND, SEND))}, 2),
    ],
)
def test_in_a_ring_of_three_or_a_pipeline_only_the_reduction_is_compared(table, ranks):
    result = matched(0, table, ranks, 0.6)
    assert set(result["collectives"].tolist()) == {1}
    assert not result["wait_ns"].any()
