"""DDP workloads of `drumline bench overhead`: rounds in turn, and the interval of their ratio."""

from math import log
from pathlib import Path
from types import SimpleNamespace

import pytest

from drumline.lab.bench.overhead import benchmark, ddp, ddp_job, ratios
from drumline.lab.bench.result import BenchReport


def test_the_interval_is_students_over_the_ratios_of_rounds():
    ratio, half = ratios.mean_ratio([11.0, 10.0, 12.1], [10.0, 10.0, 10.0])
    assert (ratio, half) == pytest.approx((1.1, 1.1 * 4.303 * log(1.1) / 3**0.5), rel=0.01)  # t of 2 degrees of freedom
    assert ratios.mean_ratio([11.0], [10.0]) == (pytest.approx(1.1), float("inf"))


def test_blocks_that_differ_by_noise_alone_have_no_ratio_above_1():
    fast, slow = [8.0, 12.0, 10.0, 14.0], [12.0, 8.0, 14.0, 10.0]
    assert ratios.mean_ratio(fast, slow)[0] == ratios.mean_ratio(slow, fast)[0] == pytest.approx(1.0)


def test_a_mode_stands_beside_plain_of_the_same_rounds():
    def values(*times):
        return [
            {"ms": ms, "cpu_ms": 2 * ms, "records": 14.0, "untimed": 0.75, "ratio": ms / 10, "mean_ratio": ms / 20}
            for ms in times
        ]

    report = BenchReport("overhead", "", "")
    ratios.add_ddp(report, {"ddp_launch_bound": {"plain": values(10, 10), "light": values(10.05, 10.05)}})
    results = {result.name: result for result in report.results}
    name = "ddp_launch_bound, light: "
    above = results[f"{name}above plain, mean of 2 rounds"]
    assert (above.value, above.target, above.met) == (pytest.approx(0.5), pytest.approx(1.0), True)
    assert results[f"{name}above plain, 95% interval, +-"].target == ratios.WIDEST
    assert results[f"{name}above plain, by the blocks' means, mean of 2 rounds"].value == pytest.approx(-49.75)
    assert results[f"{name}CPU of the process a step"].ratio == pytest.approx(1.005)
    assert results[f"{name}steps with the GPU's times"].value == pytest.approx(25)


def test_recording_on_stands_beside_off_of_the_same_processes():
    plain = [{"ms": 10.0, "cpu_ms": 1.0, "records": 0.0, "ratio": 1.0, "mean_ratio": 1.0}]
    sides = {f"{side}_{key}": 1.0 for side in ("on", "off") for key in ("ms", "cpu_ms")} | {"on_untimed": 0.7}
    pairs = [{"ratio": ratio, "pairs": 6, **sides} for ratio in (1.002, 1.004, 1.006)]
    report = BenchReport("overhead", "", "")
    ratios.add_ddp(report, {"ddp_launch_bound": {"plain": plain, "light": plain, ratios.PAIRED: pairs}})
    results = {result.name: result for result in report.results}
    above = results["ddp_launch_bound, light: recording on above off, 18 pairs of 3 processes"]
    assert (above.value, above.target, above.met) == (pytest.approx(0.4, rel=1e-3), pytest.approx(1.0), True)
    assert results["ddp_launch_bound, light, recording on: steps with the GPU's times"].value == pytest.approx(30)
    half = results["ddp_launch_bound, light: recording on above off, 95% interval, +-"]
    assert (half.value, half.met) == (pytest.approx(4.303 * 0.2 / 3**0.5, rel=0.01), True)
    assert report.notes == [ratios.NOTE]


