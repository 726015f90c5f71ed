"""From windows to an alarm: recurrence before it is raised, good windows before it is cleared. Pure and foldable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drumline.streams.thresholds import INSUFFICIENT, OK, SUSPECT, StragglerConfig

STATES = ("ok", "suspect", "warning", "critical", "cleared", "insufficient_data")
CLEARED, NO_DATA = 4, 5


@dataclass(frozen=True, slots=True)
class Alarm:
    """State after a window. `state`: index into STATES. `level`: severity in force. `recent`: severities of the last
    windows with data, oldest first. `below`: the highest severity of each window in a row that stayed below `level`."""

    state: int = OK
    level: int = OK
    recent: tuple[int, ...] = ()
    below: tuple[int, ...] = ()


def advance(alarm: Alarm, severity: int, config: StragglerConfig) -> Alarm:
    """The next state. A window without data changes neither level nor recurrence: no news is no good news."""
    if severity == INSUFFICIENT:
        return Alarm(NO_DATA, alarm.level, alarm.recent, alarm.below)
    recent = (*alarm.recent, severity)[-config.raise_of :]
    raised = sorted(recent, reverse=True)[config.raise_windows - 1] if len(recent) >= config.raise_windows else OK
    if severity > OK and alarm.level == OK:
        raised = max(raised, SUSPECT)  # the first window is said at once, at the lowest level
    if raised > alarm.level or severity >= alarm.level:
        level = max(raised, alarm.level)
        return Alarm(level, level, recent, ())
    below = (*alarm.below, severity)
    if len(below) < config.clear_windows:
        return Alarm(alarm.level, alarm.level, recent, below)
    level = max(below)
    return Alarm(CLEARED if level == OK else level, level, (), ())


def fold(alarm: Alarm, severities: Iterable[int], config: StragglerConfig) -> Alarm:
    """The state after several windows."""
    for severity in severities:
        alarm = advance(alarm, severity, config)
    return alarm
