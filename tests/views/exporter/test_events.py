"""Events: one for each change, none for a heartbeat; what is open after a restart has the same id as before."""

import pytest
from support.verdict_worlds import NOW, SECOND, hang, healthy_job, late_job, lost, process, wide_window

from drumline.views.exporter.events import MOST_RANKS, EventLog
from drumline.views.exporter.live_runs import LOST_NS, LiveRuns


@pytest.fixture
def fleet():
    return LiveRuns()


@pytest.fixture
def log():
    return EventLog()


def test_an_alarm_is_an_event_when_it_begins_and_when_it_is_over_and_none_between(fleet, log):
    fleet.take(late_job(job="j", run="r", first_step=1, last_step=20))
    [event] = log.advance(fleet, NOW)
    assert (event.kind, event.state, event.severity, event.row.rank) == ("verdict", "critical", 3, 3)
    assert event.text.startswith("job j, run r: rank 3")
    assert "its host gave the GPU nothing to do" in event.text
    fleet.take(late_job(NOW + 10 * SECOND, job="j", run="r", first_step=21, last_step=40,
                        attempt_start_ns=fleet.runs["j", "r"].window.envelope["attempt_start_ns"]))  # fmt: skip
    assert log.advance(fleet, NOW + 10 * SECOND) == []
    fleet.take(healthy_job(NOW + 20 * SECOND, job="j", run="r"))
    [event] = log.advance(fleet, NOW + 20 * SECOND)
    assert (event.state, event.severity, event.is_over, event.row.rank) == ("ok", 0, True, 3)
    assert log.advance(fleet, NOW + 21 * SECOND) == []


def test_after_a_restart_the_same_alarm_has_the_same_id(fleet):
    fleet.take(late_job(job="j", run="r"))
    first, second = (EventLog().advance(fleet, NOW + later)[0].id for later in (0, 99))
    assert first == second
    fleet.take(late_job(NOW + SECOND, job="j", run="r2"))
    assert len({event.id for event in EventLog().advance(fleet, NOW)}) == 2


def test_a_standstill_names_the_rank_and_its_node_and_a_longer_one_is_another_event(fleet, log):
    fleet.take(hang("standing", (5,)))
    [event] = log.advance(fleet, NOW)
    assert (event.kind, event.state, event.severity, event.row.host) == ("hang", "standing", 1, "h5")
    fleet.take(hang("hung", (5,), time_ns=NOW + SECOND, revision=1))
    [event] = log.advance(fleet, NOW + SECOND)
    assert (event.state, event.severity, event.row.cause) == ("hung", 3, "not_called")
    assert "it waits for rank 5" in event.text
    fleet.take(hang("over", time_ns=NOW + 2 * SECOND, revision=2))
    [event] = log.advance(fleet, NOW + 2 * SECOND)
    assert (event.state, event.is_over) == ("moving", True)


def test_a_standstill_of_several_ranks_is_of_no_node(fleet, log):
    fleet.take(hang("hung", tuple(range(20))))
    [event] = log.advance(fleet, NOW)
    assert event.row.host == ""
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7, ..." in event.text


def test_a_lost_gpu_is_an_event_and_so_is_its_return(fleet, log):
    fleet.take_samples(lost("h1", "GPU-1", 1, job="j", run="r"))
    [event] = log.advance(fleet, NOW)
    assert (event.kind, event.severity, event.row.host, event.row.gpu_uuid) == ("gpu_lost", 3, "h1", "GPU-1")
    fleet.take_samples(lost("h1", "GPU-1", 1, time_ns=NOW + 10 * SECOND, job="j", run="r"))
    assert log.advance(fleet, NOW + 10 * SECOND) == []
    fleet.expire(NOW + 11 * SECOND + LOST_NS, SECOND)
    [event] = log.advance(fleet, NOW + 11 * SECOND + LOST_NS)
    assert (event.state, event.is_over) == ("answers", True)


def test_an_alarm_is_over_when_its_job_has_ended(fleet, log):
    fleet.take(late_job(job="j", run="r"))
    fleet.take(process(3, "pod"))
    log.advance(fleet, NOW)
    fleet.expire(NOW + 601 * SECOND, 600 * SECOND)
    assert [event.is_over for event in log.advance(fleet, NOW + 601 * SECOND)] == [True]


def test_a_job_whose_ranks_are_all_late_has_a_bounded_number_of_events(fleet, log):
    fleet.take(wide_window(2_048, late=range(2_048)))
    assert len(log.advance(fleet, NOW)) == MOST_RANKS


def test_a_node_has_the_events_of_its_ranks_the_worst_first(fleet, log):
    fleet.take(wide_window(16, late=(1, 9)))
    fleet.take_samples(lost("node-0001", "GPU-9", 1))
    log.advance(fleet, NOW)
    assert [event.kind for event in log.at_host("node-0001")] == ["verdict", "gpu_lost"]
    assert [event.row.rank for event in log.at_host("node-0000")] == [1]
    assert log.at_host("node-0002") == []
