"""Cut the rows of many ranks into those of the values that they are stored in: by slice of ranks, and by time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from drumline.schemas.record_table import Ints
from drumline.streams.core.records import Rows

#: Ranks whose rows are in one value: a record of a host, of 8 GPUs as a rule, changes one value, not one of each rank.
RANKS_OF_VALUE = 8


def cut(rows: Rows, time_of: Ints, part_of: Ints) -> Iterator[tuple[tuple[int, int], Rows, Ints]]:
    """Yield (time, slice of ranks), its rows, and the part that each came in; rising, rows in their order.

    `time_of`, `part_of`: of each row, a time in units of values, and the number of its part.
    """
    if not len(rows):
        return
    slice_of = rows["rank"] // RANKS_OF_VALUE
    later, same = time_of[1:] > time_of[:-1], time_of[1:] == time_of[:-1]
    rises = later | (same & (slice_of[1:] >= slice_of[:-1]))
    if not rises.all():
        order = np.lexsort((slice_of, time_of))
        rows, time_of, slice_of, part_of = rows[order], time_of[order], slice_of[order], part_of[order]
        same = time_of[1:] == time_of[:-1]
    begins = np.flatnonzero(np.concatenate([[True], ~same | (slice_of[1:] != slice_of[:-1])]))
    places = zip(time_of[begins].tolist(), slice_of[begins].tolist(), strict=True)
    ends = np.append(begins[1:], len(rows)).tolist()
    for place, begin, end in zip(places, begins.tolist(), ends, strict=True):
        yield place, rows[begin:end], part_of[begin:end]
