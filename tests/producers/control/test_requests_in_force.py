"""An agent keeps the newest request of each name until it ends, and mirrors those that may concern its host."""

import json
from dataclasses import replace

from drumline.producers.control.requests_in_force import MOST_KEYS, RequestsInForce, as_file
from drumline.producers.ipc.control import MAX_REQUESTS
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
    assert names(requests) == ["w", "p"], "windows first"
    assert names(requests, host="other-1", jobs=["k"]) == ["w", "p", "host", "job"]
    assert names(requests, jobs=[]) == []
    assert names(requests, NOW + 100 * S) == []


def test_a_flood_of_requests_is_bounded_and_windows_stay():
    requests = RequestsInForce()
    requests.take("w", WINDOW)
    for number in range(5 * MOST_KEYS):
        requests.take(str(number), replace(POLICY, key=str(number), until_ns=NOW + S + number))
    assert len(names(requests)) == MAX_REQUESTS
    assert names(requests)[0] == "w"


def test_pulls_are_the_agents_and_take_no_place_of_what_processes_follow():
    requests = RequestsInForce()
    for control in (WINDOW, POLICY, *(replace(PULL, key=f"pull-{number}") for number in range(2 * MAX_REQUESTS))):
        requests.take(control.key, control)
    assert names(requests)[:2] == ["w", "p"]
    assert len(names(requests)) == 2 + MAX_REQUESTS
    mirrored = json.loads(as_file(requests.concerning_host("h", ["j"], NOW)))
    assert [control["key"] for control in mirrored] == ["w", "p"]
