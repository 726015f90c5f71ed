"""An agent keeps the newest request of each name until it ends, and mirrors those that may concern its host."""

import json
from dataclasses import replace

import pytest

from drumline.producers.control.requests_in_force import MOST_KEYS, RequestsInForce, as_file
from drumline.producers.ipc.control import FILE, MAX_BYTES, MAX_OF_KIND, ProcessPlace, chosen, read_requests
from drumline.schemas.control import Control

NOW, S = 10**18, 10**9
POLICY = Control("p", "policy", "off", until_ns=NOW + 100 * S, requested_ns=1)
PULL = replace(POLICY, key="pull", kind="pull", first_step=1, last_step=9)
WINDOW = replace(POLICY, key="w", kind="window", policy="always")


def names(requests, now_ns=NOW, host="h", jobs=("j",)):
    return [control.key for control in requests.concerning_host(host, jobs, now_ns)]


def test_the_newest_record_of_a_name_counts_and_a_cleared_one_ends_it():
    requests = RequestsInForce()
    requests.take("p", POLICY)
    requests.take("p", replace(POLICY, policy="always"))
    assert [control.policy for control in requests.concerning_host("h", ["j"], NOW)] == ["always"]
    requests.take("p", replace(POLICY, cleared=True))
    assert names(requests) == []
    requests.take("p", POLICY)
    requests.take("p", None)
    assert names(requests) == []


def test_requests_end_by_themselves_and_are_those_of_the_host_and_its_jobs():
    requests = RequestsInForce()
    for control in (POLICY, WINDOW, replace(POLICY, key="host", host="other-*"), replace(POLICY, key="job", job="k"),
                    replace(WINDOW, key="later", start_ns=NOW + 3_600 * S, until_ns=NOW + 3_700 * S)):  # fmt: skip
        requests.take(control.key, control)
    assert names(requests) == ["p", "w"], "policies first"
    assert names(requests, host="other-1", jobs=["k"]) == ["p", "job", "host", "w"]
    assert names(requests, jobs=[]) == []
    assert names(requests, NOW + 100 * S) == []


def test_a_flood_of_windows_of_a_job_takes_no_place_of_a_policy_or_of_another_jobs_window():
    requests = RequestsInForce()
    requests.take("p", POLICY)
    requests.take("w", replace(WINDOW, job="victim", requested_ns=1))
    for number in range(5 * MOST_KEYS):
        requests.take(str(number), replace(WINDOW, key=str(number), job="k", requested_ns=2 + number))
    assert names(requests) == ["p"], "of a host that runs this job only"
    kept = names(requests, jobs=["j", "k", "victim"])
    assert kept[:3] == ["p", str(5 * MOST_KEYS - 1), "w"], "the newest of each job first"
    assert len(kept) == 1 + MAX_OF_KIND


def test_many_newer_policies_about_ranks_that_do_not_exist_leave_the_operators_in_force():
    requests = RequestsInForce()
    requests.take("op", replace(POLICY, key="op", job="victim"))
    for number in range(2 * MAX_OF_KIND):
        requests.take(
            f"f{number}", replace(POLICY, key=f"f{number}", job="v*", ranks=(4_095,), requested_ns=2 + number)
        )
    kept = names(requests, jobs=["victim"])
    assert "op" in kept
    assert len(kept) == MAX_OF_KIND


@pytest.mark.parametrize("first", [POLICY, WINDOW])
def test_the_file_is_never_longer_than_readers_take_and_both_kinds_have_a_place(tmp_path, first):
    """Requests with the longest lists of ranks and names that a record may have."""
    other = WINDOW if first is POLICY else POLICY
    requests = RequestsInForce()
    requests.take("small", replace(other, key="small", requested_ns=1))
    for number in range(MAX_OF_KIND):
        key = f"{number}" + "\x00" * 1_000
        requests.take(
            key, replace(first, key=key, ranks=tuple(range(1 << 19, (1 << 19) + 4_096)), requested_ns=2 + number)
        )
    text, left_out = as_file(requests.concerning_host("h", ["j"], NOW))
    assert len(text) <= MAX_BYTES
    (tmp_path / FILE).write_text(text)
    read = read_requests(tmp_path)
    assert "small" in [request.key for request in read]
    assert len(read) >= 2
    assert left_out + len(read) == 1 + MAX_OF_KIND


def test_as_many_requests_as_are_written_are_read(tmp_path):
    requests = RequestsInForce()
    for number in range(2 * MAX_OF_KIND):
        for control in (POLICY, WINDOW):
            requests.take((control.kind, number), replace(control, key=f"{control.kind}{number}", requested_ns=number))
    (tmp_path / FILE).write_text(as_file(requests.concerning_host("h", ["j"], NOW))[0])
    assert len(read_requests(tmp_path)) == 2 * MAX_OF_KIND
    assert chosen(read_requests(tmp_path), ProcessPlace("j", "", 0, "h"), NOW).key == f"window{2 * MAX_OF_KIND - 1}"


def test_pulls_are_the_agents_and_take_no_place_of_what_processes_follow():
    requests = RequestsInForce()
    for control in (WINDOW, POLICY, *(replace(PULL, key=f"pull-{number}") for number in range(2 * MAX_OF_KIND))):
        requests.take(control.key, control)
    assert names(requests)[:2] == ["p", "w"]
    assert len(names(requests)) == 2 + MAX_OF_KIND
    mirrored = json.loads(as_file(requests.concerning_host("h", ["j"], NOW))[0])
    assert [control["key"] for control in mirrored] == ["p", "w"]
