"""Late rows and broken clocks: the rows that count, and their windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.schemas.batch import Batch
from drumline.streams.windows.config import SECOND_NS, WindowConfig
from drumline.streams.windows.watermark import accepted, advanced, latest_plausible

CONFIG = WindowConfig(grace_ns=3 * SECOND_NS)
NOW = 1_000_000 * SECOND_NS


def envelope(**values):
    return Batch("gpu.kernel.v1", {"watermark_ns": 0, "sent_ns": 0, **values})


@given(st.integers(-(10**18), 10**18), st.integers(1, 8), st.integers(1, 10**10))
def test_every_pane_is_in_as_many_windows_as_hops_fit_and_in_one_of_each_tiling(time_ns, hops, hop_ns):
    config = WindowConfig(window_ns=hops * hop_ns, hop_ns=hop_ns)
    pane = int(config.pane_of(np.array([time_ns]))[0])
    windows = list(config.windows_of(pane))
    assert len(windows) == hops
    assert all(window <= time_ns < window + config.window_ns and pane in config.panes_of(window) for window in windows)
    assert sum(window % config.window_ns == 0 for window in windows) == 1


def test_a_hop_that_does_not_divide_the_window_is_refused():
    with pytest.raises(ValueError, match="does not divide"):
        WindowConfig(window_ns=10, hop_ns=3)


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**6))
def test_a_taken_row_falls_only_into_windows_that_are_within_grace(pane_number, watermark_number):
    pane, watermark = pane_number * CONFIG.hop_ns, watermark_number * CONFIG.hop_ns // 7
    if accepted(np.array([pane]), NOW * 10, watermark, CONFIG)[0]:
        assert all(w + CONFIG.window_ns + CONFIG.grace_ns > watermark for w in CONFIG.windows_of(pane))
        needed = {p for w in CONFIG.windows_of(pane) for p in CONFIG.panes_of(w)}
        assert not any(CONFIG.pane_is_done(p, watermark) for p in needed)


def test_rows_of_a_broken_clock_are_not_taken_and_do_not_move_time():
    batch = envelope(watermark_ns=NOW + 900_000 * SECOND_NS, sent_ns=NOW)
    latest = latest_plausible(batch, NOW, CONFIG)
    starts = np.array([0, NOW - SECOND_NS, NOW, 2**62, -(2**62), NOW + 7200 * SECOND_NS])
    assert accepted(starts, latest, 0, CONFIG).tolist() == [False, True, True, False, False, False]
    assert advanced(0, batch, latest) <= NOW + CONFIG.horizon_ns
    assert advanced(NOW, envelope(watermark_ns=5, sent_ns=NOW), latest) == NOW


def test_a_producer_whose_clock_is_far_ahead_cannot_vouch_for_its_rows():
    batch = envelope(sent_ns=NOW + 900_000 * SECOND_NS)
    assert latest_plausible(batch, NOW, CONFIG) == NOW + CONFIG.horizon_ns


def test_recorded_time_long_past_is_fine():
    starts = np.arange(0, 4) * SECOND_NS + 12_345 * SECOND_NS
    assert accepted(starts, latest_plausible(envelope(), NOW, CONFIG), 0, CONFIG).all()
