"""Requests to NCCL's RAS: what it answers, and all that is no answer."""

import json
import socket
import time

import pytest
from support.dumped_jobs import ras_answer, ras_missing, ras_rank
from support.fakes.fake_ras import FakeRas

from drumline.producers.ras import status_request
from drumline.producers.ras.status_request import COLLECT_S, NoAnswer, NoRas, request_status

ANSWER = json.dumps(ras_answer(([ras_rank(0, AllReduce=6)], [ras_missing(1, exited=False)]))).encode()


def test_ras_is_requested_as_its_own_client_does_and_its_answer_read():
    with FakeRas(ANSWER) as ras:
        report = request_status(ras.address)
    assert [rank.unresponsive for rank in report.communicators[0].missing] == [True]
    assert ras.requests == ["CLIENT PROTOCOL 2", f"TIMEOUT {COLLECT_S}", "SET FORMAT json", "VERBOSE STATUS"]


def test_a_version_without_json_and_a_closed_port_are_no_ras():
    with FakeRas(ANSWER, old=True) as ras, pytest.raises(NoRas, match="Unknown request"):
        request_status(ras.address)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with pytest.raises(NoRas):
        request_status(address)


@pytest.mark.parametrize(
    "answer", [b"", b"{", b"[]", b"{}", b"no JSON", b'{"communicators": 3}', b"[" * 200_000, b"\xff"]
)
def test_what_is_no_answer_of_ras_is_refused(answer):
    with FakeRas(answer) as ras, pytest.raises(NoAnswer):
        request_status(ras.address)


@pytest.mark.parametrize("how", ["stuck", "begun"])
def test_a_ras_that_stops_answering_is_given_up_in_time(how):
    begin = time.monotonic()
    with FakeRas(ANSWER, **{how: True}) as ras, pytest.raises(NoAnswer):
        request_status(ras.address, most_s=0.5)
    assert time.monotonic() - begin < 10


def test_an_answer_that_is_too_large_is_not_kept(monkeypatch):
    monkeypatch.setattr(status_request, "MOST_BYTES", 1_000)
    with FakeRas(ANSWER * 100) as ras, pytest.raises(NoAnswer, match="more than"):
        request_status(ras.address)
