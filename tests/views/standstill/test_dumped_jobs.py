"""Dumps of a hung job name who is waited for, in which operation, and where in the program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.dumped_jobs import COMPLETED, SCENARIOS, SCHEDULED, STARTED, WORLD, Recorder, ranks, write_dumps

from drumline.infra.runtime.exit_codes import BAD_INPUT, OK
from drumline.producers.foreign.recognise import Format, trace_files
from drumline.views.standstill.explain_dumps import NothingReadable, explain_dumps, print_standstill
from drumline.views.standstill.standstill_text import lines

REAL = Path(__file__).parents[2] / "data" / "flight_recorder"
#: Way to hang -> reason, named ranks, operation, number, and ranks that wait in it.
TRUTH = {
    "not_called": ("not_called", (2,), "all_reduce", 4, (0, 1, 3)),
    "ran_ahead": ("mismatch", (0, 1), "broadcast", 4, (0, 1, 2, 3)),
    "other_size": ("mismatch", (0, 2), "all_reduce", 4, (0, 1, 2, 3)),
    "chain": ("not_called", (3,), "all_reduce", 2, (1,)),
    "not_started": ("not_started", (3,), "all_reduce", 4, (0, 1, 2)),
    "not_started_by_two": ("not_started", (1, 3), "all_reduce", 4, (0, 2)),
    "missing_dump": ("insufficient_data", (), "all_reduce", 4, (0, 1, 3)),
    "other_operation": ("mismatch", (0, 1), "all_reduce", 4, (0, 1, 2, 3)),
    "circle": ("deadlock", (0, 1), "all_reduce", 1, (0,)),
    "all_started": ("not_ended", (), "all_reduce", 4, (0, 1, 2, 3)),
    "receive_without_send": ("not_called", (1,), "all_reduce", 4, (2, 3)),
    "pipeline_batch": ("not_called", (1,), "recv", 2, (0,)),
}


def facts(answer):
    operation = answer.operation
    return answer.reason, answer.named, operation.operation, operation.number, operation.waiting


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_way_to_hang_is_explained(name, form, tmp_path):
    assert facts(explain_dumps(write_dumps(tmp_path, SCENARIOS[name](), form))) == TRUTH[name]


@pytest.mark.parametrize(
    ("name", "named", "operation", "number"),
    [
        ("not_called", (2,), "all_reduce", 4),
        ("not_called_json", (2,), "all_reduce", 4),
        ("mesh", (3,), "all_reduce", 2),
        ("caught", (1,), "all_reduce", 5),
    ],
)
def test_a_real_job_names_the_rank_that_has_not_called(name, named, operation, number):
    reason, *rest, _ = facts(explain_dumps([REAL / name]))
    assert (reason, *rest) == ("not_called", named, operation, number)


def test_a_real_job_names_both_sides_of_another_operation():
    answer = explain_dumps([REAL / "other_size"])
    assert (answer.reason, answer.named) == ("mismatch", (0, 1))
    assert "rank 1: all_gather of 4 Float; rank 0 and 2 more: all_reduce of 8 Float" in answer.sentence


def test_a_real_circle_names_no_rank_as_gloo_lists_no_process_groups():
    answer = explain_dumps([REAL / "circle"])
    assert (answer.reason, answer.named) == ("insufficient_data", ())
    assert "no file lists its other ranks" in answer.sentence
    assert any("Gloo" in note for note in answer.notes)


def test_calls_whose_start_is_not_recorded_are_no_gpu_that_has_not_begun(tmp_path):
    job = [recorder.call(state=SCHEDULED) for recorder in ranks(timed=False)]
    answer = explain_dumps(write_dumps(tmp_path, job))
    assert (answer.reason, answer.named) == ("insufficient_data", ())
    assert "whether their GPUs began it is not recorded" in answer.sentence


def test_a_rank_that_has_not_called_is_named_where_starts_are_not_recorded(tmp_path):
    job = ranks(timed=False)
    for rank in (0, 1, 2):
        job[rank].call(state=SCHEDULED)
    answer = explain_dumps(write_dumps(tmp_path, job))
    assert (answer.reason, answer.named) == ("not_called", (3,))


def test_the_answer_shows_the_program_first_and_what_the_named_rank_called_last(tmp_path):
    answer = explain_dumps(write_dumps(tmp_path, SCENARIOS["not_called"]()))
    text = lines(answer)
    assert text[0].startswith("Rank 2 has not called all_reduce 4 of default_pg (process group 0), in which 3 ranks")
    at = text.index("  stack     rank 2, named, in all_reduce 3 of default_pg, which has ended:")
    assert text[at + 1].strip().startswith("train_step at /job/train.py:")
    assert not any("site-packages" in line for line in text)
    assert any("[8, 4] -> [8, 4] Float; waits since 2023-11-14 22:13:23 UTC, and fails after 600 s" in x for x in text)


def test_waits_in_other_process_groups_are_shown_as_a_chain(tmp_path):
    answer = explain_dumps(write_dumps(tmp_path, SCENARIOS["chain"]()))
    assert "In all, 3 ranks wait" in answer.sentence
    assert answer.chain == (
        "Rank 0 waits in all_reduce 2 of dp (process group 3) for rank 2, which has not called it.",
        "Rank 2 waits in all_reduce 2 of tp (process group 2) for rank 3, which has not called it.",
    )


def test_a_subset_of_ranks_names_the_one_that_is_behind_and_lists_the_others(tmp_path):
    job = SCENARIOS["not_called"]()
    answer = explain_dumps(write_dumps(tmp_path, job[1:3]))
    assert answer.named == (2,)
    assert answer.absent == {0: "it has no dump", 3: "it has no dump"}


def test_a_full_buffer_keeps_the_answer(tmp_path):
    job = ranks(steps=40)
    for rank in (0, 1, 3):
        job[rank].call(state=STARTED)
    assert facts(explain_dumps(write_dumps(tmp_path, job, most=5))) == ("not_called", (2,), "all_reduce", 41, (0, 1, 3))


def test_a_full_buffer_without_calls_of_a_process_group_counts_as_behind_in_it(tmp_path):
    groups = WORLD | {"1": ("dp", [0, 1])}
    job = [Recorder(rank, groups).call(group="1").steps(20) for rank in (0, 1)]
    job[0].call(group="1", state=STARTED)
    job[1].steps(5)
    write_dumps(tmp_path, job[:1])
    write_dumps(tmp_path, job[1:], most=5)
    answer = explain_dumps([tmp_path])
    assert (answer.named, answer.operation.process_group, answer.operation.number) == ((1,), "dp (process group 1)", 2)


def test_a_receive_waits_for_its_send_where_the_buffer_was_full(tmp_path):
    job = [Recorder(rank, {"0": ("default_pg", [0, 1])}).steps(20) for rank in (0, 1)]
    job[0].call("recv", STARTED, peer=1)
    answer = explain_dumps(write_dumps(tmp_path, job, most=5))
    assert (answer.reason, answer.named) == ("not_called", (1,))
    assert answer.sentence.startswith("Rank 1 has not called the send of what rank 0 receives")


def test_ranks_of_one_name_of_several_process_groups_are_kept_apart(tmp_path):
    groups = [WORLD | {"7": ("tp", pair)} for pair in ([0, 1], [2, 3])]
    job = [Recorder(rank, groups[rank // 2]).call(group="7") for rank in range(4)]
    job[2].call(group="7", state=STARTED)
    answer = explain_dumps(write_dumps(tmp_path, job))
    assert (answer.named, answer.operation.waiting) == ((3,), (2,))


PAIRS = WORLD | {"1": ("first", [0, 1]), "2": ("second", [0, 1])}


@pytest.mark.parametrize("timed", [True, False])
def test_two_groups_launched_in_another_order_are_a_deadlock(timed, tmp_path):
    job = ranks(2, PAIRS, timed)
    for recorder, groups in zip(job, ("12", "21"), strict=True):
        recorder.call(group=groups[0], state=STARTED).call(group=groups[1], state=SCHEDULED)
    answer = explain_dumps(write_dumps(tmp_path, job))
    assert (answer.reason, answer.named) == ("deadlock", (0, 1))
    assert "rank 0 in all_reduce 1 of first (process group 1), rank 1 in all_reduce 1 of second" in answer.sentence
    assert any("rests on the order of the calls" in note for note in answer.notes) is not timed


def test_two_groups_launched_in_one_order_are_no_deadlock(tmp_path):
    job = ranks(2, PAIRS, timed=False)
    for recorder in job:
        recorder.call(group="1", state=SCHEDULED).call(group="2", state=SCHEDULED)
    answer = explain_dumps(write_dumps(tmp_path, job))
    assert (answer.reason, answer.named, answer.notes) == ("insufficient_data", (), ())


def test_uneven_sizes_of_an_all_to_all_are_no_mismatch(tmp_path):
    job = [recorder.call("all_to_all", STARTED, shape=(recorder.rank + 1,)) for recorder in ranks()]
    assert explain_dumps(write_dumps(tmp_path, job)).reason == "not_ended"


def test_ranks_that_do_not_end_what_others_ended_are_shown_where_starts_are_not_recorded(tmp_path):
    job = [recorder.call(state=SCHEDULED if recorder.rank else COMPLETED) for recorder in ranks(timed=False)]
    answer = explain_dumps(write_dumps(tmp_path, job))
    assert answer.named == ()
    assert answer.sentence.startswith(
        "Ranks 1 to 3 do not end all_reduce 4 of default_pg (process group 0), which 1 of"
    )


def test_a_rank_that_does_not_end_what_others_ended_is_named(tmp_path):
    job = [recorder.call(state=COMPLETED if recorder.rank else STARTED) for recorder in ranks()]
    answer = explain_dumps(write_dumps(tmp_path, job))
    assert (answer.reason, answer.named) == ("not_ended", (0,))
    assert answer.sentence == "Rank 0 began all_reduce 4 of default_pg (process group 0) and does not end it."


def test_a_send_without_receive_names_the_receiver_and_shows_where_the_sender_waits(tmp_path):
    job = ranks(2, {"0": ("default_pg", [0, 1])})
    job[1].call("send", STARTED, peer=0)
    answer = explain_dumps(write_dumps(tmp_path, job))
    assert (answer.reason, answer.named) == ("not_called", (0,))
    assert answer.sentence.startswith("Rank 0 has not called the receive of what rank 1 sends to it in default_pg")
    assert [stack.operation for stack in answer.stacks] == [
        "all_reduce 3 of default_pg, which has ended", "send 1 of default_pg",
    ]  # fmt: skip
    [call] = answer.calls
    assert (call.rank, call.reason, call.operation, call.process_group) == (
        0, "not_called", "Send", "default_pg (process group 0)",
    )  # fmt: skip


def test_a_job_without_open_calls_names_no_rank(tmp_path):
    answer = explain_dumps(write_dumps(tmp_path, [recorder.call(state=COMPLETED) for recorder in ranks()]))
    assert (answer.reason, answer.named, answer.operation) == ("no_operation", (), None)
    assert answer.sentence == "No rank waits in an operation that the files show."


def test_two_dumps_of_one_rank_count_once_and_the_longer_one_counts(tmp_path):
    job = SCENARIOS["not_called"]()
    paths = write_dumps(tmp_path, job)
    (tmp_path / "old").mkdir()
    older = write_dumps(tmp_path / "old", [ranks()[0]])
    answer = explain_dumps([*paths, *older])
    assert answer.named == (2,)
    assert [text for text in answer.unreadable if "is of rank 0 too" in text and text.startswith(str(older[0]))]


def test_the_answer_is_one_json_object_or_text(tmp_path, capsys):
    write_dumps(tmp_path, SCENARIOS["circle"]())
    assert print_standstill(trace_files([tmp_path])[0], True) == OK
    value = json.loads(capsys.readouterr().out)
    assert (value["reason"], value["named"], value["operation"]["process_group"]) == (
        "deadlock", [0, 1], "first (process group 1)",
    )  # fmt: skip
    assert print_standstill(trace_files([tmp_path])[0], False) == OK
    assert capsys.readouterr().out.startswith("Ranks 0 to 1 wait for each other: rank 0 in all_reduce 1 of first")


def test_files_that_are_no_dumps_are_named_with_the_reason(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(NothingReadable, match=r"neither JSON"):
        explain_dumps([tmp_path])
    assert print_standstill({tmp_path / "absent": Format.FLIGHT_RECORDER}, False) == BAD_INPUT
    assert "absent: cannot be read (No such file or directory)" in capsys.readouterr().err


def test_an_unreadable_dump_does_not_hide_the_others(tmp_path):
    paths = write_dumps(tmp_path, SCENARIOS["not_called"]())
    paths[3].write_bytes(paths[3].read_bytes()[:1000])
    answer = explain_dumps(paths)
    assert answer.named == (2,)
    assert answer.absent == {3: "it has no dump"}
    [reason] = answer.unreadable
    assert reason.startswith(f"{paths[3]}: the pickle of 1,000 bytes is damaged")


@pytest.mark.parametrize(("retired", "sends", "is_open"), [(False, 0, True), (True, 0, False), (False, 1, False)])
def test_a_completed_receive_is_open_only_unconfirmed_and_without_its_send(retired, sends, is_open, tmp_path):
    job = ranks()
    job[0].call("recv", COMPLETED, peer=1)
    job[0].entries[-1]["retired"] = retired
    for _ in range(sends):
        job[1].call("send", COMPLETED, peer=0)
    answer = explain_dumps(write_dumps(tmp_path, job))
    assert (answer.named == (1,)) == is_open
    assert ("has not called the send" in answer.sentence) == is_open
