"""Pairing what one rank sends with what the other receives, in communicators of two ranks: how long a transfer takes.

A receiver that waits takes the data as it comes, so the sender's duration is that of the transfer. A receiver that is
late finds a part of the data in NCCL's buffers, or has made the sender wait: such transfers show nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.records import Rows
from drumline.streams.lateness.collective_rows import KIND_ROW, RECEIVE, SEND

Ints = NDArray[np.int64]


def paired_transfers(operation: Ints, part: Ints) -> tuple[Ints, Ints]:
    """Return the places of sends, and of the receives that end them.

    `operation`, `part`: of rows by part and ordinal; parts 2 b and 2 b + 1 are the two ranks of a communicator in a
    step. The k-th send of one is the k-th receive of the other; where their numbers differ, rows are missing, and
    nothing is paired.
    """
    sends, receives = np.flatnonzero(operation == SEND), np.flatnonzero(operation == RECEIVE)
    sender, sender_of = part[sends], part[receives] ^ 1
    parts = int(part.max(initial=-1)) + 2
    is_whole = np.bincount(sender, minlength=parts) == np.bincount(sender_of, minlength=parts)
    sends, receives = sends[is_whole[sender]], receives[is_whole[sender_of]]
    return sends, receives[np.argsort(part[receives] ^ 1, kind="stable")]


def transfer_kinds(rows: Rows, part: Ints) -> tuple[Ints, Rows]:
    """Return (b, row of a kind) of the transfers of each size, sorted, without a step. See `paired_transfers`."""
    sends, receives = paired_transfers(rows["operation"].astype(np.int64), part)
    took, waited, size = rows["duration_ns"][sends], rows["duration_ns"][receives], rows["bytes"][sends]
    is_known = (size == rows["bytes"][receives]) & (took > 0) & (waited >= took)
    block, size, floor = part[sends][is_known] // 2, size[is_known], took[is_known]
    order = np.lexsort((size, block))
    block, size, floor = block[order], size[order], floor[order]
    first = np.flatnonzero(np.append(True, (block[1:] != block[:-1]) | (size[1:] != size[:-1]))[: len(block)])
    kinds = np.zeros(len(first), KIND_ROW)
    kinds["operation"], kinds["bytes"], kinds["collectives"] = SEND, size[first], np.diff(first, append=len(block))
    kinds["floor_ns"] = np.add.reduceat(floor, first) if len(first) else 0
    return block[first], kinds
