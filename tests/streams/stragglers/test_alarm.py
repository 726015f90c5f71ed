"""Alarms are raised and cleared, window by window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.streams.core.thresholds import CRITICAL, INSUFFICIENT, OK, SUSPECT, WARNING, StragglerConfig
from drumline.streams.stragglers.alarm import STATES, Alarm, advance, fold

CONFIG = StragglerConfig()
SEVERITY = {"o": OK, "s": SUSPECT, "w": WARNING, "c": CRITICAL, "i": INSUFFICIENT}


def states(windows: str) -> list[str]:
    alarm, out = Alarm(), []
    for symbol in windows:
        alarm = advance(alarm, SEVERITY[symbol], CONFIG)
        out.append(STATES[alarm.state])
    return out


@pytest.mark.parametrize(
    ("windows", "last"),
    [
        ("o", "ok"),
        ("w", "suspect"),  # one window is no alarm
        ("wo", "suspect"),
        ("ww", "warning"),
        ("wow", "warning"),  # two of three
        ("woow", "suspect"),
        ("wc", "warning"),
        ("cc", "critical"),
        ("cooo", "cleared"),
        ("coooo", "ok"),
        ("wwoo", "warning"),  # two good windows are not enough
        ("wwoow", "warning"),
        ("wwooo", "cleared"),
        ("ccwww", "warning"),  # lowered, not cleared
        ("ccsss", "suspect"),
        ("i", "insufficient_data"),
        ("wwi", "insufficient_data"),
        ("wwio", "warning"),  # no news is no good news
        ("wiw", "warning"),
        ("wwoiio", "warning"),
        ("wwoiioo", "cleared"),
    ],
)
def test_state_after(windows, last):
    assert states(windows)[-1] == last


@given(st.lists(st.sampled_from([OK, SUSPECT, WARNING, CRITICAL, INSUFFICIENT]), max_size=40))
def test_never_above_what_two_windows_of_three_showed(severities):
    alarm = Alarm()
    for index, severity in enumerate(severities):
        before, alarm = alarm, advance(alarm, severity, CONFIG)
        seen = [s for s in severities[: index + 1] if s != INSUFFICIENT][-3:]
        if alarm.level > before.level:
            assert alarm.level == SUSPECT or sorted(seen)[-2] >= alarm.level
        if severity == INSUFFICIENT:
            assert alarm.level == before.level


@given(st.lists(st.sampled_from([OK, SUSPECT, WARNING, CRITICAL, INSUFFICIENT]), max_size=20), st.integers(0, 20))
def test_folding_in_two_parts_is_folding_at_once(severities, cut):
    whole = fold(Alarm(), severities, CONFIG)
    assert fold(fold(Alarm(), severities[:cut], CONFIG), severities[cut:], CONFIG) == whole
