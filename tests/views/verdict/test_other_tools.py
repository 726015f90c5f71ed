"""Verdicts on files of other tools than PyTorch's profiler: recorded with known faults, or with nothing to find."""

import lzma
from pathlib import Path

import pytest

from drumline.producers.foreign.read_traces import one_format
from drumline.producers.foreign.recognise import recognise, trace_files
from drumline.streams.core.thresholds import StragglerConfig
from drumline.views.verdict.answer_text import answer_sentence, budget_note, coverage_lines, evidence_lines
from drumline.views.verdict.evaluation import evaluate_job
from drumline.views.verdict.recorded_job import read_job

DATA = Path(__file__).parents[2] / "data/foreign"


def verdict(tmp_path, *names):
    files = []
    for name in names:
        files.append(tmp_path / Path(name).stem)
        files[-1].write_bytes(lzma.decompress((DATA / name).read_bytes()))
    return evaluate_job(read_job(files, one_format(trace_files(files)[0]), "job"), StragglerConfig(window_steps=20))


def test_a_rank_that_sleeps_is_named_from_inspector_logs_at_what_it_costs(tmp_path):
    result = verdict(tmp_path, "inspector/node-a-rank0.log.xz", "inspector/node-a-rank1.log.xz")
    assert result.answer == "named"
    named = result.named[0]
    assert named.rank == 1
    # The fault begins in the 360th of 720 steps, one for each of the six collectives of a training step.
    assert named.first_step >= 340
    assert 0.10 < named.share < 0.13  # 6.05 of 31.7 ms in the second half: 10.6 %
    texts = [answer_sentence(result), budget_note(result), *named.evidence, *(t for _, t in evidence_lines(result))]
    assert not [text for text in texts if "step" in text]
    assert "us a collective" in texts[0]
    assert "Steps are not marked, and all collectives are alike" in " ".join(coverage_lines(result))


def test_an_export_without_blobs_has_budgets_and_insufficient_data(tmp_path):
    result = verdict(tmp_path, "nsys/mfu_2gpu_before.sqlite.xz")
    assert (result.answer, len(result.budgets)) == ("insufficient", 2)
    assert result.reason == "its ranks met in no collective of NCCL"


@pytest.mark.parametrize("rank", [0, 1])
def test_one_log_of_two_is_insufficient_data(tmp_path, rank):
    result = verdict(tmp_path, f"inspector/node-a-rank{rank}.log.xz")
    assert result.answer == "insufficient"
    assert not result.named


def test_a_name_of_a_file_with_several_processes_is_of_none_of_them(tmp_path):
    path = tmp_path / "rank_1_of_2.sqlite"
    path.write_bytes(lzma.decompress((DATA / "nsys/mfu_2gpu_before.sqlite.xz").read_bytes()))
    job = read_job([path], recognise(path), "job")
    assert job.ranks == [0, 1]
