"""Recorded outputs of py-spy become rows; limits hold whatever a process is called and however deep it is."""

import json
from pathlib import Path

import pytest

from drumline.producers.collector.host_time import timed
from drumline.producers.stacks.folding import MOST_BYTES, MOST_FRAMES, MOST_STACKS, MOST_TEXT, fold
from drumline.producers.stacks.speedscope import BadOutput, PythonFrame, ThreadSamples, read_samples

FOLDER = Path(__file__).parents[2] / "data" / "py_spy"


def recorded(kind):
    [samples], [holders] = (read_samples((FOLDER / f"{kind}{suffix}.json").read_bytes()) for suffix in ("", ".holders"))
    return fold({min(thread.number for thread in samples)}, samples, holders)


def test_a_sleeping_main_thread_has_one_stack_and_its_line():
    stacks = recorded("sleep")
    [row] = stacks.rows
    assert (row.is_main, row.samples, stacks.total, row.gil_samples, stacks.left_out) == (True, 49, 49, 0, 0)
    assert (row.function, row.file, row.line) == ("load", "/job/sleep_train.py", 4)
    assert row.stack.endswith("train (/job/sleep_train.py:7);load (/job/sleep_train.py:4)")
    assert (row.thread, row.caller) == ("MainThread", "load (/job/sleep_train.py:4)")


def test_threads_keep_their_names_and_the_caller_is_no_frame_of_the_library():
    rows = {row.thread: row for row in recorded("lock").rows}
    assert rows["MainThread"].caller == "train (/job/lock_train.py:10)"
    assert not rows["saver"].is_main
    assert "threading.py" in rows["saver"].stack
    assert rows["saver"].caller == "write_checkpoint (/job/lock_train.py:7)"


def test_the_thread_that_holds_the_gil_is_known():
    rows = recorded("gil").rows
    held = {row.thread: sum(r.gil_samples for r in rows if r.thread == row.thread) for row in rows}
    assert held["tokenizer"] > 40 > 9 > held["MainThread"]


def thread(stacks, number=1, name="t"):
    counted = ThreadSamples(str(number), number, name)
    counted.stacks.update(stacks)
    return counted


def frames(*names, file="/job/a.py"):
    return tuple(PythonFrame(name, file, line) for line, name in enumerate(names))


def test_a_deep_stack_keeps_its_innermost_frames():
    [row] = fold({1}, [thread({frames(*(f"f{i}" for i in range(500))): 3})], []).rows
    assert row.stack.count(";") == MOST_FRAMES - 1
    assert row.stack.endswith("f499 (/job/a.py:499)")
    [row] = fold({1}, [thread({frames(*("f" * 128 for _ in range(500))): 3})], []).rows
    assert MOST_TEXT - 200 < len(row.stack) <= MOST_TEXT


def test_a_wait_is_where_the_job_called_it_and_not_in_the_hook_that_measures_it():
    hook = frames("wrapped", file=timed.__code__.co_filename)
    [row] = fold({1}, [thread({(*frames("main", "update"), *hook): 3})], []).rows
    assert (row.stack, row.function) == ("main (/job/a.py:0);update (/job/a.py:1)", "update")


def test_before_python_3_11_the_main_thread_is_the_one_that_runs_a_module():
    main, helper = (ThreadSamples(label, 0, "") for label in ("0x7FC4", "0x7FC5"))
    main.stacks.update({frames("<module>", "train"): 5})
    helper.stacks.update({frames("run", "load"): 5})
    assert [(row.is_main, row.thread, row.thread_id) for row in fold({7}, [helper, main], []).rows] == [
        (True, "MainThread", 0), (False, "", 0),
    ]  # fmt: skip
    assert read_samples(output(thread_name='Thread 0x7FC423DD8B80 ""'))[0][0].number == 0


def test_more_stacks_than_a_record_holds_are_counted():
    stacks = fold({1}, [thread({frames(f"f{i}"): i + 1 for i in range(MOST_STACKS + 7)})], [])
    assert (len(stacks.rows), stacks.left_out, stacks.rows[0].function) == (MOST_STACKS, 7, f"f{MOST_STACKS + 6}")
    long = {frames(*(f"{i}{'é' * 127}" for _ in range(64))): 1 for i in range(MOST_STACKS)}
    stacks = fold({1}, [thread(long)], [])
    assert sum(len(row.stack.encode()) for row in stacks.rows) <= MOST_BYTES
    assert stacks.left_out


@pytest.mark.parametrize(
    ("file", "caller"),
    [
        ("/usr/lib/python3.12/threading.py", ""),
        ("/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py", ""),
        ("/usr/lib/python3/dist-packages/numpy/core.py", ""),
        ("<frozen importlib._bootstrap>", ""),
        ("/home/u/train.py", "inner (/home/u/train.py:7)"),
    ],
)
def test_the_caller_is_the_innermost_frame_of_code_that_is_not_installed(file, caller):
    [row] = fold({1}, [thread({(PythonFrame("inner", file, 7),): 1})], []).rows
    assert row.caller == caller


def output(name="main", file="/job/a.py", line=1, thread_name='Thread 1 "x"', samples=((0,),)):
    frame = {"name": name, "file": file, "line": line, "col": None}
    return json.dumps({
        "shared": {"frames": [frame]}, "profiles": [{"name": thread_name, "samples": [list(s) for s in samples]}],
    }).encode()  # fmt: skip


def test_names_of_a_job_hold_no_control_characters_and_no_separators():
    [[threads]] = read_samples(output(name="a\n\x1b[31m;b\ud800", file="/j;\t/" + "d" * 400 + "/a.py", line=-5,
                                    thread_name='Thread 1 "x\u202e;y"'))  # fmt: skip
    [[frame]] = threads.stacks
    assert (frame.function, threads.name, frame.line) == ("a??[31m?b?", "x??y", 0)
    assert frame.file.isprintable()
    assert ";" not in frame.file
    assert (len(frame.file), frame.file[-5:]) == (256, "/a.py")


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b"\xff", b'{"shared": {"frames": [3]}, "profiles": []}', output(samples=((1,),)),
        output(samples=((-1,),)), output(samples=(("a",),)), output(thread_name="x"), output(name=7),
        output(thread_name=f"Thread {1 << 40}"), b"[" * 100_000,
    ],
)  # fmt: skip
def test_an_output_that_is_none_is_an_error_without_its_bytes(content):
    with pytest.raises(BadOutput, match="not a speedscope file of py-spy"):
        read_samples(content)
