"""All-to-alls among the sends and receives of a kernel."""

import numpy as np
import pytest

from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.exchanges import with_all_to_all

SEND, RECV, SEND_RECV, ALL_TO_ALL, ALL_REDUCE = (
    nccl.OPERATIONS.index(name) for name in ("Send", "Recv", "SendRecv", "AllToAll", "AllReduce")
)


def operation(*calls):
    """Name of a kernel of these calls (operation, peer), behind an AllReduce."""
    operations, peers = (np.array(values) for values in zip((ALL_REDUCE, -1), *calls, strict=True))
    kernels = np.array([ALL_REDUCE, SEND_RECV], np.uint8)
    result = with_all_to_all(kernels, operations, peers, np.array([0, 1]))
    assert result[0] == ALL_REDUCE
    return nccl.OPERATIONS[result[1]]


def both(*peers):
    return [(code, peer) for peer in peers for code in (SEND, RECV)]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_sends_to_all_ranks_and_receives_from_them_are_an_all_to_all(ranks):
    assert operation(*both(*range(ranks))) == "AllToAll"
    assert operation(*both(*reversed(range(ranks)))) == "AllToAll"


@pytest.mark.parametrize(
    "calls",
    [
        both(1),  # of a pair
        both(1, 2),  # of neighbours
        both(0, 2),
        [(SEND, 1), (RECV, 0)],  # of a ring
        [*both(0, 1), (SEND, 2)],
        [(SEND, 0), (SEND, 1), (RECV, 0), (RECV, 0)],
        both(-1, 0),  # not known
        [*both(0, 1), (ALL_REDUCE, -1)],
    ],
)
def test_exchanges_with_some_ranks_are_none(calls):
    assert operation(*calls) == "SendRecv"


def test_single_calls_keep_their_operations():
    operations = np.array([SEND, RECV], np.uint8)
    assert with_all_to_all(operations, operations, np.array([0, 0]), np.arange(2)).tolist() == [SEND, RECV]
