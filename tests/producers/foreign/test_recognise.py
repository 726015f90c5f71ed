"""Formats are recognised by what files contain, whatever their names are."""

import gzip
import json
import pickle
import sqlite3
from pathlib import Path

import pytest
from support.kineto_files import small_job, trace_file

from drumline.producers.foreign.read_traces import one_format, read_traces
from drumline.producers.foreign.recognise import Format, recognise, trace_files
from drumline.producers.replay.parquet import BadTrace

TRACES = Path(__file__).parents[2] / "data"
DUMP = {"pg_config": {"0": {}}, "entries": [{"collective_seq_id": 1, "state": "started"}]}


def nsys_export(path, table="StringIds"):
    base = sqlite3.connect(path)
    base.execute(f"CREATE TABLE {table} (id INTEGER, value TEXT)")
    base.commit()
    base.close()


CONTENTS = {
    Format.KINETO: trace_file(small_job()[0]).encode(),
    Format.FLIGHT_RECORDER: json.dumps(DUMP).encode(),
    Format.INSPECTOR: b'{"header": {"id": "0x1"}, "coll_perf": {"coll_sn": 1}}\n',
    Format.RAS: json.dumps({"nccl_version": "2.28.7", "communicators_count": 1, "communicators": []}).encode(),
}


@pytest.mark.parametrize("form", CONTENTS)
@pytest.mark.parametrize("packed", [False, True])
def test_text_is_recognised_plain_and_packed(tmp_path, form, packed):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(CONTENTS[form]) if packed else CONTENTS[form])
    assert recognise(path) is form


def test_binary_files_are_recognised(tmp_path):
    nsys_export(tmp_path / "report")
    (tmp_path / "dump").write_bytes(pickle.dumps(DUMP))
    assert recognise(tmp_path / "report") is Format.NSYS
    assert recognise(tmp_path / "dump") is Format.FLIGHT_RECORDER
    assert recognise(TRACES / "foreign" / "operations" / "trace-ST.parquet") is Format.OPERATION_TABLE
    assert recognise(TRACES / "traces" / "fsdp") is Format.RECORDING


def test_events_behind_many_process_groups_are_recognised(tmp_path):
    groups = [{"pg_name": str(i), "ranks": list(range(512))} for i in range(100)]
    info = {"rank": 0, "world_size": 512, "pg_config": groups}
    text = json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": []})
    (tmp_path / "t.json").write_text(text)
    assert text.index("traceEvents") > 1 << 16
    assert recognise(tmp_path / "t.json") is Format.KINETO


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"hello", "neither JSON nor another format"),
        (b'{"a": 1}', "none of the formats"),
        (pickle.dumps([1, 2]), "a pickle, but not of PyTorch's Flight Recorder"),
        (gzip.compress(b'{"traceEvents": []}' * 99, mtime=0)[:40], "cut off"),
        (b"SQLite format 3\0" + b"\xff" * 100, "SQLite"),
    ],
    ids=("empty", "text", "other JSON", "pickle", "gzip cut off", "broken SQLite"),
)
def test_what_is_not_recognised_has_a_reason(tmp_path, content, reason):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(BadTrace, match=reason) as error:
        recognise(path)
    assert str(path) in str(error.value)


def test_a_foreign_database_is_no_export(tmp_path):
    nsys_export(tmp_path / "other.sqlite", "users")
    with pytest.raises(BadTrace, match="not an export of Nsight Systems"):
        recognise(tmp_path / "other.sqlite")


def test_a_pickle_is_never_opened(tmp_path):
    class Runs:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "dump").write_bytes(pickle.dumps([Runs(), "pg_config"]))
    recognise(tmp_path / "dump")
    assert not (tmp_path / "ran").exists()


def test_a_folder_stands_for_its_files_and_a_pattern_for_its_matches(tmp_path):
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_text(trace_file(small_job()[0], rank, 3))
    (tmp_path / "notes.txt").write_text("not a trace")
    files, notes = trace_files([tmp_path])
    assert [path.name for path in files] == ["rank0.json", "rank1.json", "rank2.json"]
    assert len(notes) == 1
    assert "notes.txt" in notes[0]
    assert list(trace_files([tmp_path / "rank[01].json"])[0]) == list(files)[:2]
    with pytest.raises(BadTrace, match="no such file"):
        trace_files([tmp_path / "other*.json"])


def test_files_of_two_formats_are_refused(tmp_path):
    (tmp_path / "a.json").write_bytes(CONTENTS[Format.KINETO])
    (tmp_path / "b.json").write_bytes(CONTENTS[Format.INSPECTOR])
    with pytest.raises(BadTrace, match=r"b\.json is inspector, .*a\.json is kineto"):
        one_format(trace_files([tmp_path / "a.json", tmp_path / "b.json"])[0])


def test_a_dump_of_a_hang_makes_no_recording(tmp_path):
    (tmp_path / "dump").write_bytes(CONTENTS[Format.FLIGHT_RECORDER])
    with pytest.raises(BadTrace, match="dump of a hang"):
        list(read_traces([tmp_path / "dump"], Format.FLIGHT_RECORDER))
