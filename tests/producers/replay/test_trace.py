"""Folders that are no trace, or odd ones: an error that names the file, or the right columns."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.activity_builder import GEMM, Recorder, column, lockstep
from typer.testing import CliRunner

from drumline.producers.replay.trace import BadTrace, load_manifest, read_trace
from drumline.schemas.topics import Topic


@pytest.fixture
def folder(tmp_path):
    return lockstep(ranks=2).write(tmp_path / "trace", ranks=2, phases=[{"phase": "healthy"}])


def rewritten(path, change):
    pq.write_table(change(pq.read_table(path)), path)


def test_phases_are_left_out_unless_asked_for(folder):
    assert "phases" not in load_manifest(folder)
    assert "phases" not in read_trace(folder).manifest
    assert load_manifest(folder, phases=True)["phases"] == [{"phase": "healthy"}]


BROKEN = {
    "no folder": (lambda f: f.rename(f.parent / "gone"), "is not a folder"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
    "manifest cut off": (lambda f: (f / "manifest.json").write_text('{"ranks": ['), "manifest.json"),
    "manifest a list": (lambda f: (f / "manifest.json").write_text("[]"), "not a JSON object"),
    "no ranks": (lambda f: (f / "manifest.json").write_text("{}"), "`ranks` must list"),
    "rank without pid": (lambda f: (f / "manifest.json").write_text('{"ranks": [{"rank": 0}]}'), "pid"),
    "rank twice": (
        lambda f: (f / "manifest.json").write_text(
            json.dumps({"ranks": [{"rank": 0, "pid": 1, "host": "a"}, {"rank": 0, "pid": 2, "host": "a"}]})
        ),
        "each once",
    ),
    "no kernels": (lambda f: (f / "kernel.parquet").unlink(), "kernel.parquet is missing"),
    "not parquet": (lambda f: (f / "memcpy.parquet").write_bytes(b"PAR1 but no more"), "memcpy.parquet"),
    "column gone": (
        lambda f: rewritten(f / "kernel.parquet", lambda t: t.drop_columns(["start"])),
        "columns start are missing",
    ),
    "text for a number": (
        lambda f: rewritten(
            f / "kernel.parquet", lambda t: t.set_column(1, "start", pa.array(["x"] * t.num_rows, pa.string()))
        ),
        "column start is not numeric",
    ),
    "empty values": (
        lambda f: rewritten(
            f / "marker.parquet", lambda t: t.set_column(1, "timestamp", pa.array([None] * t.num_rows, pa.uint64()))
        ),
        "column timestamp has empty values",
    ),
    "payload no binary": (
        lambda f: rewritten(
            f / "marker_payload.parquet", lambda t: t.set_column(2, "payload", pa.array([1] * t.num_rows))
        ),
        "payload is not binary",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_named(folder, name):
    damage, message = BROKEN[name]
    damage(folder)
    with pytest.raises(BadTrace, match=message):
        read_trace(folder)


def test_the_command_ends_with_2_and_the_reason(folder):
    from drumline.cli.record.replay import app

    (folder / "kernel.parquet").unlink()
    result = CliRunner().invoke(app, [str(folder), "--speed", "max"])
    assert result.exit_code == 2
    assert "kernel.parquet is missing" in result.output
    assert CliRunner().invoke(app, [str(folder), "--speed", "fast"]).exit_code == 2


def test_ranks_of_a_trace_keep_their_own_rows(folder):
    trace = read_trace(folder)
    assert [info.pid for info in trace.ranks] == [10, 11]
    assert [a.kernels.rows for a in trace.activities] == [8, 8]
    assert [a.samples.rows for a in trace.activities] == [4, 4]
    assert "rank" not in trace.activities[0].kernels.columns


def test_rows_in_any_order_of_ranks(folder):
    before = read_trace(folder).activities[1]
    rewritten(folder / "kernel.parquet", lambda t: t.sort_by("start"))
    after = read_trace(folder).activities[1]
    assert sorted(column(before.kernels, "start_ns")) == column(after.kernels, "start_ns")


def test_memsets_are_copies_of_their_own_kind(tmp_path):
    recorder = Recorder()
    recorder.kernel(GEMM, 10, 20)
    recorder.memset(30, 35)
    copies = recorder.activity(tmp_path).copies
    assert [column(copies, c)[0] for c in ("kind", "src_kind", "dst_kind", "bytes")] == [64, 0, 3, 4]


def test_records_without_times_are_dropped_and_counted(tmp_path):
    recorder = Recorder()
    recorder.kernel(GEMM, 10, 20)
    recorder.kernel(GEMM, 0, 0)
    activity = recorder.activity(tmp_path)
    assert activity.kernels.rows == 1
    assert activity.invalid == {Topic.KERNEL: 1}


def test_samples_find_their_rank_by_uuid_then_by_index_and_unknown_ones_are_counted(folder):
    def mixed(table):
        uuids = table["uuid"].to_pylist()
        uuids[0] = "GPU-unknown"
        return table.set_column(table.schema.get_field_index("uuid"), "uuid", pa.array(uuids))

    rewritten(folder / "nvml.parquet", mixed)
    trace = read_trace(folder)
    assert trace.unknown_samples == 1
    assert sum(a.samples.rows for a in trace.activities) == 7

    def anonymous(table):
        names = pa.array(["unknown"] * table.num_rows)
        return table.set_column(table.schema.get_field_index("uuid"), "uuid", names)

    rewritten(folder / "nvml.parquet", anonymous)
    assert [a.samples.rows for a in read_trace(folder).activities] == [4, 4]


def test_columns_that_a_recording_lacks_are_zero(folder):
    rewritten(folder / "kernel.parquet", lambda t: t.drop_columns(["registers_per_thread", "cluster_x"]))
    kernels = read_trace(folder).activities[0].kernels
    assert set(column(kernels, "registers")) == {0}


def test_only_the_columns_that_are_needed_are_read(folder):
    assert "registers" not in read_trace(folder, topics={Topic.STEP}).activities[0].kernels.columns
