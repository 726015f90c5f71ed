"""The adapter of vLLM on a fake with the same methods: rows of a known version, one sentence of others."""

import os
import sys

import pytest
from support.fakes.fake_vllm import ASYNCHRONOUS, PROGRAM, write_fake_vllm
from support.recorded_engine import run, wait_for
from support.spool_tables import spool_rows

from drumline.producers.engines.seams import UnknownEngine, method


def served(tmp_path, program=PROGRAM, **more):
    write_fake_vllm(tmp_path / "packages", **more)
    spool = tmp_path / "spool"
    spool.mkdir()
    paths = [str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")]
    done = run([sys.executable, "-c", program], spool, PYTHONPATH=os.pathsep.join(filter(None, paths)))
    assert (done.returncode, done.stdout) == (0, "served\n")
    return spool, done.stderr


def test_requests_and_iterations_of_a_known_version_have_rows(tmp_path):
    spool, warnings = served(tmp_path)
    requests = wait_for(spool, "gpu.request.v1", 3)
    iterations = spool_rows(spool, "gpu.iteration.v1")
    assert warnings == ""
    assert [row["phase"] for row in iterations] == ["prefill", "decode", "decode", "decode"]
    first = iterations[0]
    assert (first["prefill_tokens"], first["output_tokens"], first["kv_used"], first["waiting"]) == (18, 3, 40, 2)
    assert [(r["prompt_tokens"], r["output_tokens"], r["outcome"]) for r in requests] == [
        (n, 4, "length") for n in (5, 6, 7)
    ]
    assert [row["traceparent"][3:7] for row in requests] == ["", "abab", ""]
    assert {row["model"] for row in requests} == {"tiny"}
    assert sum(row["host_ns"] for row in requests) == sum(row["duration_ns"] for row in iterations)
    everything = b"".join(path.read_bytes() for path in spool.rglob("*") if path.is_file())
    assert b"planted" not in everything
    assert b"secret-folder" not in everything


def test_the_batch_that_holds_a_request_after_its_end_is_attributed_to_it(tmp_path):
    spool, _ = served(tmp_path, ASYNCHRONOUS)
    requests = wait_for(spool, "gpu.request.v1", 3)
    iterations = spool_rows(spool, "gpu.iteration.v1")
    assert [row["requests"] for row in iterations] == [3, 3, 3, 2, 1]
    assert sorted(row["iterations"] for row in requests) == [3, 4, 5]
    assert sum(row["host_ns"] for row in requests) == sum(row["duration_ns"] for row in iterations)


def test_an_unknown_version_runs_on_with_one_sentence_and_no_rows(tmp_path):
    spool, warnings = served(tmp_path, version="9.9.1")
    assert set(warnings.splitlines()) == {
        "drumline: iterations and requests are not recorded: vllm 9.9.1 is not known (0.11 to 0.32 are)"
    }
    assert not spool_rows(spool, "gpu.request.v1")


def test_a_known_version_with_another_method_is_left_alone():
    class Scheduler:
        def schedule(self, other):
            """Takes what the tried versions do not have."""

    with pytest.raises(UnknownEngine, match="schedule is not as in the versions"):
        method(Scheduler, "schedule", ["scheduler_output"])
    with pytest.raises(UnknownEngine, match="add_request is not as"):
        method(Scheduler, "add_request", [])
