"""Recognises an all-to-all among sends and receives that NCCL launches as one kernel.

PyTorch calls it so where parts are uneven, and NCCL before 2.28 always. It waits for all ranks like any collective;
single sends and receives do not.
"""

from __future__ import annotations

import numpy as np

from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.schemas.columns import Array

_SEND, _RECV, _ALL_TO_ALL = (nccl.OPERATIONS.index(name) for name in ("Send", "Recv", "AllToAll"))


def with_all_to_all(kernel_operations: Array, operations: Array, peers: Array, first: Array) -> Array:
    """Return the operation of each kernel, AllToAll where it sends to all ranks from 0 on and receives from them.

    `kernel_operations`: one a kernel, u1. `operations`, `peers` (rank in the communicator, -1 = not known): of its
    calls, which lie beside each other; `first`: of each kernel. A kernel with its own rank among its peers is no
    exchange with neighbours.
    """
    if len(first) == len(operations):  # one call a kernel
        return kernel_operations
    everyone = _count_of_ranks(operations == _SEND, peers, first)
    is_exchange = (everyone > 1) & (everyone == _count_of_ranks(operations == _RECV, peers, first))
    length = np.diff(np.append(first, len(operations)))
    return np.where(is_exchange & (length == 2 * everyone), _ALL_TO_ALL, kernel_operations).astype(np.uint8)


def _count_of_ranks(among: Array, peers: Array, first: Array) -> Array:
    """Return the number of peers of each kernel where these are 0, 1, 2, ..., each once; else -1."""
    count = np.add.reduceat(among.astype(np.int64), first)
    total = np.add.reduceat(np.where(among, peers, 0).astype(np.int64), first)
    squares = np.add.reduceat(np.where(among, peers.astype(np.int64) ** 2, 0), first)
    last = count - 1
    is_row = (2 * total == last * count) & (6 * squares == last * count * (2 * last + 1))
    return np.where(is_row & (count > 0), count, -1)
