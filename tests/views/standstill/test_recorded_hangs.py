"""Hung jobs that were recorded on two GPUs (tests/data/nccl_hangs): the answers that NCCL's own states allow."""

from pathlib import Path

import pytest

from drumline.views.standstill.explain_dumps import explain_dumps

HANGS = Path(__file__).parents[2] / "data" / "nccl_hangs"


def dumps(scenario):
    return sorted((HANGS / scenario).glob("nccl_trace_rank_*"))


@pytest.mark.parametrize(
    ("scenario", "reason", "named"),
    [
        ("not_called", "not_called", [1]),
        ("wrong_operation", "mismatch", [0, 1]),
        ("wrong_size", "mismatch", [0, 1]),
        ("order", "deadlock", [0, 1]),
        ("ended", "insufficient_data", []),
        ("gpu_busy", "insufficient_data", []),
    ],
)
def test_dumps_of_a_hang_name_who_is_waited_for_and_no_more_than_they_show(scenario, reason, named):
    answer = explain_dumps(dumps(scenario))
    assert (answer.reason, list(answer.named)) == (reason, named)
    assert "of default_pg" in answer.sentence


def test_a_receive_that_nccl_calls_completed_waits_for_the_rank_that_never_sent():
    answer = explain_dumps(dumps("receive_without_send"))
    assert (answer.reason, answer.named) == ("deadlock", (0, 1))
    assert "rank 0 in a recv from rank 1, which has not sent" in answer.sentence
    assert "rank 1 in all_reduce 6" in answer.sentence
    assert any("counts as open" in note for note in answer.notes)


def test_ras_alone_names_the_rank_that_is_a_call_behind():
    answer = explain_dumps([HANGS / "not_called/ras.json"])
    assert (answer.reason, answer.named) == ("not_called", (1,))


def test_what_ras_writes_of_a_missing_rank_is_read_though_nccl_forgets_a_comma():
    answer = explain_dumps([HANGS / "ended/ras.json"])
    assert "rank 1 (it does not answer RAS" in answer.sentence
    assert not answer.unreadable


def test_a_rank_without_a_dump_that_ras_does_not_reach_is_named_as_such():
    answer = explain_dumps([*dumps("ended"), HANGS / "ended/ras.json"])
    assert answer.sentence.startswith("Nothing is known of rank 1 (it does not answer RAS")
