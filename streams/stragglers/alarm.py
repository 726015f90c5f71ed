"""The alarm of a rank: raised by recurring bad windows, cleared by good windows in a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from drumline.streams.core.thresholds import INSUFFICIENT, OK, SUSPECT, StragglerConfig
from drumline.streams.stragglers.rank_values import Group, by_value, ranks_of

STATES = ("ok", "suspect", "warning", "critical", "cleared", "insufficient_data")
CLEARED, NO_DATA = 4, 5


@dataclass(frozen=True, slots=True)
class Alarm:
    """Holds the state of an alarm after a window.

    Attributes:
        state: index into STATES.
        level: severity in force.
        recent: severities of the last windows with data, oldest first.
        below: severities of the last windows in a row that stayed below `level`.
        first, last: first and last bad window of the episode, or of the one that this window cleared; -1 = none.
    """

    state: int = OK
    level: int = OK
    recent: tuple[int, ...] = ()
    below: tuple[int, ...] = ()
    first: int = -1
    last: int = -1


def advance(alarm: Alarm, severity: int, config: StragglerConfig, window: int = -1) -> Alarm:
    """Return the alarm after `window`. A window without data changes neither level nor recurrence."""
    if severity == INSUFFICIENT:
        return replace(alarm, state=NO_DATA)
    if alarm.level == OK:  # no episode, or one that was cleared before
        alarm = replace(alarm, first=-1, last=-1)
    if severity > OK:
        alarm = replace(alarm, first=window if alarm.level == OK else alarm.first, last=window)
    recent = (*alarm.recent, severity)[-config.raise_of :]
    raised = sorted(recent, reverse=True)[config.raise_windows - 1] if len(recent) >= config.raise_windows else OK
    if severity > OK and alarm.level == OK:
        raised = max(raised, SUSPECT)  # the first bad window is published at once, at the lowest level
    if raised > alarm.level or severity >= alarm.level:
        level = max(raised, alarm.level)
        return replace(alarm, state=level, level=level, recent=recent, below=())
    below = (*alarm.below, severity)
    if len(below) < config.clear_windows:
        return replace(alarm, state=alarm.level, recent=recent, below=below)
    level = max(below)
    return replace(alarm, state=CLEARED if level == OK else level, level=level, recent=(), below=())


def hold(alarm: Alarm) -> Alarm:
    """Return the alarm after a window that was not evaluated for it: the level in force stays, nothing is counted."""
    return replace(alarm, state=alarm.level)


def fold(alarm: Alarm, severities: Iterable[int], config: StragglerConfig) -> Alarm:
    """Return the alarm after several windows."""
    for severity in severities:
        alarm = advance(alarm, severity, config)
    return alarm


def stored_alarms(alarms: Mapping[int, Alarm]) -> list[Group]:
    """Return the alarms of ranks, which `load_alarms` reads."""
    return [
        ([alarm.state, alarm.level, alarm.recent, alarm.below, alarm.first, alarm.last], runs)
        for alarm, runs in by_value(alarms)
    ]


def load_alarms(groups: Sequence[Group]) -> dict[int, Alarm]:
    """Return rank -> alarm, from what `stored_alarms` returned, or from the same as JSON has it."""
    alarms: dict[int, Alarm] = {}
    for (state, level, recent, below, first, last), runs in groups:
        alarms |= dict.fromkeys(ranks_of(runs), Alarm(state, level, tuple(recent), tuple(below), first, last))
    return alarms
