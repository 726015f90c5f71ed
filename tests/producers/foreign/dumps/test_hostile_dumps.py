"""Hostile and damaged dumps give a reason each: nothing in them is executed, and memory is bounded."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies
from support.dumped_jobs import ranks, ras_answer, ras_rank, write_dumps

from drumline.producers.foreign.dumps import bounded_values, restricted_pickle
from drumline.producers.foreign.dumps.bounded_values import BadDump
from drumline.producers.foreign.dumps.flight_recorder import read_flight_recorder
from drumline.producers.foreign.dumps.ras import read_ras
from drumline.producers.foreign.dumps.restricted_pickle import BadPickle, unpickle
from drumline.producers.foreign.recognise import Format, recognise
from drumline.producers.replay.parquet import BadTrace


class Command:
    """Runs a command where its pickle is loaded."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def written(folder, dump, form="pickle"):
    path = folder / "nccl_trace_rank_0"
    if form == "json":
        path.write_text(json.dumps(dump))
    else:
        path.write_bytes(pickle.dumps(dump, 2))
    return path


@pytest.mark.parametrize("protocol", range(2, 6))
def test_code_in_a_pickle_is_not_executed(protocol, tmp_path):
    mark = tmp_path / "executed"
    dump = {**ranks()[0].dump(), "nccl_comm_state": Command(f"touch {mark}")}
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump, protocol))
    pickle.loads(path.read_bytes())
    assert mark.exists()  # the pickle works, where it is executed
    mark.unlink()
    with pytest.raises(BadDump, match="nothing of it was executed"):
        read_flight_recorder(path)
    assert not mark.exists()


@pytest.mark.parametrize("code", [0, 1])
def test_pickles_of_the_first_protocols_are_no_dumps(code, tmp_path):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(Command("false"), code))
    with pytest.raises(BadTrace, match="neither JSON"):
        recognise(path)
    with pytest.raises(BadDump, match="no valid JSON"):
        read_flight_recorder(path)


@pytest.mark.parametrize("name", ["GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX",
                                  "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4"])  # fmt: skip
def test_each_instruction_that_executes_is_named(name):
    with pytest.raises(BadPickle, match=f"its instruction {name} would run code"):
        unpickle(b"\x80\x02" + getattr(pickle, name) + b"os\nsystem\n.")


def test_values_are_those_of_pythons_reader():
    value = {"a": [1, -5, 1 << 40, 2.5, None, True, False, "ü", (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}], 7: []}
    value["b"] = value["a"]
    value["many"] = {number: [str(number)] * 3 for number in range(3000)}
    for protocol in range(2, 6):
        read = unpickle(pickle.dumps(value, protocol))
        assert read == value
        assert read["b"] is read["a"]


_PLAIN = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers(-(1 << 70), 1 << 70) | strategies.text()
    | strategies.floats(allow_nan=False),
    lambda inner: strategies.lists(inner) | strategies.lists(inner).map(tuple)
    | strategies.dictionaries(strategies.text() | strategies.integers(), inner),
)  # fmt: skip


@given(_PLAIN, strategies.integers(2, 5))
def test_any_plain_value_is_read_as_python_reads_it(value, protocol):
    assert unpickle(pickle.dumps(value, protocol)) == value


@given(strategies.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_reason(content):
    with suppress(BadPickle):
        unpickle(b"\x80\x02" + content)


def test_each_cut_of_a_dump_gives_a_reason(tmp_path):
    for form in ("pickle", "json"):
        data = write_dumps(tmp_path, [ranks(steps=60)[0]], form)[0].read_bytes()
        assert len(data) > 10_000
        path = tmp_path / "cut_0"
        for size in range(0, len(data), 1000):
            path.write_bytes(data[:size])
            with pytest.raises(BadDump, match=r"the file is empty|is damaged|no valid JSON"):
                read_flight_recorder(path)


def test_each_cut_of_an_answer_of_ras_gives_a_reason(tmp_path):
    data = json.dumps(ras_answer(([ras_rank(rank) for rank in range(40)], []))).encode()
    path = tmp_path / "ras.json"
    for size in range(0, len(data), 1000):
        path.write_bytes(data[:size])
        with pytest.raises(BadDump, match=r"the file is empty|no valid JSON"):
            read_ras(path)


def outcome_of(path):
    """The rank of a dump, or the reason."""
    try:
        return read_flight_recorder(path).rank
    except BadDump as error:
        return str(error)


def test_random_damage_gives_a_reason_or_a_dump(tmp_path):
    data = write_dumps(tmp_path, [ranks(steps=20)[0]])[0].read_bytes()
    path = tmp_path / "damaged_0"
    for at in range(0, len(data), 37):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :])
        outcome = outcome_of(path)
        assert outcome == 0 or str(outcome).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["time_created_ns", "time_discovered_started_ns", "timeout_ms"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "soon", 1 << 80])
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_time_that_is_none_is_left_out_with_the_reason(name, value, form, tmp_path):
    dump = ranks()[0].dump()
    dump["entries"][1][name] = value
    read = read_flight_recorder(written(tmp_path, dump, form))
    assert len(read.calls) == 3
    assert read.defects == (f"entry 1: {name} is no time, and is left out",)


