"""Texts of an answer of RAS, one for each communicator with a rank that is silent or behind."""

import json
from pathlib import Path

import pytest
from support.dumped_jobs import ras_answer, ras_missing, ras_rank

from drumline.producers.foreign.dumps.ras import read_ras
from drumline.producers.ras import knowledge
from drumline.producers.ras.knowledge import MOST_NAMED, is_about, texts_of
from drumline.producers.ras.report import ras_report
from drumline.schemas.bounds.limits import RAS_ANSWERS

RECORDED = Path(__file__).parents[2] / "data" / "nccl_hangs"


def texts(*communicators):
    return {name: json.loads(text) for name, text in texts_of(ras_report(ras_answer(*communicators))).items()}


def test_the_recorded_answer_of_a_rank_that_has_not_called_shows_it_behind():
    report = read_ras(RECORDED / "not_called" / "ras.json")
    behind = {"rank": 1, "host": "192.0.2.2", "pid": 2210, "operation": "AllReduce", "called": 5, "of": 6, "total": 5}
    assert {name: json.loads(text) for name, text in texts_of(report).items()} == {
        name: {"ranks": 2, "behind": [behind], "behind_ranks": 1} for name in ("52239cb22d2422e9", "8b0adac262165bef")
    }
    assert is_about(report, {2210, 7})
    assert not is_about(report, {7})


def test_the_recorded_answer_of_a_process_that_ended_shows_it_silent_under_the_names_of_the_plugin():
    of = {name: json.loads(text) for name, text in texts_of(read_ras(RECORDED / "ended" / "ras.json")).items()}
    assert set(of) == {"0bf29202910b6f82", "9b370fe1c57f931f", "a2ebdae855bb3683"}
    silent = {"rank": 1, "host": "192.0.2.2", "pid": 2883, "state": "silent"}
    assert all(value == {"ranks": 2, "silent": [silent], "silent_ranks": 1} for value in of.values())


def test_a_communicator_whose_ranks_called_as_much_has_no_text():
    assert texts(([ras_rank(rank, AllReduce=8) for rank in range(4)], [])) == {}


def test_as_many_calls_of_other_functions_are_not_behind():
    assert texts(([ras_rank(0, AllReduce=8), ras_rank(1, AllReduce=7, AllGather=1)], [])) == {}


def test_of_many_ranks_some_and_their_number_are_stated():
    missing = [ras_missing(rank, exited=True) for rank in range(1, 16_384)]
    [stated] = texts(([ras_rank(0, AllReduce=8)], missing)).values()
    assert (len(stated["silent"]), stated["silent_ranks"], stated["silent"][0]["state"]) == (MOST_NAMED, 16_383, "gone")


@pytest.mark.parametrize("name", ["communicator 0", "0xno", ""])
def test_a_communicator_without_a_hash_is_left_out(name):
    answer = ras_answer(([ras_rank(0)], [ras_missing(1, exited=True)]))
    answer["communicators"][0]["hash"] = name
    assert texts_of(ras_report(answer)) == {}


def test_numbers_and_texts_that_no_host_has_are_left_out_or_replaced():
    answer = ras_answer(([ras_rank(0, AllReduce=8)], [ras_missing(rank, exited=True) for rank in (-1, 0, 10**12)]))
    for entry in answer["communicators"][0]["missing_ranks"]:
        entry["host"] = "a\n" + "\ud800" * 500
    [text] = texts_of(ras_report(answer)).values()
    assert [(entry["rank"], entry["host"]) for entry in json.loads(text)["silent"]] == [(0, "a?" + "?" * 62)]


def test_texts_are_as_long_as_a_record_allows_and_their_sum_is_bounded(monkeypatch):
    monkeypatch.setattr(knowledge, "MOST_CHARACTERS", 1_000)
    communicators = [([ras_rank(0, AllReduce=8)], [ras_missing(1, exited=True)])] * 30
    answer = ras_answer(*communicators)
    for number, communicator in enumerate(answer["communicators"]):
        communicator["hash"] = hex(number + 1)
    kept = texts_of(ras_report(answer))
    assert 0 < sum(map(len, kept.values())) <= 1_000
    assert max(map(len, kept.values())) <= RAS_ANSWERS.length


def test_defects_of_an_answer_are_bounded_while_it_is_read():
    report = ras_report({"communicators": [{"size": 2, "ranks": [{}] * 1_000}]})
    assert len(report.defects) == 5
