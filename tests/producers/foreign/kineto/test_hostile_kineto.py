"""Files of PyTorch's profiler that are cut off, broken or meant to harm: each ends with a reason, in bounded time."""

import gzip
import json
import random
import re

import pytest
from support.kineto_files import event, kernel, small_job, trace_file

from drumline.producers.derive.rows import derive
from drumline.producers.foreign import bounded_file
from drumline.producers.foreign.kineto import event_chunks, kineto_process
from drumline.producers.foreign.kineto.kineto_process import read_kineto
from drumline.producers.replay.parquet import BadTrace


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def small_chunks(monkeypatch):
    """Runs of events are short, so that small files have many."""
    monkeypatch.setattr(event_chunks, "CHUNK", 1000)


@pytest.mark.parametrize("chunk", [100, 1000, 1 << 22])
def test_a_file_reads_alike_in_any_runs(tmp_path, monkeypatch, chunk):
    path = written(tmp_path / "t.json", trace_file(small_job(steps=20)[0]))
    whole = read_kineto(path)
    monkeypatch.setattr(event_chunks, "CHUNK", chunk)
    again = read_kineto(path)
    assert whole.activity.kernels.rows == 40
    assert again.activity.kernels["start_ns"].tolist() == whole.activity.kernels["start_ns"].tolist()


def test_every_cut_has_a_reason_and_no_part_of_an_event(tmp_path, small_chunks):
    text = trace_file(small_job(steps=30)[0]).encode()
    ends = text.rindex(b"]")
    path, partial = tmp_path / "t.json", []
    for size in range(1, ends, 499):
        with pytest.raises(BadTrace) as error:
            read_kineto(written(path, text[:size]))
        assert str(path) in str(error.value)
        partial += re.findall(r"(\d+) kernels", str(error.value))
    assert max(map(int, partial)) > 50
    assert partial == sorted(partial, key=int)


def test_a_cut_states_byte_and_steps(tmp_path, small_chunks):
    text = trace_file(small_job(steps=30)[0])
    path = written(tmp_path / "t.json", text[: len(text) * 2 // 3])
    with pytest.raises(BadTrace, match=r"byte [\d,]+: .*cut off.*until there: \d+ kernels of steps 10 to 2\d could be"):
        read_kineto(path)


def test_a_packed_file_that_is_cut_off_has_a_reason(tmp_path):
    packed = gzip.compress(trace_file(small_job(steps=200)[0]).encode())
    for size in range(20, len(packed), 997):
        with pytest.raises(BadTrace, match=r"cut off|unreadable"):
            read_kineto(written(tmp_path / "t.json.gz", packed[:size]))


def test_a_gzip_bomb_is_refused_before_it_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_file, "RATIO_FROM", 1 << 20)
    bomb = gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + b" " * (1 << 25))
    with pytest.raises(BadTrace, match="grows to more than 200 times its size"):
        read_kineto(written(tmp_path / "t.json.gz", bomb))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-inf", "nan"])
def test_numbers_that_json_does_not_have_cost_one_event(tmp_path, number):
    text = trace_file(small_job(steps=4)[0] + [event("kernel", "bad", 5_000, 7, correlation=99)])
    assert text.count('"dur": 0.007') == 1
    trace = read_kineto(written(tmp_path / "t.json", text.replace('"dur": 0.007', f'"dur": {number}')))
    assert trace.activity.kernels.rows == 8
    assert trace.left_out == {"kernel: its time is missing or impossible": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1},
        {"ph": "X", "cat": "kernel", "name": ["k"], "ts": 1, "dur": 1},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": [1]},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"correlation": 10**30}},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"grid": {"x": 1}}},
        None,
        7,
    ],
)
def test_an_event_of_wrong_types_is_left_out(tmp_path, wrong):
    first, *events = small_job(steps=4)[0]
    trace = read_kineto(written(tmp_path / "t.json", trace_file([first, wrong, *events])))
    assert trace.activity.kernels.rows == 8
    assert trace.left_out == {"event: a field has the wrong type": 1}


@pytest.mark.parametrize("time", [-1.0, 1e300, 1e17])
def test_an_impossible_time_is_left_out(tmp_path, time):
    events = small_job(steps=4)[0]
    bad = {**event("kernel", "bad", 0, 0, correlation=99), "ts": time}
    trace = read_kineto(written(tmp_path / "t.json", trace_file([*events, bad])))
    assert trace.activity.kernels.rows == 8
    assert sum(trace.left_out.values()) == 1