def test_a_process_switches_its_recording_between_blocks_in_an_order_that_alternates(monkeypatch):
    done = []
    torch = SimpleNamespace(
        cuda=SimpleNamespace(synchronize=lambda: None),
        distributed=SimpleNamespace(barrier=lambda: done.append("barrier")),
    )
    monkeypatch.setattr(ddp_job.marks, "ring", None)
    monkeypatch.setattr(ddp_job.library, "record", lambda on: done.append(on) or True)
    blocks = ddp_job.paired(torch, lambda: done.append("step"), 2, 2)
    block = ["barrier", *["step"] * ddp_job.SWITCHED, "barrier", "step", "step"]
    order = [[*block[:1], on, *block[1:]] for on in (True, False, False, True)]
    assert done == [*(event for events in order for event in events), True]
    assert [len(blocks[side]) for side in ("on", "off")] == [2, 2]
    monkeypatch.setattr(ddp_job.library, "record", lambda on: False)
    with pytest.raises(RuntimeError, match="recording can't be switched"):
        ddp_job.paired(torch, lambda: None, 2, 2)


@pytest.mark.parametrize(("rounds", "sets"), [(2, 1), (1, 2)])
def test_modes_run_in_turn_and_the_order_changes(monkeypatch, tmp_path, rounds, sets):
    ran = []

    class Ranks:
        def __init__(self, mode, workloads, spool):
            self.mode = mode

        def answers(self, seconds):
            return [{"attached": self.mode != "nvrx", "versions": {"interface": "5" if self.mode == "light" else "0"}}]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, workload, steps, seconds):
            if steps not in (ddp.ESTIMATED, ddp.WARM_UP):
                ran.append((self.mode, steps))
            slower = 1.5 ** ((len(ran) + 1) // 2)  # from pair to pair of blocks
            ms = slower * (10.2 if self.mode == "light" else 10.0) if ran else 10.0
            return {"ms": ms, "cpu_ms": 1.0, "records": 0.0}

        def run_pairs(self, workload, steps, pairs, seconds):
            assert (self.mode, pairs % 2) == ("light", 0)
            return [({"ms": 10.1, "cpu_ms": 2.0}, {"ms": 10.0, "cpu_ms": 1.0})] * pairs

        def finish(self):
            pass

    monkeypatch.setattr(ddp, "Ranks", Ranks)
    monkeypatch.setattr(ddp, "BLOCK_S", 0.2)
    modes, workloads = ["plain", "light"], ["ddp_gpu_bound"]
    values, versions = ddp.measure_ddp(rounds, 0.4, modes, workloads, tmp_path, lambda text: None, sets=sets)
    assert [mode for mode, _ in ran] == ["plain", "light", "light", "plain", "light", "plain", "plain", "light"]
    assert {steps for _, steps in ran[:4]} == {20}
    assert [value["ratio"] for value in values["ddp_gpu_bound"]["light"]] == pytest.approx([1.02, 1.02])
    assert (len(values["ddp_gpu_bound"]["light"]), versions) == (2, {"interface": "5"})
    assert [value["ratio"] for value in values["ddp_gpu_bound"][ratios.PAIRED]] == pytest.approx([1.01, 1.01])
    with pytest.raises(RuntimeError, match="nvrx: nothing is attached"):
        ddp.measure_ddp(1, 0.4, ["plain", "nvrx"], ["ddp_gpu_bound"], tmp_path, lambda text: None)


def test_a_rank_that_ends_is_reported_with_the_end_of_its_stderr(monkeypatch, tmp_path):
    monkeypatch.setattr(ddp.sys, "executable", "/bin/false")
    ranks = ddp.Ranks("plain", ["ddp_gpu_bound"], Path(tmp_path))
    with pytest.raises(RuntimeError, match="plain, rank 0: ended"):
        ranks.answers(30)
    ranks.close()


@pytest.mark.parametrize(("mode", "workload"), [("cupti", "ddp_gpu_bound"), ("nvrx", "gpu_bound"), ("x", "gpu_bound")])
def test_modes_that_a_workload_does_not_have_are_named(mode, workload):
    with pytest.raises(ValueError, match=f"{mode}: known are plain"):
        benchmark.bench_overhead(1, 1.0, [mode], [workload], lambda text: None)
