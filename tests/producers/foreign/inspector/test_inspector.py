"""Inspector logs: the operations of a recording, as the plugin of NCCL and RCCL would have logged them."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.foreign_files import beginning, inspector_lines

from drumline.producers.derive.nccl import names as nccl
from drumline.producers.foreign.inspector.inspector_processes import read_inspector
from drumline.producers.foreign.inspector.records import BadLine, read_record
from drumline.producers.replay.nccl_only import derive_light
from drumline.producers.replay.parquet import BadTrace


@pytest.fixture(scope="module")
def recorded():
    return beginning(Path(__file__).parents[3] / "data/traces/mesh-2x2")


@pytest.fixture(scope="module")
def lines(recorded):
    return inspector_lines(recorded)


def log(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_operations_are_those_of_the_recording_in_the_light_tier(recorded, lines, tmp_path):
    for rank, activity in enumerate(recorded.activities):
        [process] = read_inspector(log(tmp_path / f"{rank}.log", lines[rank]))
        got, wanted = derive_light(process.activity), derive_light(activity)
        assert (process.rank, process.world_size, process.pid) == (rank, 2, recorded.ranks[rank].pid)
        assert process.is_light
        assert process.notes == ()
        for name in ("operation", "communicator", "bytes"):
            np.testing.assert_array_equal(got.collectives[name], wanted.collectives[name])
        assert (
            np.abs(got.collectives["start_ns"] - wanted.collectives["start_ns"]).max() <= 2000
        )  # call and start are whole us
        assert wanted.steps.rows - 3 <= got.steps.rows <= wanted.steps.rows  # they are inferred: the first begin later


def test_a_log_of_several_processes_gives_each(lines, tmp_path):
    mixed = [line for pair in zip(*lines.values(), strict=True) for line in pair]
    processes = list(read_inspector(log(tmp_path / "all.log", mixed)))
    assert sorted(process.rank for process in processes) == [0, 1]
    assert sum(process.activity.kernels.rows for process in processes) == len(mixed)


def test_what_collectors_write_at_the_top_is_read_too(lines, tmp_path):
    def flat(line):
        record = json.loads(line)
        return json.dumps({**record.pop("header"), **record.pop("metadata"), **record})

    [process] = read_inspector(log(tmp_path / "flat.log", map(flat, lines[1])))
    assert (process.rank, process.world_size) == (1, 2)


def test_a_log_that_is_not_verbose_names_the_variable(lines, tmp_path):
    def brief(line):
        record = json.loads(line)
        del record["coll_perf"]["event_trace_ts"]
        return json.dumps(record)

    with pytest.raises(BadTrace, match="NCCL_INSPECTOR_DUMP_VERBOSE=1"):
        list(read_inspector(log(tmp_path / "brief.log", map(brief, lines[0]))))


def test_an_unfinished_last_line_is_left_out_and_counted(lines, tmp_path):
    path = log(tmp_path / "cut.log", lines[0])
    path.write_bytes(path.read_bytes()[:-200])
    [process] = read_inspector(path)
    assert process.notes == (f"line {len(lines[0])}: not a JSON object: left out",)
    assert process.activity.kernels.rows == len(lines[0]) - 1


def test_a_log_cut_anywhere_is_read_or_has_a_reason(lines, tmp_path):
    path = log(tmp_path / "cut.log", lines[0][:20])
    whole = path.read_bytes()
    for size in range(0, len(whole), 100):
        path.write_bytes(whole[:size])
        operations = whole[:size].count(b"}}\n") + whole[:size].endswith(b"}}}")
        if operations:
            [process] = read_inspector(path)
            assert process.activity.kernels.rows == operations
        else:
            with pytest.raises(BadTrace, match=r"cut\.log"):
                list(read_inspector(path))


def test_operations_on_proxies_are_no_operations_of_the_gpu():
    assert read_record('{"header": {}, "proxy_op_perf": {}}') is None


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("coll_exec_time_us", float("nan"), "coll_exec_time_us is not a number"),
        ("coll_exec_time_us", 1e300, "is no time"),
        ("coll_exec_time_us", "12", "is not a number"),
        ("coll_msg_size_bytes", -1, "coll_msg_size_bytes is not a whole number"),
        ("event_trace_ts", {"coll_start_ts": -5}, "coll_start_ts is no time"),
    ],
)
def test_impossible_values_have_a_reason(lines, field, value, reason):
    record = json.loads(lines[0][0])
    record["coll_perf"][field] = value
    with pytest.raises(BadLine, match=reason):
        read_record(json.dumps(record))


@pytest.mark.parametrize("line", ["", "[]", "1", '{"header"', "[" * 100_000, '{"coll_perf": {}}'])
def test_what_is_no_operation_has_a_reason(line):
    with pytest.raises(BadLine):
        read_record(line)


def test_an_operation_is_named_as_nccl_names_it(lines):
    assert {read_record(line).operation for line in lines[0]} <= set(nccl.OPERATIONS)