@pytest.mark.parametrize("name", ["collective_seq_id", "record_id", "profiling_name", "process_group"])
@pytest.mark.parametrize("value", [float("nan"), None, [], -1, True])
def test_an_entry_that_cannot_be_placed_is_left_out_with_the_reason(name, value, tmp_path):
    dump = ranks()[0].dump()
    dump["entries"][1][name] = value
    read = read_flight_recorder(written(tmp_path, dump))
    assert [call.number for call in read.calls] == [1, 3]
    [defect] = read.defects
    assert defect.startswith(f"entry 1 is left out: {name}")


def test_a_file_without_usable_entries_is_none(tmp_path):
    dump = ranks()[0].dump()
    for entry in dump["entries"]:
        entry["profiling_name"] = 3
    with pytest.raises(BadDump, match="none of its 3 entries can be used; entry 0 is left out: profiling_name"):
        read_flight_recorder(written(tmp_path, dump))


def test_many_defects_are_counted(tmp_path):
    dump = ranks(steps=20)[0].dump()
    for entry in dump["entries"]:
        entry["timeout_ms"] = float("nan")
    read = read_flight_recorder(written(tmp_path, dump))
    assert read.defects[-1] == "15 more values of it cannot be used"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x02]}Ns.", "a mapping has a key|is damaged"),
        (b"\x80\x02})\x85Ns.", "a key that is neither text nor a whole number"),
        (b"\x80\x02}(K\x01K\x02)K\x03u.", "a key that is neither text nor a whole number"),
        (b"\x80\x02N.", "holds a NoneType and not a mapping"),
        (b"[1, 2]", "holds a list and not a mapping"),
        (b"{}", "has neither entries nor pg_config"),
        (b'{"entries": 3}', "its entries are no list"),
        (b'{"version": "1.5", "entries": []}', "is of version 1.5; drumline reads 2.0 and later"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": "\xff"}', "no valid JSON"),
        (b"\x00" * 100, "no valid JSON"),
    ],
)
def test_other_content_gives_a_reason(content, reason, tmp_path):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)
    with pytest.raises(BadDump, match=reason):
        read_flight_recorder(path)


def test_tuples_in_tuples_are_no_key_and_end_no_process():
    nested = b"\x80\x02})" + b"\x85" * 1_000_000 + b"Ns."
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from drumline.producers.foreign.dumps.restricted_pickle import unpickle\n"
         "try: unpickle(sys.stdin.buffer.read())\nexcept ValueError as error: print(error)"],
        input=nested, capture_output=True, check=True,
    )  # fmt: skip
    assert b"a key that is neither text" in done.stdout


def test_a_large_place_in_the_memo_takes_no_memory():
    """Python's reader in C would reserve 64 GB."""
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from drumline.producers.foreign.dumps.restricted_pickle import unpickle\n"
        r"assert unpickle(b'\x80\x02}r\xff\xff\xff\xff.') == {}"
    )
    subprocess.run([sys.executable, "-c", limited], check=True)


def test_the_number_of_values_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(restricted_pickle, "MOST_INSTRUCTIONS", 1000)
    monkeypatch.setattr(bounded_values, "MOST_VALUES", 1000)
    for content in (b"\x80\x02" + b"]" * 2000, b"[" + b"[]," * 2000 + b"[]]"):
        path = tmp_path / "bomb_0"
        path.write_bytes(content)
        with pytest.raises(BadDump, match=r"more than [\d,]+ values"):
            read_flight_recorder(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_values, "MOST_BYTES", 1 << 20)
    path = tmp_path / "large_0"
    path.write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(BadDump, match="larger than 1 MiB"):
        read_flight_recorder(path)


def test_a_folder_or_a_missing_file_gives_a_reason(tmp_path):
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "none_0", "No such file")):
        with pytest.raises(BadDump, match=reason):
            read_flight_recorder(path)


def test_what_ras_did_not_print_whole_is_left_out_with_the_reason(tmp_path):
    report = ras_answer(([ras_rank(0), ras_rank(1)], []), ([ras_rank(0)], []))
    del report["communicators"][1]["size"]
    report["communicators"][0]["ranks"][1]["pid"] = None
    path = Path(tmp_path / "ras.json")
    path.write_text(json.dumps(report))
    read = read_ras(path)
    assert [len(communicator.ranks) for communicator in read.communicators] == [1]
    assert read.defects == (
        "communicator 0, ranks: entry 1 is left out, as its rank, pid, nvml_dev or status is missing",
        "communicator 1 is left out: it has no size",
    )
    path.write_text('{"communicators": 4, "nccl_version": "2.28.9"}')
    assert recognise(path) is Format.RAS
    with pytest.raises(BadDump, match="has no list of communicators"):
        read_ras(path)
