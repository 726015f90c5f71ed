"""The adapter of SGLang on a fake with the same methods: rows of a known version, one sentence of others.

DRUMLINE_SGLANG_SOURCES names a folder with VERSION/sglang, as in the wheels that `pip download --no-deps` gets.
"""

import ast
import os
import sys
from pathlib import Path

import pytest
from support.fakes.fake_sglang import CANCELLED_CHUNKS, GPU, LEAVING, PROGRAM, START, write_fake_sglang
from support.recorded_engine import run, wait_for
from support.spool_tables import spool_rows

from drumline.producers.engines.sglang_engine import SEAMS, TRIED

SOURCES = os.environ.get("DRUMLINE_SGLANG_SOURCES", "")
SERVE_ONE = """
scheduler._add_request_to_queue(Req("one", 3, 4))
serve(scheduler)
print("served")
"""


def served(tmp_path, program=PROGRAM, *options, **more):
    write_fake_sglang(tmp_path / "packages", **more)
    spool = tmp_path / "spool"
    spool.mkdir()
    paths = [str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "DRUMLINE_SERVING__REQUESTS": "plain"}
    if program is PROGRAM:
        del environment["DRUMLINE_SERVING__REQUESTS"]
    done = run([sys.executable, "-c", program], spool, **environment)
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
    return spool, done.stderr


def test_requests_and_iterations_of_overlapping_batches_have_rows(tmp_path):
    spool, warnings = served(tmp_path)
    requests = wait_for(spool, "gpu.request.v1", 3)
    iterations = spool_rows(spool, "gpu.iteration.v1")
    assert warnings == ""
    assert [row["iteration"] for row in iterations] == list(range(len(iterations)))
    assert [row["phase"] for row in iterations[:4]] == ["prefill", "mixed", "mixed", "mixed"]
    assert {row["phase"] for row in iterations[4:]} == {"decode"}
    assert [row["prefill_tokens"] for row in iterations[:4]] == [8, 8, 8, 5]
    assert (iterations[0]["waiting"], iterations[0]["kv_total"], iterations[0]["kv_used"]) == (1, 250, 50)
    by_prompt = {row["prompt_tokens"]: row for row in requests}
    assert {n: (row["output_tokens"], row["cached_tokens"]) for n, row in by_prompt.items()} == {
        5: (6, 0), 6: (4, 2), 20: (4, 0)
    }  # fmt: skip
    assert by_prompt[20]["adapter"] == "legal"
    assert by_prompt[5]["traceparent"][3:7] == "abab"
    assert {(row["model"], row["outcome"]) for row in requests} == {("tiny", "length")}
    assert all(0 <= row["queue_ns"] <= row["ttft_ns"] <= row["duration_ns"] for row in requests)
    everything = b"".join(path.read_bytes() for path in spool.rglob("*") if path.is_file())
    assert b"planted" not in everything
    assert b"secret-folder" not in everything


def test_the_batch_that_was_launched_before_a_request_ended_counts_for_it(tmp_path):
    spool, _ = served(tmp_path)
    requests = wait_for(spool, "gpu.request.v1", 3)
    iterations = spool_rows(spool, "gpu.iteration.v1")
    assert sum(row["host_ns"] for row in requests) == sum(row["duration_ns"] for row in iterations)
    assert sum(row["output_tokens"] for row in iterations) == sum(row["output_tokens"] for row in requests)


def test_each_way_in_which_a_request_leaves_gives_its_row(tmp_path):
    spool, warnings = served(tmp_path, LEAVING)
    requests = {row["request"]: row for row in wait_for(spool, "gpu.request.v1", 5)}
    assert warnings == ""
    assert {name: row["outcome"] for name, row in requests.items()} == {
        "stays": "abort", "retracted": "length", "given-up": "abort", "chunks": "abort", "in-queue": "abort"
    }  # fmt: skip
    assert {name: row["preemptions"] for name, row in requests.items() if row["preemptions"]} == {"retracted": 1}
    assert requests["retracted"]["output_tokens"] == 8
    assert sum(row["preempted"] for row in spool_rows(spool, "gpu.iteration.v1")) == 1


def test_a_prompt_that_is_cancelled_while_others_decode_between_its_chunks_has_its_row(tmp_path):
    spool, _ = served(tmp_path, CANCELLED_CHUNKS)
    requests = {row["request"]: row for row in wait_for(spool, "gpu.request.v1", 2)}
    assert (requests["chunks"]["outcome"], requests["chunks"]["output_tokens"]) == ("abort", 0)
    assert requests["stays"]["outcome"] == "length"


