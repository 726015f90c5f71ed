"""A rank that becomes late gets a deep window beside a healthy one; all agents choose the same, within limits."""

import numpy as np
import pytest

from drumline.producers.control.verdict_windows import MOST_PER_DAY, PERIOD_S, WARNING, VerdictWindows
from drumline.schemas.batch import Batch, dictionary
from drumline.schemas.control import MAX_PULL_STEPS, PULL, SUSPECTED, TIMES, decode, encode, suspect_ranks
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import WARNING as STREAMS_WARNING
from drumline.streams.stragglers.analysis import rank_naming

DAY = 20_000 * 86_400
S = 10**9


def record(*rows, job="j", step_ns=S // 10, evidence="{}", cause="slow_gpu"):
    """`rows`: (rank, severity, changed, lost_ns, host). `evidence`, `cause`: of the last one."""
    ranks, severities, changed, lost, hosts = zip(*rows, strict=True)
    names, host = dictionary(hosts)
    columns = {"rank": ranks, "severity": severities, "changed": changed, "lost_ns": lost, "host": host}
    columns["evidence_json"] = [*[0] * (len(rows) - 1), 1]
    columns["cause"] = columns["evidence_json"]
    envelope = {"job": job, "causes": ["", cause], "run": "r", "hosts": names, "evidence": ["{}", evidence],
                "first_step": 20, "last_step": 39, "step_ns": step_ns, "window_end_ns": (DAY - 2) * S}  # fmt: skip
    return Batch(Topic.STRAGGLER, envelope, {name: np.array(values) for name, values in columns.items()})


LATE = record((-1, 2, 1, 9, ""), (0, 0, 0, 0, "a"), (1, 0, 0, 0, "b"), (2, 2, 1, 4, "b"), (3, 3, 1, 7, "b"))


def test_the_severity_is_the_stream_processors():
    assert WARNING == STREAMS_WARNING


def test_the_rank_that_costs_most_and_a_healthy_one_of_its_host_get_the_same_steps():
    window = VerdictWindows().window(LATE, DAY)
    assert (window.ranks, window.job, window.run) == ((1, 3), "j", "r")
    assert (window.first_step, window.last_step) == (110, 129), "20 steps of 0.1 s, 2 + 5 s after step 39"
    assert window.start_ns < DAY * S < window.until_ns == DAY * S + 33_200_000_000
    assert decode(encode(window)) == window
    assert VerdictWindows().window(LATE, DAY) == window, "each agent decides alike"


def test_a_healthy_rank_of_its_communicator_comes_before_one_of_its_host():
    rows = ((0, 0, 0, 0, "a"), (1, 0, 0, 0, "b"), (2, 0, 0, 0, "a"), (3, 3, 1, 7, "b"))
    assert VerdictWindows().window(record(*rows, evidence='{"peers": [2]}'), DAY).ranks == (2, 3)
    assert VerdictWindows().window(record(*rows), DAY).ranks == (1, 3)


@pytest.mark.parametrize(
    "row", [(3, 1, 1, 7, "b"), (3, 2, 0, 7, "b"), (-1, 3, 1, 7, ""), (3, 0, 1, 0, "b")]
)  # fmt: skip
def test_what_is_no_rank_that_becomes_late_asks_for_nothing(row):
    assert VerdictWindows().window(record((0, 0, 0, 0, "a"), row), DAY) is None
    assert VerdictWindows().window(record((3, 2, 1, 7, "b"), step_ns=0), DAY) is None


def test_a_rank_without_a_healthy_one_is_recorded_without_a_peer():
    assert VerdictWindows().window(record((3, 2, 1, 7, "b"), (4, 2, 1, 6, "b")), DAY).ranks == (3,)


def test_a_job_gets_one_window_in_ten_minutes_and_a_number_of_them_a_day():
    windows, other = VerdictWindows(), record((3, 2, 1, 7, "b"), job="k")
    times = (0, 1, PERIOD_S - 1, PERIOD_S, PERIOD_S + 1)
    assert [windows.window(LATE, DAY + at) is not None for at in times] == [True, False, False, True, False]
    assert windows.window(other, DAY + 1) is not None
    many = [windows.window(LATE, DAY + number * PERIOD_S) for number in range(2, 2 * MOST_PER_DAY)]
    assert sum(window is not None for window in many) == MOST_PER_DAY - 2
    assert windows.window(LATE, DAY + 86_400) is not None


def test_a_pull_is_of_the_same_ranks_and_of_the_steps_of_the_verdict():
    pull, window = VerdictWindows(PULL).window(LATE, DAY), VerdictWindows().window(LATE, DAY)
    assert (pull.kind, pull.ranks, pull.job, pull.run) == (PULL, window.ranks, window.job, window.run)
    assert (pull.first_step, pull.last_step) == (20, 39)
    assert pull.key != window.key, "both may be asked for"
    assert decode(encode(pull)) == pull
    pulls = VerdictWindows(PULL)
    times = (0, PERIOD_S - 1, PERIOD_S)
    assert [pulls.window(LATE, DAY + at) is not None for at in times] == [True, False, True]
    long = record((3, 2, 1, 7, "b"))
    long.envelope.update(first_step=10, last_step=10 + 2 * MAX_PULL_STEPS)
    assert VerdictWindows(PULL).window(long, DAY).first_step == 11 + MAX_PULL_STEPS


def test_a_suspect_rank_makes_all_ranks_measure_all_steps_for_a_minute_once_in_ten():
    suspect = record((-1, 0, 0, 0, ""), (0, 0, 0, 0, "a"), (1, 0, 1, 4, "b"), evidence='{"odds": 3}')
    windows = VerdictWindows(TIMES)
    request = windows.window(suspect, DAY)
    assert (request.kind, request.ranks, request.job, request.run) == (TIMES, (), "j", "r")
    assert (request.first_step, request.last_step, request.until_ns) == (-1, -1, (DAY + 60) * S)
    assert windows.window(suspect, DAY + PERIOD_S - 1) is None
    assert windows.window(suspect, DAY + PERIOD_S) is not None
    assert VerdictWindows().window(suspect, DAY) is None, "no deep window"
    assert VerdictWindows(TIMES).window(LATE, DAY) is not None, "a named rank, too"
    assert VerdictWindows(TIMES).window(record((-1, 1, 1, 9, ""), (0, 0, 0, 0, "a")), DAY) is None


@pytest.mark.parametrize(
    ("severity", "cause", "requested"), [(2, "slow_link", 1), (0, "slow_link", 0), (2, "jitter", 0)]
)
def test_all_transfers_of_a_job_whose_network_is_slow_are_recorded_too(severity, cause, requested):
    job = record((0, 0, 0, 0, "a"), (-1, severity, 1, 9, ""), cause=cause)
    assert (VerdictWindows(TIMES).window(job, DAY) is not None) == requested
    assert VerdictWindows().window(job, DAY) is None


def test_a_rank_is_suspect_from_the_odds_of_the_stream_processor_on():
    assert rank_naming.SUSPECTED == SUSPECTED
    texts = ['{"odds": 3}', '{"odds": 2}', "{}", '{"odds": "x"}', '{"odds": ', '["odds"]', '{"odds": 9}', "{}"]
    assert suspect_ranks([-1, 1, 2, 3, 4, 5, 6, 7], [1, 0, 1, 0, 0, 0, 0, -1], texts) == [2, 6]
