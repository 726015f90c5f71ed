"""From windows to an alarm: recurrence before it is raised, good windows before it is cleared. Pure and foldable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drumline.streams.core.thresholds import INSUFFICIENT, OK, SUSPECT, StragglerConfig

STATES = ("ok", "suspect", "warning", "critical", "cleared", "insufficient_data")
CLEARED, NO_DATA = 4, 5


@dataclass(frozen=True, slots=True)
class Alarm:
    """State after a window. `state`: index into STATES. `level`: severity in force. `recent`: severities of the last
    windows with data, oldest first. `below`: the severity of each window in a row that stayed below `level`. `first`,
    `last`: first and last bad window of the episode it is in, or that this window cleared; -1 = none."""

    state: int = OK
    level: int = OK
    recent: tuple[int, ...] = ()
    below: tuple[int, ...] = ()
    first: int = -1
    last: int = -1


def advance(alarm: Alarm, severity: int, config: StragglerConfig, window: int = -1) -> Alarm:
    """The next state, after `window`. A window without data changes neither level nor recurrence: no news is no good
    news."""
    if severity == INSUFFICIENT:
        return replace(alarm, state=NO_DATA)
    if alarm.level == OK:  # no episode, or one that was cleared before
        alarm = replace(alarm, first=-1, last=-1)
    if severity > OK:
        alarm = replace(alarm, first=window if alarm.level == OK else alarm.first, last=window)
    recent = (*alarm.recent, severity)[-config.raise_of :]
    raised = sorted(recent, reverse=True)[config.raise_windows - 1] if len(recent) >= config.raise_windows else OK
    if severity > OK and alarm.level == OK:
        raised = max(raised, SUSPECT)  # the first window is said at once, at the lowest level
    if raised > alarm.level or severity >= alarm.level:
        level = max(raised, alarm.level)
        return replace(alarm, state=level, level=level, recent=recent, below=())
    below = (*alarm.below, severity)
    if len(below) < config.clear_windows:
        return replace(alarm, state=alarm.level, recent=recent, below=below)
    level = max(below)
    return replace(alarm, state=CLEARED if level == OK else level, level=level, recent=(), below=())


def hold(alarm: Alarm) -> Alarm:
    """After a window that could not be judged in this respect: what is in force stays, and nothing is counted."""
    return replace(alarm, state=alarm.level)


def fold(alarm: Alarm, severities: Iterable[int], config: StragglerConfig) -> Alarm:
    """The state after several windows."""
    for severity in severities:
        alarm = advance(alarm, severity, config)
    return alarm


def stored(values: Sequence[Any]) -> Alarm:
    """An alarm from its fields, as they come back from JSON."""
    state, level, recent, below, first, last = values
    return Alarm(state, level, tuple(recent), tuple(below), first, last)
