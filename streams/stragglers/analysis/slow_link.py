"""A slow link: nobody is late, yet a communicator's collectives take longer than they used to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Floats, Meeting, WindowTable, step_length

#: communicator -> `kinds`: "operation bytes" -> floor of one such collective, ns; `least`: see _least.
Summary = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SlowLink:
    """`operation`, `bytes`: the collectives that lost most; `ratio`: their floor over its history. `lost_ns`, `share`:
    of the window, by all of the communicator."""

    communicator: str
    operation: str
    bytes: int
    ratio: float
    lost_ns: float
    share: float


def summarise(table: WindowTable) -> Summary:
    """What the history keeps of a window: the floor of each communicator, operation and size."""
    out = {}
    for meeting in (meeting for meeting in table.meetings if meeting.kinds):
        met = np.any([counts > 0 for counts, _ in meeting.kinds.values()], axis=0)
        kinds = {f"{operation} {size}": _floor(kind) for (operation, size), kind in meeting.kinds.items()}
        out[meeting.communicator] = {"kinds": kinds, "least": _least(table.budget["comm_exposed_ns"], meeting, met)}
    return out


def _floor(kind: Floats) -> int:
    counts, floors = kind
    return round(float(np.median(floors[counts > 0] / counts[counts > 0])))


def _least(exposed: Floats, meeting: Meeting, met: NDArray[np.bool_]) -> int:
    """The least exposed communication of a member in a step, ns."""
    values = exposed[meeting.members][:, met]
    seen = values[np.isfinite(values).any(1)]
    return round(float(np.nanmin(np.nanmedian(seen, axis=1)))) if len(seen) else 0


def slow_link(table: WindowTable, history: Sequence[Summary], config: StragglerConfig) -> SlowLink | None:
    """The communicator that lost the job most against its own history, if that is a loss worth a word.

    `history`: windows before this one in which nobody was late and no link was slow. Collectives are compared with
    those of the same communicator, operation and size. The loss is what the floors of those above the ratio grew, but
    no more than every member's exposed communication grew: a slower transfer behind compute costs nothing.
    """
    worst: SlowLink | None = None
    length = step_length(table)
    time, steps = float(np.nansum(length)), int(np.isfinite(length).sum())
    now = summarise(table)
    for meeting in (meeting for meeting in table.meetings if meeting.kinds and time > 0.0):
        name, grew = meeting.communicator, {}
        for (operation, size), (counts, _) in meeting.kinds.items():
            kind = f"{operation} {size}"
            past = [entry[name]["kinds"][kind] for entry in history if kind in entry.get(name, {}).get("kinds", ())]
            usual, floor = float(np.median(past)) if past else 0.0, now[name]["kinds"][kind]
            if len(past) >= config.link_history and floor >= config.link_ratio * usual > 0.0:
                grew[(floor - usual) * float(counts.sum())] = (operation, size, round(floor / usual, 3))
        if not grew:
            continue
        least = np.median([entry[name]["least"] for entry in history if name in entry])
        lost = max(0.0, min(sum(grew), float(now[name]["least"] - least) * steps))
        if config.severity(lost / time) > OK and (worst is None or lost > worst.lost_ns):
            worst = SlowLink(name, *grew[max(grew)], lost, lost / time)
    return worst
