"""The reader's thread: one request at a time, answers of the job's own processes, one state without RAS."""

import json
import time

import pytest
from support.dumped_jobs import ras_answer, ras_missing, ras_rank
from support.fakes.fake_ras import FakeRas
from support.wait_limit import WAIT_S

from drumline.infra.telemetry import metrics
from drumline.producers.host.targets import RecordedProcess
from drumline.producers.ras import request_thread
from drumline.producers.ras.listener import RasListener
from drumline.producers.ras.request_thread import RasReader

PIDS = {"p0": 400, "p1": 401}


def answer(pid=400):
    return json.dumps(ras_answer(([ras_rank(0, pid, AllReduce=6)], [ras_missing(1, exited=False)]))).encode()


def recorded(job="j", users=(0, 0)):
    return [
        RecordedProcess({"job": job, "run": "r", "rank": rank, "pid": pid, "process_id": name}, pid, users[rank])
        for rank, (name, pid) in enumerate(PIDS.items())
    ]


def outcomes():
    names = ("answered", "none", "failed", "left_out")
    value = metrics.REGISTRIES["agent"].get_sample_value
    return {name: value("drumline_agent_ras_requests_total", {"outcome": name}) or 0 for name in names}


@pytest.fixture
def read(monkeypatch):
    """Return a function that lets a reader request runs of a fake RAS, and its answers with what it counted."""
    monkeypatch.setattr(request_thread, "POLL_S", 0.01)

    def reading(ras, runs=(("j", "r"),), is_off=False, known=(), users=(0, 0)):
        before, answers = outcomes(), dict.fromkeys(known)

        def listeners(processes):
            first = {process.user: process for process in reversed(processes)}
            return iter([RasListener(process, ras.address) for process in first.values()] if ras else ())

        monkeypatch.setattr(request_thread, "ras_listeners", listeners)
        processes = [process for job in sorted({job for job, _ in runs}) for process in recorded(job, users)]
        thread = RasReader(answers, lambda: processes, lambda: is_off)
        for run in runs:
            thread.request(run)
        thread.start()
        until = time.monotonic() + WAIT_S
        while not thread._waiting.empty() and time.monotonic() < until:
            time.sleep(0.01)
        thread._halt.set()
        thread.join(WAIT_S)
        return answers, {name: count - before[name] for name, count in outcomes().items() if count > before[name]}

    return reading


def test_an_answer_is_known_of_all_processes_of_the_run_and_of_no_other(read):
    with FakeRas(answer()) as ras:
        answers, counted = read(ras, known=["ended"])
    assert counted == {"answered": 1}
    assert set(answers) == set(PIDS)
    assert list(answers["p0"].texts) == [f"{16:016x}"]
    assert abs(answers["p1"].time_ns - time.time_ns()) < WAIT_S * 1e9


def test_the_answer_about_another_job_is_not_taken(read):
    with FakeRas(answer(pid=7)) as ras:
        assert read(ras) == ({}, {"none": 1})


@pytest.mark.parametrize(("pid", "name"), [(400, "p0"), (401, "p1")])
def test_an_answer_counts_for_processes_of_the_user_only_who_listens(read, pid, name):
    with FakeRas(answer(pid)) as ras:
        answers, counted = read(ras, users=(1001, 1002))
    assert (set(answers), counted) == ({name}, {"answered": 1})


def test_an_answer_is_as_old_as_its_request(read, monkeypatch):
    ended = []
    whole = request_thread.request_status
    monkeypatch.setattr(
        request_thread, "request_status", lambda address: (whole(address), ended.append(time.time_ns()))[0]
    )
    with FakeRas(answer()) as ras:
        assert read(ras)[0]["p0"].time_ns < ended[0]


def test_no_ras_an_old_nccl_and_a_refused_connection_are_one_state(read):
    assert read(None) == ({}, {"none": 1})
    with FakeRas(answer(), old=True) as ras:
        assert read(ras) == ({}, {"none": 1})
    assert read(ras) == ({}, {"none": 1})


def test_what_is_no_answer_is_counted_and_the_next_run_is_read(read):
    with FakeRas(b"{") as ras:
        assert read(ras, (("j", "r"), ("k", "r"))) == ({}, {"failed": 2})


def test_a_run_that_is_requested_again_is_read_once_a_minute_and_none_beside_another(read):
    with FakeRas(answer()) as ras:
        _, counted = read(ras, (("j", "r"), ("j", "r"), ("k", "r"), ("j", "r")))
    assert counted == {"answered": 2}
    assert [request.split()[0] for request in ras.requests] == ["CLIENT", "TIMEOUT", "SET", "VERBOSE"] * 2


def test_nothing_is_requested_where_recording_is_off(read):
    with FakeRas(answer()) as ras:
        assert read(ras, is_off=True) == ({}, {})
    assert ras.requests == []


def test_requests_of_many_runs_are_bounded():
    before, thread = outcomes()["left_out"], RasReader({}, list)
    for number in range(request_thread.MOST_WAITING + 3):
        thread.request((f"j{number}", "r"))
    assert outcomes()["left_out"] == before + 3
