"""RAS's answer names ranks that are behind, that differ, that have ended, or that do not answer."""

from __future__ import annotations

import json

from support.dumped_jobs import STARTED, ranks, ras_answer, ras_missing, ras_rank, write_dumps

from drumline.views.standstill.explain_dumps import explain_dumps
from drumline.views.standstill.ras_job import COUNTS_ONLY


def answer_of(tmp_path, *communicators):
    path = tmp_path / "ras.json"
    path.write_text(json.dumps(ras_answer(*communicators), indent=2))
    return explain_dumps([path])


def test_a_rank_with_fewer_operations_is_behind(tmp_path):
    present = [ras_rank(rank, AllReduce=8 - (rank == 2), AllGather=5) for rank in range(4)]
    answer = answer_of(tmp_path, (present, []))
    assert (answer.reason, answer.named, answer.operation.waiting) == ("not_called", (2,), (0, 1, 3))
    assert answer.sentence.startswith("Rank 2 has not called AllReduce 13 of communicator 0x10, in which 3 ranks wait")


def test_as_many_operations_of_other_functions_are_a_mismatch(tmp_path):
    present = [ras_rank(rank, AllReduce=8 - (rank == 1), AllGather=5 + (rank == 1)) for rank in range(4)]
    answer = answer_of(tmp_path, (present, []))
    assert (answer.reason, answer.named) == ("mismatch", (0, 1))
    assert "rank 1: AllGather; rank 0 and 2 more: AllReduce" in answer.sentence


def test_a_process_that_ended_is_named(tmp_path):
    present = [ras_rank(rank, AllReduce=8) for rank in range(3)]
    answer = answer_of(tmp_path, (present, [ras_missing(3, exited=True)]))
    assert (answer.reason, answer.named, answer.operation.waiting) == ("gone", (3,), (0, 1, 2))


def test_a_process_that_does_not_answer_is_reported_as_unknown(tmp_path):
    present = [ras_rank(rank, AllReduce=8) for rank in range(3)]
    answer = answer_of(tmp_path, (present, [ras_missing(3, exited=False)]))
    assert (answer.reason, answer.named) == ("insufficient_data", ())
    assert answer.absent == {3: "it does not answer RAS (process 403 on 10.0.0.7)"}
    assert answer.sentence.startswith("Nothing is known of rank 3 (it does not answer RAS (process 403 on 10.0.0.7))")


def test_ranks_are_those_of_the_largest_communicator(tmp_path):
    world = [ras_rank(rank, AllReduce=3) for rank in range(4)]
    pair = [ras_rank(0, pid=402, AllReduce=9), ras_rank(1, pid=403, AllReduce=8)]
    pair[0]["nvml_dev"], pair[1]["nvml_dev"] = 2, 3
    answer = answer_of(tmp_path, (pair, []), (world, []))
    assert (answer.named, answer.operation.waiting) == ((3,), (2,))


def test_equal_counts_name_no_rank(tmp_path):
    answer = answer_of(tmp_path, ([ras_rank(rank, AllReduce=8) for rank in range(4)], []))
    assert (answer.named, answer.operation) == ((), None)


def test_errors_and_aborts_are_noted(tmp_path):
    present = [ras_rank(rank, AllReduce=8) for rank in range(2)]
    present[1]["status"] |= {"async_error": 6, "abort_flag": True, "init_state": 7}
    answer = answer_of(tmp_path, (present, []))
    assert answer.notes == (
        "Rank 1 reports an error of a peer in communicator 0x10.",
        "Rank 1 has aborted communicator 0x10.",
        COUNTS_ONLY,
    )


def test_a_communicator_that_is_still_made_is_noted(tmp_path):
    present = [ras_rank(rank) for rank in range(2)]
    present[0]["status"]["init_state"] = 7
    answer = answer_of(tmp_path, (present, []))
    assert answer.notes == ("Rank 0 is still in the set-up of communicator 0x10.", COUNTS_ONLY)


def test_dumps_explain_and_ras_adds_the_process_that_ended(tmp_path):
    job = [recorder.call(state=STARTED) for recorder in ranks()]
    paths = write_dumps(tmp_path, job[:3])
    report = tmp_path / "ras.json"
    report.write_text(
        json.dumps(ras_answer(([ras_rank(r, AllReduce=4) for r in range(3)], [ras_missing(3, exited=True)])))
    )
    assert explain_dumps(paths).named == ()
    answer = explain_dumps([*paths, report])
    assert (answer.reason, answer.named, answer.operation.waiting) == ("gone", (3,), (0, 1, 2))


def test_the_newest_of_several_answers_counts(tmp_path):
    texts = {"new.json": (7, "2026-01-01 10:05:00"), "old.json": (8, "2026-01-01 10:00:00")}
    for name, (count, timestamp) in texts.items():
        report = ras_answer(([ras_rank(0, AllReduce=8), ras_rank(1, AllReduce=count)], []))
        (tmp_path / name).write_text(json.dumps(report | {"timestamp": timestamp}))
    assert explain_dumps([tmp_path]).named == (1,)
