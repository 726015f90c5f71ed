"""A process obeys the request that is closest to it, for as long as it is in force and an agent renews it."""

import json
import os
from dataclasses import replace

import pytest

from drumline.producers.ipc.control import (
    FILE,
    LEASE_NS,
    ControlRequest,
    ProcessPlace,
    chosen,
    read_requests,
    times_requested,
)

NOW = 10**18
ME = ProcessPlace("llama-7b", "r1", 3, "node-b")
POLICY = ControlRequest("p", "policy", "off", "*", "", "*", (), -1, NOW - 10, NOW + 10, 1)
WINDOW = replace(POLICY, key="w", kind="window", policy="always", last_step=119)


@pytest.mark.parametrize(
    ("change", "concerned"),
    [
        ({}, True), ({"job": "llama-*"}, True), ({"job": "bert"}, False), ({"run": "r1"}, True), ({"run": "r2"}, False),
        ({"host": "node-[ab]"}, True), ({"host": "node-c"}, False), ({"ranks": (3, 4)}, True), ({"ranks": (4,)}, False),
    ],
)  # fmt: skip
def test_a_request_concerns_the_processes_that_it_names(change, concerned):
    assert replace(POLICY, **change).concerns(ME) is concerned


def test_a_rank_that_is_not_known_yet_is_concerned_only_where_no_rank_is_named():
    unknown = replace(ME, rank=-1)
    assert POLICY.concerns(unknown)
    assert not replace(POLICY, ranks=(3,)).concerns(unknown)


def test_a_deep_window_comes_before_policies_and_the_newest_of_each_counts():
    newer = replace(POLICY, key="q", requested_ns=2)
    assert chosen([newer, WINDOW, POLICY], ME, NOW) == WINDOW
    assert chosen([newer, POLICY], ME, NOW) == newer
    assert chosen([], ME, NOW) is None


def test_asking_for_all_steps_changes_nothing_of_what_is_recorded():
    times = replace(POLICY, key="t", kind="times", requested_ns=9)
    assert chosen([times, POLICY], ME, NOW) == POLICY
    assert times_requested([times, replace(times, until_ns=NOW + 5), POLICY], ME, NOW) == NOW + 10
    assert times_requested([times, POLICY], ME, NOW + 10) == 0
    assert times_requested([replace(times, job="bert"), WINDOW], ME, NOW) == 0


def test_a_request_ends_at_its_time_and_a_window_with_its_last_step():
    assert chosen([POLICY], ME, NOW + 10) is None
    assert chosen([POLICY], ME, NOW - 11) is None
    assert chosen([WINDOW], ME, NOW, 119) == WINDOW
    assert chosen([WINDOW], ME, NOW, 120) is None
    assert chosen([WINDOW], ME, NOW, -1) == WINDOW, "steps are not known"


def write(folder, items, age_ns=0):
    path = folder / FILE
    path.write_text(items if isinstance(items, str) else json.dumps(items))
    os.utime(path, ns=(NOW - age_ns, NOW - age_ns))


def test_the_file_counts_while_it_is_renewed(tmp_path):
    item = {**vars(WINDOW), "ranks": [1], "stacks": False}
    assert read_requests(tmp_path, NOW) == []
    write(tmp_path, [item])
    assert read_requests(tmp_path, NOW) == [replace(WINDOW, ranks=(1,))]
    write(tmp_path, [item], LEASE_NS)
    assert read_requests(tmp_path, NOW) != []
    write(tmp_path, [item], LEASE_NS + 1)
    assert read_requests(tmp_path, NOW) == [], "of an agent that has ended"


@pytest.mark.parametrize("text", ["", "{", "7", '{"a": 1}', "[1]", '[{"key": "k"}]', "[" * 5_000, "x" * (1 << 19)])
def test_a_text_that_no_agent_writes_is_an_error(tmp_path, text):
    write(tmp_path, text)
    with pytest.raises(ValueError, match="is no control file"):
        read_requests(tmp_path, NOW)


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "real").write_text("[]")
    (tmp_path / FILE).symlink_to(tmp_path / "real")
    assert read_requests(tmp_path, NOW) == []
