"""Flight Recorder dumps are recognised, and read alike as pickle and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.dumped_jobs import STARTED, Recorder, ranks, ras_answer, ras_rank, write_dumps

from drumline.producers.foreign.dumps.bounded_values import BadDump
from drumline.producers.foreign.dumps.dumped_calls import GroupName, StackFrame
from drumline.producers.foreign.dumps.flight_recorder import read_flight_recorder
from drumline.producers.foreign.recognise import Format, recognise

REAL = Path(__file__).parents[3] / "data" / "flight_recorder"


def test_a_real_dump_has_the_calls_with_shapes_and_stacks():
    dump = read_flight_recorder(REAL / "not_called" / "nccl_trace_rank_0")
    assert (dump.rank, dump.version, dump.is_whole, dump.defects) == (0, "2.10", True, ())
    assert [(call.number, call.has_ended) for call in dump.calls] == [(1, True), (2, True), (3, True), (4, False)]
    call = dump.calls[-1]
    assert (call.backend, call.operation, call.group) == ("gloo", "all_reduce", GroupName("0", "default_pg"))
    assert (call.sizes_in, call.types_in, call.timeout_ms) == (((8,),), ("Float",), 300_000)
    assert call.frames[0].function == "all_reduce"
    assert call.frames[-1].file == "/srv/trainer/hung_job.py"


def test_real_json_equals_the_pickle_but_for_stacks():
    as_pickle = read_flight_recorder(REAL / "not_called" / "nccl_trace_rank_3")
    as_json = read_flight_recorder(REAL / "not_called_json" / "rank_3.json")
    assert as_json.calls == tuple(replace(call, frames=()) for call in as_pickle.calls)
    assert (as_json.rank, as_json.groups) == (as_pickle.rank, as_pickle.groups)


@pytest.mark.parametrize(
    "path", sorted(file for file in REAL.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_every_real_dump_is_recognised_and_read_without_a_defect(path):
    assert recognise(path) is Format.FLIGHT_RECORDER
    assert read_flight_recorder(path).defects == ()


def test_sends_and_receives_have_their_peer_and_their_own_numbers(tmp_path):
    recorder = Recorder(2).call().call("send", peer=3).call("recv", STARTED, peer=1)
    calls = read_flight_recorder(write_dumps(tmp_path, [recorder])[0]).calls
    assert [(call.operation, call.peer, call.number) for call in calls] == [
        ("all_reduce", -1, 1), ("send", 3, 1), ("recv", 1, 2),
    ]  # fmt: skip
    assert (calls[2].has_started, calls[2].has_ended) == (True, False)
    assert calls[0].frames[1] == StackFrame("train_step", "/job/train.py", 20)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("nccl_trace_rank_12", 12), ("rank3.json", 3), ("trace_7.pickle", 7), ("run2_rank_4.fr.pkl", 4)],
)
def test_the_rank_is_the_number_at_the_end_of_the_files_name(name, rank, tmp_path):
    [path] = write_dumps(tmp_path, ranks(1))
    assert read_flight_recorder(path.rename(tmp_path / name)).rank == rank


def test_a_rank_in_the_dump_goes_before_the_files_name(tmp_path):
    path = tmp_path / "trace_9.json"
    path.write_text(json.dumps(ranks(1)[0].dump() | {"rank": 5}))
    assert read_flight_recorder(path).rank == 5


def test_a_file_without_a_rank_gives_a_reason(tmp_path):
    [path] = write_dumps(tmp_path, ranks(1))
    with pytest.raises(BadDump, match="end its name with the rank"):
        read_flight_recorder(path.rename(tmp_path / "trace.pickle"))


def test_json_without_entries_has_no_calls(tmp_path):
    path = tmp_path / "rank_1.json"
    path.write_text('{"version": "2.9", "pg_config": {"0": {"name": "0", "desc": "x", "ranks": "[0, 1]"}}}')
    dump = read_flight_recorder(path)
    assert (dump.calls, dump.groups) == ((), {"0": (0, 1)})


def test_entries_of_an_older_version_have_what_later_ones_add(tmp_path):
    dump = ranks(1)[0].dump() | {"version": "2.1"}
    for entry in dump["entries"]:
        for name in ("is_p2p", "retired", "timeout_ms", "op_id", "input_dtypes", "output_dtypes"):
            del entry[name]
    path = tmp_path / "nccl_trace_rank_0"
    path.write_text(json.dumps(dump))
    read = read_flight_recorder(path)
    assert [(call.number, call.types_in) for call in read.calls] == [(1, ()), (2, ()), (3, ())]
    assert read.defects == ()


def test_an_answer_of_ras_is_recognised_and_is_no_dump(tmp_path):
    path = tmp_path / "ras_1.json"
    path.write_text(json.dumps(ras_answer(([ras_rank(0)], []))))
    assert recognise(path) is Format.RAS


@pytest.mark.parametrize(("completed", "ended"), [(False, [True, True, False]), (True, [True, False, False])])
def test_retired_calls_have_ended_only_where_no_call_is_marked_as_completed(completed, ended, tmp_path):
    dump = ranks(1)[0].dump()
    for entry in dump["entries"]:
        entry |= {"state": "scheduled", "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0}
    dump["entries"][2]["retired"] = False
    if completed:
        dump["entries"][0]["state"] = "completed"
    path = tmp_path / "nccl_trace_rank_0"
    path.write_text(json.dumps(dump))
    assert [call.has_ended for call in read_flight_recorder(path).calls] == ended
