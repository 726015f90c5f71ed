"""Clocks that count ticks: their frequency is measured by the host's clock, and times without it are none."""

import json

import numpy as np
import pytest
from support.fake_ring import MS, FakeRing
from support.ring_reader import BEGIN, Reader

from drumline.producers.rings.gpu_ticks import LEAST_NS, TickClock
from drumline.producers.rings.ring_file import RECORD
from drumline.schemas.topics import Topic

SECOND, UNSEEN = 10**9, 2**64 - 1


def operations(begin_s, count, mhz=100, first_ticks=10**12, late_ms=0.0):
    """Operations of 2 ms, every 100 ms, whose ends NCCL reports up to `late_ms` late."""
    times = (np.arange(count) * 100 * MS + int(begin_s * SECOND)).astype(np.uint64)
    records = np.zeros(count, RECORD)
    late = (np.random.default_rng(3).random(count) * late_ms * MS).astype(np.uint64)
    ends = times + np.uint64(2 * MS)
    for name, at in (("gpu_start_ns", times), ("gpu_stop_ns", ends)):
        records[name] = np.uint64(first_ticks) + (at * mhz / 1_000).astype(np.uint64)
    records["seen_ns"] = np.uint64(BEGIN) + ends + late
    return records


def converted(saved, records):
    """Return what a clock makes of records, and its state as JSON keeps it."""
    clock = TickClock(json.loads(json.dumps(saved)))
    records, known = clock.converted(records, np.ones(len(records), bool))
    return records, known, clock.saved


@pytest.mark.parametrize("mhz", [100, 27, 1_000])
@pytest.mark.parametrize("late_ms", [0, 4])
def test_the_frequency_of_a_clock_is_measured_in_seconds_and_then_exact(mhz, late_ms):
    saved = []
    for number in range(4):
        records, known, saved = converted(saved, operations(number, 10, mhz, late_ms=late_ms))
        assert known.all() == (number >= 2), "before that no time is known"
    lengths = (records["gpu_stop_ns"] - records["gpu_start_ns"]).astype(int)
    assert np.abs(lengths - 2 * MS).max() <= 1_000 / mhz + 1
    assert saved[2] == mhz


def test_a_clock_that_fits_no_frequency_gives_no_times():
    saved = []
    for number in range(4):
        _, known, saved = converted(saved, operations(number, 10, 19.2))
        assert not known.any()
    assert saved[2] == -1


def test_an_operation_of_channels_without_a_stop_has_no_times():
    _, _, saved = converted([], operations(0, 30))
    records = operations(4, 3)
    records["gpu_stop_ns"][1] = 0
    records["gpu_start_ns"][2] = UNSEEN
    after, known, _ = converted(saved, records)
    assert known.tolist() == [True, False, True]
    assert int(after["gpu_start_ns"][2]) == UNSEEN


@pytest.mark.parametrize("ticks", [1, 2**63, UNSEEN - 1])
def test_any_number_in_a_ring_is_read(ticks):
    records = operations(0, 30)
    records["gpu_stop_ns"][7] = records["gpu_start_ns"][8] = ticks
    converted([], records)
    converted([int(records["seen_ns"][0]) - LEAST_NS, ticks, 2_000], records)


def test_rows_of_ticks_are_those_of_ns(tmp_path):
    rows = []
    for as_ticks in (False, True):
        ring = FakeRing(tmp_path / str(as_ticks), capacity=4_096)
        ring.communicator()
        ring.train(300, BEGIN)
        if as_ticks:
            is_operation = ring.records["gpu_stop_ns"] > 0
            for name in ("gpu_start_ns", "gpu_stop_ns"):
                of = ring.records[name][is_operation].astype(np.int64)
                ring.records[name][is_operation] = (of - BEGIN) // 10 + 10**12
        reader = Reader(ring)
        reader.round(has_ticks=as_ticks)
        rows.append(reader.rows(Topic.COLLECTIVE, "step", "ordinal", "start_ns", "duration_ns", "bytes"))
        steps = reader.rows(Topic.STEP, "step", "duration_ns", "compute_ns", "idle_ns")
        rows.append(steps)
    assert rows[0] == rows[2]
    assert rows[1] == rows[3]
