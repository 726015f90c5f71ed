"""Inspector logs: the operations of a recording, as the plugin of NCCL and RCCL would have logged them."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.foreign_files import beginning, inspector_lines

from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.foreign.inspector.inspector_processes import read_inspector
from drumline.producers.foreign.inspector.records import BadLine, read_record
from drumline.producers.foreign.recognise import Format, recognise
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


def rccl_line(number, source="kernel_gpu"):
    """Return a made-up line in the form that RCCL's plugin writes (format v4.0, verbose), after its sources."""
    at = 1_795_000_000_000_000 + 10_000 * number
    started, stopped = (at + 40, at + 900) if source == "kernel_gpu" else (0, 0)
    kernels = [
        {"channel_id": channel, "kernel_start_ts": started, "kernel_stop_ts": stopped, "kernel_record_ts": stopped}
        for channel in range(2)
    ]
    numbers = [
        {"channel_id": channel, "kernel_start_sn": 2, "kernel_stop_sn": 3, "kernel_record_sn": 4}
        for channel in range(2)
    ]
    return json.dumps(
        {
            "header": {"id": "0x9a1b2c3d4e5f6071", "rank": 3, "n_ranks": 8, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0", "git_rev": "made-up", "dump_timestamp_us": at + 1_000,
                "rec_mechanism": "nccl_profiler_interface", "hostname": "node-a", "pid": 77,
            },
            "coll_perf": {
                "coll": "ReduceScatter", "coll_sn": number, "coll_msg_size_bytes": 4096, "coll_exec_time_us": 860,
                "coll_timing_source": source, "coll_algobw_gbs": 1.5, "coll_busbw_gbs": 1.3,
                "event_trace_sn": {"coll_start_sn": 1, "coll_stop_sn": 5, "kernel_events": numbers},
                "event_trace_ts": {"coll_start_ts": at, "coll_stop_ts": at + 20, "kernel_events": kernels},
            },
        }
    )  # fmt: skip


def test_a_made_up_log_of_rccl_is_recognised_and_read(tmp_path):
    path = log(tmp_path / "node-a-pid77.log", map(rccl_line, range(1, 21)))
    assert recognise(path) is Format.INSPECTOR
    [process] = read_inspector(path)
    assert (process.rank, process.world_size, process.host, process.pid) == (3, 8, "node-a", 77)
    assert process.notes == ()
    assert abs(int(process.activity.kernels["start_ns"][0]) - 1_795_000_000_010_040_000) < 1_000  # whole us
    assert process.activity.payloads.rows == 20


def test_a_log_that_was_timed_on_the_host_is_refused_with_the_reason(tmp_path):
    path = log(tmp_path / "r.log", [rccl_line(number, "collective_cpu") for number in range(20)])
    with pytest.raises(BadTrace, match="the plugin measured on the host"):
        list(read_inspector(path))


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
