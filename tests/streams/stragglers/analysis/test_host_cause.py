"""Names what a late rank's host did, from samples of its process and of its peers'."""

from __future__ import annotations

import numpy as np
import pytest

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.host_cause import HOST_ROW, SAMPLED, ProcessSamples, host_detail

S, MS = 1_000_000_000, 1_000_000
CONFIG = StragglerConfig()
HEALTHY = dict.fromkeys(SAMPLED, 0) | {"main_wait_ns": 10 * MS, "most_wait_ns": 5 * MS, "block_io_ns": -1}


def samples(seconds: int = 10, **more: int) -> np.ndarray:
    """Samples of one process, a second each."""
    rows = np.zeros(seconds, HOST_ROW)
    rows["time_ns"], rows["interval_ns"] = np.arange(seconds) * S, S
    for name, value in {**HEALTHY, **more}.items():
        rows[name] = value
    return rows


def detail_of(late: np.ndarray, peers: list[np.ndarray], excess_ns: float) -> tuple[str, dict[str, int]]:
    return host_detail(ProcessSamples(late), [ProcessSamples(rows) for rows in peers], 10 * S, excess_ns, CONFIG)


#: Its samples a second, of 10 s in which its GPU was idle for 1 s more than its peers' -> detail.
LATE = {
    "main thread has no CPU": ({"main_wait_ns": 90 * MS}, "cpu_contention"),
    "the thread of backward has none": ({"most_wait_ns": 80 * MS}, "cpu_contention"),
    "both in part": ({"main_wait_ns": 50 * MS, "most_wait_ns": 45 * MS}, "cpu_contention"),
    "a quota": ({"throttled_ns": 90 * MS, "main_wait_ns": 90 * MS}, "cpu_throttled"),
    "a quota of many CPUs": ({"throttled_ns": 5 * S}, "cpu_throttled"),
    "a quota explains little": ({"throttled_ns": 10 * MS, "main_wait_ns": 100 * MS}, "cpu_contention"),
    "memory from disk": ({"main_blocked_ns": 100 * MS, "major_faults": 50}, "page_faults"),
    "disk": ({"main_blocked_ns": 100 * MS}, "disk"),
    "disk, few faults": ({"main_blocked_ns": 400 * MS, "major_faults": 1}, "disk"),
    "disk, measured": ({"block_io_ns": 70 * MS}, "disk"),
    "disk polled, and a kernel that measures none": ({"block_io_ns": 0, "main_blocked_ns": 100 * MS}, "disk"),
    "disk measured as less than polls met": ({"block_io_ns": 30 * MS, "main_blocked_ns": 100 * MS}, ""),
    "polls that may be too few": ({"main_blocked_ns": 45 * MS}, "disk"),
    "polls that are too few": ({"main_blocked_ns": 30 * MS}, ""),
    "blocked too seldom": ({"main_blocked_ns": 29 * MS}, ""),
    "faults that cost no time": ({"major_faults": 5_000}, ""),
    "another thread has the GIL": ({"main_gil_ns": 90 * MS}, "python_lock"),
    "the GIL most, a CPU next": ({"main_gil_ns": 90 * MS, "main_wait_ns": 80 * MS}, "python_lock"),
    "a CPU most, the GIL next": ({"main_gil_ns": 90 * MS, "main_wait_ns": 120 * MS}, "cpu_contention"),
    "the GIL too seldom": ({"main_gil_ns": 20 * MS}, ""),
    "the GIL may not be polled": ({"main_gil_ns": -1}, ""),
    "half CPU, half disk": ({"main_wait_ns": 61 * MS, "main_blocked_ns": 50 * MS}, ""),
    "after each read it waits for a CPU": ({"main_wait_ns": 80 * MS, "main_blocked_ns": 150 * MS}, "disk"),
    "nothing": ({}, ""),
    "unknown": (dict.fromkeys(SAMPLED, -1), ""),
}


@pytest.mark.parametrize(("more", "detail"), LATE.values(), ids=LATE)
def test_the_detail_is_what_the_process_had_more_of_than_its_peers(more, detail):
    peer = samples(block_io_ns=0 if "block_io_ns" in more else -1)
    named, _ = detail_of(samples(**more), [peer] * 3, S)
    assert named == detail


@pytest.mark.parametrize(("faults", "detail"), [(0, ""), (500, ""), (4_000, "page_faults")])
def test_the_kernels_work_for_page_faults_counts_beside_their_waits(faults, detail):
    late = samples(main_blocked_ns=40 * MS, major_faults=faults)
    assert detail_of(late, [samples()] * 3, 1.3 * S)[0] == detail


@pytest.mark.parametrize("more", [more for more, detail in LATE.values() if detail])
def test_what_all_ranks_have_explains_no_rank(more):
    assert detail_of(samples(**more), [samples(**more)] * 3, S)[0] == ""


def test_one_peer_that_waits_as_long_does_not_hide_it():
    peers = [samples(main_wait_ns=90 * MS), samples(), samples()]
    assert detail_of(samples(main_wait_ns=90 * MS), peers, S)[0] == "cpu_contention"


@pytest.mark.parametrize(("late", "peers"), [(samples(0), [samples()]), (samples(main_wait_ns=S), [samples(0)])])
def test_nothing_is_named_without_samples_of_both(late, peers):
    assert detail_of(late, peers, S) == ("", {})


def test_no_excess_needs_no_detail():
    assert detail_of(samples(main_wait_ns=S), [samples()], 0) == ("", {})


def test_the_numbers_are_of_the_window_and_beyond_the_peers():
    late = samples(main_wait_ns=90 * MS, major_faults=3)
    _, numbers = detail_of(late, [samples()] * 2, S)
    assert numbers == {"run_queue_ns": 800 * MS, "major_faults": 30}


def test_no_detail_in_healthy_noise():
    dice = np.random.default_rng(7)
    for _ in range(200):
        ranks = []
        for _ in range(4):
            rows = samples()
            rows["main_wait_ns"] = dice.exponential(5 * MS, len(rows))
            rows["most_wait_ns"] = dice.exponential(5 * MS, len(rows))
            rows["main_blocked_ns"] = 50 * MS * dice.binomial(20, 0.005, len(rows))
            rows["major_faults"] = dice.poisson(0.2, len(rows))
            ranks.append(rows)
        assert detail_of(ranks[0], ranks[1:], 0.5 * S)[0] == ""


@pytest.mark.parametrize(("column", "detail"), [("main_blocked_ns", "disk"), ("main_gil_ns", "python_lock")])
def test_few_polls_that_met_it_waiting_are_no_proof(column, detail):
    late = samples()
    late[column][:7] = 50 * MS
    assert detail_of(late, [samples()] * 3, S // 4)[0] == ""
    late[column][7] = 50 * MS
    assert detail_of(late, [samples()] * 3, S // 4)[0] == detail
