"""Notices about hosts at fault: when one is due, and that each fault is in one of them only."""

import json

import pytest

from drumline.views.offenders.notices import DueLimits, Fault, due

DAY_NS = 86_400 * 10**9
NOW = 20_000 * DAY_NS
LIMITS = DueLimits(runs=3, days=30)


def fault(number=0, host="node-bad", kind="verdict", name="slow_gpu", **changed):
    values = {"host": host, "gpu_uuid": "GPU-bad", "job": f"job-{number}", "run": "r1", "kind": kind, "name": name,
              "first_ns": NOW + number, "last_ns": NOW + number, "gpu_seconds_lost": 2.0}  # fmt: skip
    return Fault(**values | changed)


def covered_by(*notices):
    covered = {}
    for notice in notices:
        covered.setdefault(notice.host, set()).update(notice.faults)
    return covered


def test_a_host_is_due_with_the_third_run_and_again_with_three_more():
    faults = [fault(number) for number in range(9)]
    assert due(faults[:2], {"node-bad": 9}, {}, {}, LIMITS) == []
    [first] = due(faults[:3], {"node-bad": 9}, {}, {}, LIMITS)
    covered = covered_by(first)
    assert due(faults[:3], {"node-bad": 9}, {}, covered, LIMITS) == [], "each fault is in one notice"
    assert due(faults[:5], {"node-bad": 9}, {}, covered, LIMITS) == [], "two new ones"
    [second] = due(faults[:6], {"node-bad": 9}, {}, covered, LIMITS)
    assert second.id != first.id
    body = json.loads(second.body)
    assert (body["faults"], body["runs"], body["gpu_seconds_lost"]) == (6, 9, 12.0), (
        "all of its faults, not the new ones"
    )
    assert body["text"] == "host node-bad was at fault 6 times in 9 jobs of the last 30 days"


def test_many_faults_of_one_run_are_one():
    faults = [fault(kind="xid", name=str(xid)) for xid in (48, 79)] + [fault(), fault(name="slow_compute, throttled")]
    assert due(faults, {"node-bad": 1}, {}, {}, LIMITS) == []


@pytest.mark.parametrize(("kind", "name"), [("lost", "lost"), ("check", "NVLink")])
def test_a_lost_gpu_and_a_failed_check_are_due_at_once(kind, name):
    certain = fault(job="", run="", kind=kind, name=name)
    [notice] = due([certain], {}, {"GPU-bad": "165"}, {}, LIMITS)
    body = json.loads(notice.body)
    assert body["text"] == "host node-bad was at fault 1 time in 0 jobs of the last 30 days"
    assert (body["failed_checks"], body["losses"]) == ((["NVLink"], 0) if kind == "check" else ([], 1))
    assert [(gpu["gpu_uuid"], gpu["serial"]) for gpu in body["gpus"]] == [("GPU-bad", "165")]
    assert due([certain], {}, {}, covered_by(notice), LIMITS) == []
    [again] = due([certain, fault(0, job="", run="", kind=kind, name=name, first_ns=NOW + DAY_NS)], {}, {},
                  covered_by(notice), LIMITS)  # fmt: skip
    assert again.id != notice.id, "it failed on another day"


def loss(first_s, last_s, job=""):
    """A row of a loss; it has the job for a minute."""
    return fault(job=job, run="r1" if job else "", kind="lost", name="lost", first_ns=NOW + first_s * 10**9,
                 last_ns=NOW + last_s * 10**9)  # fmt: skip


def test_a_loss_is_one_fault_with_its_job_and_without_for_as_long_as_it_lasts():
    day_s = 86_400
    first = loss(0, 60, "job-0")
    [notice] = due([first], {"node-bad": 1}, {}, {}, LIMITS)
    days = [loss(60, day_s - 60), loss(day_s, 2 * day_s - 60), loss(2 * day_s, 2 * day_s + 60)]
    [same] = due([first, *days], {"node-bad": 1}, {}, {}, LIMITS)
    body = json.loads(same.body)
    assert (same.id, body["faults"], body["losses"]) == (notice.id, 1, 1)
    assert body["last_time"] > json.loads(notice.body)["last_time"]
    assert due([first, *days], {}, {}, covered_by(notice), LIMITS) == []
    since = NOW + day_s * 10**9
    assert due([first, *days], {}, {}, covered_by(notice), LIMITS, since) == [], "its begin is older than the days"
    assert due([first, days[0]], {}, {}, {}, LIMITS, since) == [], "it ended before them"
    [again] = due([first, *days, loss(3 * day_s, 3 * day_s)], {}, {}, covered_by(notice), LIMITS)
    assert len(again.faults) == 1, "it was back for a day"


def test_a_certain_fault_is_due_in_a_run_that_a_notice_had_already():
    faults = [fault(number) for number in range(3)]
    [notice] = due(faults, {}, {}, {}, LIMITS)
    [lost] = due([*faults, fault(2, kind="lost", name="lost")], {}, {}, covered_by(notice), LIMITS)
    assert len(lost.faults) == 1
    assert due([fault(kind="xid", name="79"), fault(1), fault(1, name="slow_copy")], {}, {}, {}, LIMITS) == []


def test_an_xid_without_a_job_is_not_certain():
    assert due([fault(job="", run="", kind="xid", name="79")], {}, {}, {}, LIMITS) == []


def test_the_same_faults_make_the_same_notice_in_any_order():
    faults = [fault(number) for number in range(4)]
    [notice], [other] = due(faults, {"node-bad": 4}, {}, {}, LIMITS), due(faults[::-1], {"node-bad": 4}, {}, {}, LIMITS)
    assert (notice.id, notice.faults) == (other.id, other.faults)
    [elsewhere] = due([fault(number, host="node-x") for number in range(4)], {}, {}, {}, LIMITS)
    assert elsewhere.id != notice.id


def test_hosts_do_not_share_their_faults():
    assert due([fault(number, host=f"node-{number}") for number in range(9)], {}, {}, {}, LIMITS) == []
