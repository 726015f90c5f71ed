"""Statements of `drumline explain` on steps, GPU and host of a late rank."""

from drumline.views.report import rank_state
from drumline.views.report.link_state import link_evidence
from drumline.views.report.rank_state import state_lines

PLACE = {"job": "j", "run": "r", "rank": 3}


def answer(**tables):
    rows = {rank_state.STEPS: [], rank_state.GPU: [], rank_state.HOST: []}
    rows |= {getattr(rank_state, name): value for name, value in tables.items()}
    return lambda sql, place: rows[sql]


def test_what_changed_stands_beside_the_time_before():
    gpu = {"gpu": 3, "busy": 61.4, "slowest_mhz": 1410, "fastest_mhz": 1980, "celsius": 58, "power_w": 410.2}
    healthy = gpu | {"busy": 98.0, "slowest_mhz": 1980, "power_w": None}
    query = answer(
        STEPS=[{"late": 0, "median_ms": 82.0, "own_ms": 60.0}, {"late": 1, "median_ms": 105.26, "own_ms": 104.0}],
        GPU=[{"late": 0, **healthy}, {"late": 1, **gpu}],
        HOST=[{"late": 1, "waiting": 0.123, "throttled": None, "blocked": 0.0, "faults": 1200}],
    )
    assert state_lines(query, PLACE) == [
        "changed   its step took 105.3 ms on the GPU, 104.0 ms without communication "
        "(before: its step took 82.0 ms on the GPU, 60.0 ms without communication)",
        "gpu       61% busy, 1,410 to 1,980 MHz, 58 °C, 410 W (before: 98% busy, 1,980 to 1,980 MHz, 58 °C)",
        "host      main thread without a CPU 12.3% of the time, waiting for a disk 0.0%, 1,200 major page faults",
    ]


def test_nothing_is_stated_where_nothing_is_stored_of_the_time():
    assert state_lines(answer(STEPS=[{"late": 0, "median_ms": 82.0, "own_ms": 60.0}]), PLACE) == []


def test_links_of_the_hosts_join_a_slow_link_as_evidence():
    sound = {"host": "node-b", "device": "eth0", "wrong": "", "links": 9}
    sound |= dict.fromkeys(("errors", "downs", "trained", "unanswered"), 0)
    bad = sound | {"host": "node-a", "device": "mlx5_0/1", "wrong": "200 Gbit/s; it had 400", "errors": 1200}
    bad["downs"] = 1
    assert link_evidence(lambda sql, place: [bad, sound], PLACE) == [
        "node-a mlx5_0/1: 200 Gbit/s; it had 400; errors: 1,200; outages: 1"
    ]
    none = ["none of 9 links of its hosts was down, slow or had errors"]
    assert link_evidence(lambda sql, place: [sound], PLACE) == none
    assert link_evidence(lambda sql, place: [], PLACE) == []