def test_drafted_tokens_make_an_iteration_speculative(tmp_path):
    spool, _ = served(tmp_path, START + "scheduler = Scheduler(speculative=True)" + SERVE_ONE)
    wait_for(spool, "gpu.request.v1", 1)
    rows = spool_rows(spool, "gpu.iteration.v1")
    assert {(row["phase"], row["decode_tokens"], row["draft_tokens"]) for row in rows[1:]} == {("speculative", 3, 2)}


@pytest.mark.parametrize(("grammar", "gpu_ms"), [(False, 5), (True, 7)])
def test_gpu_time_is_that_of_the_models_stream_with_sampling_that_was_put_off(tmp_path, grammar, gpu_ms):
    start = f"{GPU}scheduler = Scheduler(grammar={grammar})\nscheduler.forward_stream = Stream()\n"
    spool, _ = served(tmp_path, start + SERVE_ONE)
    [request] = wait_for(spool, "gpu.request.v1", 1)
    rows = spool_rows(spool, "gpu.iteration.v1")
    assert {row["gpu_ns"] for row in rows} == {gpu_ms * 1_000_000}
    assert request["gpu_ns"] == gpu_ms * 1_000_000 * len(rows)


def test_another_rank_has_iterations_without_requests(tmp_path):
    spool, warnings = served(tmp_path, START + "scheduler = Scheduler(rank=1)" + SERVE_ONE)
    rows = wait_for(spool, "gpu.iteration.v1", 5)
    assert (warnings, {row["role"] for row in rows}) == ("", {"worker"})
    assert not spool_rows(spool, "gpu.request.v1")


@pytest.mark.parametrize(
    ("settings", "mode"),
    [("pp_size=2", "pipeline parallelism"), ("disaggregation_mode='decode'", "separate processes for prefill")],
)
def test_a_mode_in_which_a_forward_pass_is_no_iteration_is_left_alone(tmp_path, settings, mode):
    spool, warnings = served(tmp_path, START + f"scheduler = Scheduler({settings})" + SERVE_ONE)
    assert warnings.startswith(f"drumline: iterations and requests are not recorded: sglang with {mode}")
    assert warnings.count("\n") == 1
    assert not spool_rows(spool, "gpu.iteration.v1")


def test_an_unknown_version_runs_on_with_one_sentence_and_no_rows(tmp_path):
    spool, warnings = served(tmp_path, version="0.6.0")
    assert set(warnings.splitlines()) == {
        "drumline: iterations and requests are not recorded: sglang 0.6.0 is not known (0.5.4 to 0.5.23 are)"
    }
    assert not spool_rows(spool, "gpu.request.v1")


@pytest.mark.long
@pytest.mark.skipif(not SOURCES, reason="DRUMLINE_SGLANG_SOURCES names no folder with unpacked wheels")
@pytest.mark.parametrize("version", TRIED)
def test_a_real_version_has_the_methods_and_attributes_that_are_used(version):
    """Reads the source: the real scheduler is imported only where torch and its kernels are."""
    managers = Path(SOURCES) / version / "sglang" / "srt" / "managers"
    methods_of = {}
    for node in ast.walk(ast.parse((managers / "scheduler.py").read_text())):
        if isinstance(node, ast.ClassDef) and node.name == "Scheduler":
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            methods_of = {item.name: [argument.arg for argument in item.args.args][1:] for item in methods}
    assert {name: methods_of[name][: len(parameters)] for name, parameters in SEAMS.items()} == SEAMS
    scheduler, batch = ((managers / f"{name}.py").read_text() for name in ("scheduler", "schedule_batch"))
    ranks = ("self.attn_tp_rank", "self.ps.attn_tp_rank", "get_parallel().attn_tp_rank")
    assert any(text in scheduler for text in ranks)
    for text in ("waiting_queue", "enable_overlap", "forward_stream", "max_total_num_tokens", "page_size", "tp_worker",
                 "token_to_kv_pool_allocator", "tree_cache", "server_args", "model_worker"):  # fmt: skip
        assert f"self.{text}" in scheduler, text
    for text in ("rid", "origin_input_ids", "output_ids", "cached_tokens", "lora_id", "finished_reason"):
        assert f"self.{text}" in batch, text
    for text in ("reqs", "forward_mode", "extend_lens", "decoding_reqs", "chunked_req", "spec_algorithm"):
        assert f"    {text}:" in batch, text
