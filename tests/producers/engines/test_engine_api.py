"""An engine of one's own below `drumline run`: its calls become rows, and no text of a request leaves the process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.recorded_engine import run, wait_for
from support.spool_tables import spool_rows

PLANTED = "planted-prompt-7f3a"
ENGINE = f"""
import sys, drumline
prompt, answer = "{PLANTED}", "{PLANTED}-answer"
tokens = [31337, 31338, 31339]
for n in range(3):
    with drumline.request(f"id-{{n}}-{PLANTED}", prompt_tokens=3, model="/models/{PLANTED}-m", adapter="a",
                          traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01", engine="e") as request:
        for k in range(4):
            with drumline.iteration({{f"id-{{n}}-{PLANTED}": 3 if k == 0 else 1}}, engine="e",
                                    prefill={{f"id-{{n}}-{PLANTED}": 3}} if k == 0 else None, waiting=n):
                pass
            request.token()
"""


def test_calls_become_rows_without_any_text_of_a_request(tmp_path):
    done = run([sys.executable, "-c", ENGINE], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    requests = wait_for(tmp_path, "gpu.request.v1", 3)
    iterations = spool_rows(tmp_path, "gpu.iteration.v1")
    assert [row["phase"] for row in iterations] == ["prefill", "decode", "decode", "decode"] * 3
    assert [row["iteration"] for row in iterations] == list(range(12))
    assert {(row["engine"], row["role"], row["adapters"] != "") for row in iterations} == {("e", "engine", True)}
    assert [(row["outcome"], row["output_tokens"], row["iterations"]) for row in requests] == [("stop", 4, 4)] * 3
    assert all(0 <= row["queue_ns"] <= row["ttft_ns"] <= row["duration_ns"] for row in requests)
    assert sum(row["host_ns"] for row in requests) == sum(row["duration_ns"] for row in iterations)
    assert len({row["request"] for row in requests}) == 3
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    # The model and the adapter are names that the job gave; everything else of a request stays where it is.
    texts = b"".join(path.read_bytes() for path in files).replace(f"/models/{PLANTED}-m".encode(), b"")
    assert PLANTED.encode() not in texts
    assert b"31337" not in texts


def test_ids_are_plain_where_the_job_allows_it(tmp_path):
    run([sys.executable, "-c", ENGINE], tmp_path, DRUMLINE_SERVING__REQUESTS="plain")
    assert wait_for(tmp_path, "gpu.request.v1", 3)[0]["request"] == f"id-0-{PLANTED}"


@pytest.mark.parametrize("more", [{"DRUMLINE_SERVING__REQUESTS": "off"}, {"DRUMLINE_COLLECT__POLICY": "off"}])
def test_a_job_that_records_nothing_of_engines_runs_as_before(tmp_path, more):
    environment = {**os.environ, "DRUMLINE_SPOOL__ROOT": str(tmp_path), **more}
    command = [sys.executable, "-m", "drumline.cli.app", "run", "--job", "own", "--", sys.executable, "-c", ENGINE]
    assert subprocess.run(command, env=environment, timeout=60).returncode == 0
    time.sleep(1)
    assert not spool_rows(tmp_path, "gpu.request.v1")


def test_outside_of_drumline_run_the_calls_do_nothing(tmp_path):
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DRUMLINE_")}
    done = subprocess.run([sys.executable, "-c", ENGINE], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr, list(Path(tmp_path).iterdir())) == (0, "", [])


def test_an_engine_that_is_killed_leaves_its_iterations_and_lost_requests(tmp_path):
    end = "request.token()\n            if n == 1: import os, time; time.sleep(4); os.kill(os.getpid(), 9)"
    killed = ENGINE.replace("request.token()", end)
    run([sys.executable, "-c", killed], tmp_path)
    requests = wait_for(tmp_path, "gpu.request.v1", 2)
    assert [row["outcome"] for row in requests] == ["stop", "lost"]
    assert len(spool_rows(tmp_path, "gpu.iteration.v1")) == 5
