"""Columns of gpu.step.v1 with the host's time in a step, from the mark behind it (ipc/host_sums.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from drumline.producers.activity.activity import MARKER_END
from drumline.producers.activity.table import Table
from drumline.producers.derive.steps.steps import API_DOMAIN, Steps
from drumline.producers.ipc.host_sums import COLUMNS, from_text
from drumline.schemas.columns import Array

#: The columns of a step whose sums nobody knows.
UNKNOWN = (-1,) * len(COLUMNS)


def host_columns(sums: Iterable[tuple[int, ...]]) -> Mapping[str, Array]:
    """Return the columns of steps, of each its sums."""
    values = np.array([*sums], np.int64).reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, values.T, strict=True))


def marked_sums(markers: Table, steps: Steps) -> Mapping[str, Array]:
    """Return the columns of steps whose ends are marked; the name of the end of a mark holds the sums."""
    if not markers.rows:
        return host_columns([UNKNOWN] * len(steps.number))
    domains, names = markers.dictionaries["domains"], markers.dictionaries["names"]
    of_api = np.array([name == API_DOMAIN for name in domains], bool)
    ends = markers.take(np.flatnonzero((markers["flags"] == MARKER_END) & of_api[markers["domain"]]))
    texts = {
        time_ns: names[name] for time_ns, name in zip(ends["time_ns"].tolist(), ends["name"].tolist(), strict=True)
    }
    return host_columns(from_text(texts.get(end_ns, "")) for end_ns in steps.end_ns.tolist())
