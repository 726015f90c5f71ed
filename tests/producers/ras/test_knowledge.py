"""Texts of an answer of RAS, one for each communicator with a rank that is silent or behind."""

import json
from pathlib import Path

import pytest
from support.dumped_jobs import ras_answer, ras_missing, ras_rank

from drumline.producers.foreign.dumps.ras import read_ras
from drumline.producers.ras.knowledge import MOST_NAMED, is_about, texts_of
from drumline.producers.ras.report import ras_report

RECORDED = Path(__file__).parents[2] / "data" / "nccl_hangs"


def texts(*communicators):
    return {name: json.loads(text) for name, text in texts_of(ras_report(ras_answer(*communicators))).items()}


def test_the_recorded_answer_of_a_rank_that_has_not_called_shows_it_behind():
    report = read_ras(RECORDED / "not_called" / "ras.json")
    behind = {"rank": 1, "host": "192.0.2.2", "pid": 2210, "operation": "AllReduce", "called": 5, "of": 6}
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