def test_braces_in_names_and_arrays_of_objects_are_no_ends_of_events(tmp_path, small_chunks):
    names = ['lambda {}, {"ph": 1}', '}, {"name": "x"', "]}, {", '"traceEvents": [']
    events = [
        e
        for i, name in enumerate(names * 20)
        for e in kernel(name, 100_000 * (i + 1), 10, i + 1, Nested=[{"a": [1]}, {"b": 2}, {}], x="}]")
    ]
    trace = read_kineto(written(tmp_path / "t.json", trace_file(events)))
    assert trace.activity.kernels.rows == 80
    assert trace.activity.kernels.dictionaries["names"] == tuple(names)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schemaVersion": 9}, "schemaVersion 9 is not known"),
        ({"distributedInfo": [1]}, "header is not Kineto's"),
    ],
)
def test_an_unknown_header_has_a_reason(tmp_path, change, reason):
    text = json.dumps({**json.loads(trace_file(small_job()[0])), **change})
    with pytest.raises(BadTrace, match=reason):
        read_kineto(written(tmp_path / "t.json", text))


def test_text_that_is_no_json_has_a_place(tmp_path):
    text = trace_file(small_job(steps=9)[0]).replace('"cat": "kernel"', '"cat": kernel', 1)
    at = text.index("kernel", text.index('"cat": kernel'))
    with pytest.raises(BadTrace, match=f"byte {at:,}: no JSON there"):
        read_kineto(written(tmp_path / "t.json", text))


def test_a_file_without_kernels_has_a_reason(tmp_path):
    with pytest.raises(BadTrace, match=r"no GPU kernels; record with ProfilerActivity\.CUDA"):
        read_kineto(written(tmp_path / "t.json", trace_file([event("cpu_op", "aten::add", 1, 1)])))
    with pytest.raises(BadTrace, match="no GPU kernels"):
        read_kineto(written(tmp_path / "t.json", trace_file([])))


@pytest.mark.parametrize("wrong", ['{"args": ' + "[" * 9_000 + "]" * 9_000 + "}", '{"ts": 1e999}'])
def test_values_beyond_all_bounds_have_a_reason(tmp_path, wrong):
    text = trace_file([*small_job(steps=2)[0], "MARK", *small_job(steps=2)[0]]).replace('"MARK"', wrong)
    with pytest.raises(BadTrace, match=r"brackets inside each other|out of range"):
        read_kineto(written(tmp_path / "t.json", text))


def test_damaged_bytes_are_read_or_have_a_reason(tmp_path, small_chunks):
    text, draw = bytearray(trace_file(small_job(steps=9)[0]).encode()), random.Random(1)
    denied = 0
    for _ in range(400):
        damaged = text.copy()
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.choice([*range(0, 256, 16), *b'{}[],":0'])
        try:
            read_kineto(written(tmp_path / "t.json", bytes(damaged)))
        except BadTrace:
            denied += 1
    assert 100 < denied < 400


def test_a_step_with_a_number_beyond_all_bounds_is_no_step(tmp_path):
    names = (f"ProfilerStep#{'9' * 30}", f"step {'9' * 30}")
    events = [event("user_annotation", name, 1_000, 10) for name in names]
    trace = read_kineto(written(tmp_path / "t.json", trace_file([*events, *small_job(steps=3)[0]])))
    assert derive(trace.activity).steps["step"].tolist() == [10, 11, 12]


def test_an_event_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(event_chunks, "CHUNK", 1 << 16)
    monkeypatch.setattr(event_chunks, "MOST_EVENT", 1 << 18)
    text = trace_file([event("cpu_op", "x" * (1 << 20), 1, 1)])
    with pytest.raises(BadTrace, match="without an end of an event"):
        read_kineto(written(tmp_path / "t.json", text))


def test_bytes_that_are_no_text_are_replaced(tmp_path):
    content = trace_file(kernel("MARK", 100_000, 10, 1)).encode().replace(b"MARK", b"k\xff\xfe")
    trace = read_kineto(written(tmp_path / "t.json", content))
    assert trace.activity.kernels.dictionaries["names"] == ("k\ufffd\ufffd",)


def test_more_streams_than_any_job_has_are_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto_process, "MOST_STREAMS", 99)
    events = [e for i in range(100) for e in kernel("k", 1_000 * (i + 20), 9, i + 1, stream=i)]
    with pytest.raises(BadTrace, match=r"on more than 99 streams.*until there: 100 kernels"):
        read_kineto(written(tmp_path / "t.json", trace_file(events)))


def test_as_many_streams_as_kernels_are_read(tmp_path):
    events = [e for i in range(20_000) for e in kernel("ncclKernel_AllReduce_X", 1_000 * (i + 20), 9, i + 1, stream=i)]
    trace = read_kineto(written(tmp_path / "t.json", trace_file(events)))
    assert trace.activity.payloads.rows == 20_000
    assert len(set(trace.activity.payloads["communicator"].tolist())) == 20_000
