"""A slow link: nobody is late, yet a communicator's collectives take longer than they used to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drumline.streams.blame import Floats, Meeting, WindowTable, step_length
from drumline.streams.thresholds import StragglerConfig

#: communicator -> its usual step: (collectives, bytes, floor in ns, least exposed communication of a member in ns)
Summary = dict[str, tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True)
class SlowLink:
    """`ratio`: floor over its history. `lost_ns`, `share`: of the window."""

    communicator: str
    ratio: float
    lost_ns: float
    share: float


def summarise(table: WindowTable) -> Summary:
    """What the history keeps of a window: each communicator's usual step."""
    exposed = table.budget["comm_exposed_ns"]
    out: Summary = {}
    for meeting in table.meetings:
        kinds = Counter((int(n), int(b)) for n, b in zip(meeting.collectives, meeting.bytes, strict=True) if n > 0)
        if not kinds:
            continue
        usual = max(kinds, key=lambda kind: (kinds[kind], kind))
        at = (meeting.collectives == usual[0]) & (meeting.bytes == usual[1])
        out[meeting.communicator] = (*usual, round(np.median(meeting.floor_ns[at])), _least(exposed, meeting, at))
    return out


def _least(exposed: Floats, meeting: Meeting, at: Floats) -> int:
    values = exposed[meeting.members][:, at]
    seen = values[np.isfinite(values).any(1)]
    return round(float(np.nanmin(np.nanmedian(seen, axis=1)))) if len(seen) else 0


def slow_link(table: WindowTable, history: Sequence[Summary], config: StragglerConfig) -> SlowLink | None:
    """The communicator that lost the job most against its own history, if any reaches the ratio.

    `history`: windows before this one in which nobody was late and no link was slow. Compared only with steps of as
    many collectives and bytes. The loss is what the floor grew, but no more than every member's exposed communication
    grew: a slower transfer behind compute costs nothing.
    """
    worst: SlowLink | None = None
    length = step_length(table)
    time = float(np.nansum(length))
    steps = int(np.isfinite(length).sum())
    for name, (count, size, floor, least) in summarise(table).items():
        past = [entry[name][2:] for entry in history if name in entry and entry[name][:2] == (count, size)]
        if len(past) < config.link_history or time <= 0.0:
            continue
        usual_floor, usual_least = np.median(np.array(past, float), axis=0)
        if usual_floor <= 0 or floor < config.link_ratio * usual_floor:
            continue
        lost = max(0.0, min(floor - usual_floor, least - usual_least)) * steps
        if worst is None or lost > worst.lost_ns:
            worst = SlowLink(name, round(float(floor / usual_floor), 3), float(lost), float(lost / time))
    return worst
