"""Benchmarks give results and ratios; how large those are depends on the machine and is no test."""

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from drumline.cli.develop import bench as command_bench
from drumline.lab.bench import runner as command
from drumline.lab.bench.benchmarks import soak
from drumline.lab.bench.benchmarks.codec import BOUNDS_TARGET, bench_codec
from drumline.lab.bench.benchmarks.verdict_latency import first_delays
from drumline.lab.bench.overhead import benchmark as overhead
from drumline.lab.bench.overhead import job as overhead_job
from drumline.lab.bench.overhead import paired
from drumline.lab.bench.processes import profiling as profiled
from drumline.lab.bench.processes import steady_state as steady
from drumline.lab.bench.processes.process_watch import ProcessWatch, over_time
from drumline.lab.bench.processes.replay_process import replaying
from drumline.lab.bench.render import HEAD, MARK, show, write
from drumline.lab.bench.result import BenchReport, Result, machine, percentiles
from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.producers.ipc.buffer_pool import DONE, FREE, STATE, BufferPool

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "bench"
KINDS = sorted(known.callback.__name__ for known in command_bench.app.registered_commands)


def test_codec_results_stand_beside_both_baselines():
    report = bench_codec(DEMO_RECORDING, seconds=0.001, rows=64)
    assert {f.name.split(",")[0] for f in report.results if f.unit == "rows/CPU s"} == {"encode", "decode"}
    bounds = next(result for result in report.results if result.target == BOUNDS_TARGET)
    assert bounds.at_most
    for result in report.results:
        assert np.isfinite(result.value)
        assert result is bounds or result.ratio == pytest.approx(result.value / result.baseline)


def test_a_target_is_met_from_its_side():
    assert Result("rate", 10, "rows/s", target=10).met
    assert not Result("rate", 9, "rows/s", target=10).met
    assert Result("delay", 5, "s", target=5, at_most=True).met
    assert not Result("delay", 6, "s", target=5, at_most=True).met
    assert Result("rate", 1, "rows/s").met is None
    assert Result("rate", np.float64(9), "rows/s", target=10).met is False, "it is printed as JSON"


def test_percentiles_of_nothing_are_nothing():
    assert percentiles([]) == {}
    assert percentiles([1.0, 2.0, 3.0])["p50"] == 2.0


def test_writing_again_replaces_the_page(tmp_path):
    path = tmp_path / "codec.md"
    for value in (1.0, 2.0):
        report = BenchReport("codec", "data", "arrays", notes=["a note"], machine={"processor": "a chip, 2 cores"})
        report.add("encode", value, "rows/s", 4.0, target=3.0)
        write(report, "drumline bench codec", path)
    assert path.read_text() == (
        "<!-- Written by drumline bench. -->\n# codec\n\n`drumline bench codec`\n\nData: data.\n\n"
        "Baseline, in the same run: arrays.\n\n"
        "| metric | drumline | baseline | ratio | target | met |\n|---|---|---|---|---|---|\n"
        "| encode | 2 rows/s | 4 | 0.5x | >= 3 | no |\n\n- a note\n\n"
        "| machine and versions |  |\n|---|---|\n| processor | a chip, 2 cores |\n"
    )


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_each_page_of_results_is_as_a_benchmark_writes_it(page):
    mark, title, _, command, *rest = page.read_text().splitlines()
    assert (mark, title) == (MARK, f"# {page.stem}")
    assert command.strip("`").split()[:2] == ["drumline", "bench"]
    assert command.strip("`").split()[2] in KINDS
    assert "| " + " | ".join(HEAD) + " |" in rest


def test_text_names_the_machine(capsys):
    report = BenchReport("codec", "data", "arrays", machine=machine())
    show(report, Console(width=1_000))
    out = capsys.readouterr().out
    assert f"load before {report.machine['load before']}" in out
    assert re.search(r"memory [1-9]\d* GiB; .*commit [0-9a-f?]+", out)


def test_delay_counts_from_the_first_window_wholly_inside_a_fault():
    def row(first, severity, end_s, seen_s, rank=2):
        return {
            "first_step": first, "last_step": first + 4, "rank": rank, "severity": severity,
            "end_ns": end_s * 10**9, "seen_ns": seen_s * 10**9,
        }  # fmt: skip

    fault = {"first_step": 5, "last_step": 14, "fault_ranks": [2]}
    early = row(0, 3, 1, 2)  # before the fault
    rows = [early, row(5, 0, 2, 3), row(10, 3, 4, 7), row(10, 3, 4, 5, rank=1)]
    assert first_delays([fault], rows, loops=1, steps=20) == [5.0]
    assert first_delays([fault], [early], loops=1, steps=20) == []
    assert first_delays([fault], [row(25, 2, 9, 10)], loops=2, steps=20) == [1.0]


def test_a_leak_shows_over_time():
    assert over_time([1000, 1000, 2000, 4000], unit=1000, slices=2) == "1, 3"
    assert over_time([7]) == "7"
    assert over_time([]) == ""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="this kernel forgets no peaks")
def test_memory_of_one_workload_is_not_taken_for_anothers():
    overhead_job.forget_peak()
    before = overhead_job.peak_mb(os.getpid())
    del [np.ones(20 << 20)][:]
    assert overhead_job.peak_mb(os.getpid()) > before + 150
    overhead_job.forget_peak()
    assert overhead_job.peak_mb(os.getpid()) < before + 50


def test_overhead_stands_beside_plain_and_cupti_alone():
    def mode_run(ms, lock, peak_mb=1_000.0, **more):
        steps = {"ms": [ms] * 100, "cpu": 0.9, "gil_ms": [lock] * 10, "peak_mb": peak_mb}
        return {"seconds": 10.0, "workloads": {"launch_bound": steps}, **more}

    cost = {"thread_s": 0.02, "locked_s": 0.01, "callback_s": 0.001, "decoder_cpu_s": 1.0, "callback_max_us": 9.0,
            "decoder_mb": 90.0, "dropped": 0}  # fmt: skip
    plain = mode_run(10, 0.1, versions={"CUPTI": "130400"})
    runs = {
        "plain": [plain],
        "cupti": [mode_run(11, 0.2)],
        "drumline": [mode_run(11.05, 0.3, 1_040.0, **cost), mode_run(11.05, 0.3, 1_160.0, **cost)],
    }
    report = overhead.build_report(runs, ["launch_bound"])
    results = {result.name: result for result in report.results}
    assert report.machine["CUPTI"] == "130400"
    assert results["launch_bound: drumline above CUPTI alone"].value == pytest.approx(0.5)
    assert results["launch_bound: drumline above CUPTI alone"].met
    memory = results["launch_bound, drumline: memory of the job above plain"]
    assert (memory.value, memory.met) == (160.0, False)
    late = results["launch_bound, drumline: wait for the GIL, p99"]
    assert (late.value, late.baseline) == pytest.approx((0.3, 0.1))
    assert results["drumline: CPU of the collector's thread in the job"].value == pytest.approx(2.0)
    name = "drumline: CPU of the collector's thread in the job with the GIL, at most"
    assert results[name].value == pytest.approx(1.0)


def test_drumline_and_cupti_alone_interleaved_are_compared_block_by_block():
    def mode_run(ms):
        steps = {"ms": [ms] * 9, "cpu": 0.9, "gil_ms": [0.1], "peak_mb": 1_000.0}
        return {"workloads": {"tiny_kernels": steps}}

    def paired_run(slow):  # this process is slower than others, in both ways alike
        drumline, cupti = [[10.1 * slow] * 5, [12.12 * slow] * 5], [[10.0 * slow] * 5, [12.0 * slow] * 5]
        return {"workloads": {"tiny_kernels": {"drumline": drumline, "cupti": cupti, "peak_mb": 1_000.0}}}

    met = paired_run(2.0)
    met["workloads"]["tiny_kernels"]["drumline"][1] = [40.0] * 5  # a neighbour came for one block
    runs = {"plain": [mode_run(10.0)], "paired": [paired_run(1.0), paired_run(1.3), met]}
    results = {result.name: result.value for result in overhead.build_report(runs, ["tiny_kernels"]).results}
    name = "tiny_kernels: drumline above CUPTI alone, paired, 6 pairs of 3 processes"
    cupti_ms = 14.3  # the median of all steps with CUPTI alone: 1.43 of plain
    assert results[name] == pytest.approx(0.01 * cupti_ms / 10.0 * 100)
    assert results[f"{name}, 95% interval from"] == pytest.approx(results[name])
    assert results[f"{name}, 95% interval to"] >= results[name]


def test_interleaved_the_decoder_rests_and_buffers_go_back_unread(monkeypatch):
    monkeypatch.setattr(paired, "BLOCK_S", 0.02)
    monkeypatch.setattr(paired, "RECYCLE_S", 0.002)
    pool = BufferPool(buffers=4, buffer_bytes=1 << 16)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as decoder:
        attachment = SimpleNamespace(pool=pool, decoder=decoder.pid, collector=SimpleNamespace(_lock=threading.Lock()))
        given_back = []

        def timed():
            stopped = psutil.Process(decoder.pid).status() == psutil.STATUS_STOPPED
            pool.header[STATE] = DONE if stopped else FREE
            time.sleep(0.01)
            if stopped:
                given_back.append(not pool.done())
            return 10.0 if stopped else 11.0

        blocks = paired.interleaved_blocks(attachment, timed, 0.5)
        decoder.kill()
    assert len(blocks["drumline"]) == len(blocks["cupti"]) >= 1
    assert {ms for block in blocks["drumline"] for ms in block} == {11.0}
    assert {ms for block in blocks["cupti"] for ms in block} == {10.0}
    assert any(given_back)


def test_each_gpu_has_a_lane_of_its_own(monkeypatch):
    ran = []
    monkeypatch.setattr(overhead, "run_once", lambda mode, s, w, folder, lane, lanes: ran.append((lane, mode)) or {})
    measured = overhead.measure(3, 1.0, ["plain", "cupti"], ["launch_bound"], lambda text: None, lanes=2)
    assert {mode: len(runs) for mode, runs in measured.items()} == {"plain": 6, "cupti": 6}
    order = [mode for lane, mode in ran if lane == 0]
    assert order == ["plain", "cupti", "cupti", "plain", "plain", "cupti"]


def test_the_probe_sees_who_holds_the_gil(monkeypatch):
    monkeypatch.setattr(overhead_job, "PROBED_S", 0.05)
    steps = []
    torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    late = overhead_job.gil_delays(lambda: steps.append(sum(range(50_000))), torch)
    assert steps
    assert late
    assert min(late) >= 0


def test_what_was_asked_for_is_written_beside_the_results(monkeypatch):
    arguments = [
        "drumline",
        "bench",
        "overhead",
        "--rounds",
        "2",
        "--write",
        "docs/results/bench/overhead.md",
        "--json",
    ]
    monkeypatch.setattr(command.sys, "argv", arguments)
    assert command._options() == " --rounds 2"


@pytest.fixture
def measured(monkeypatch):
    """No benchmark measures: each takes what its command gives it and returns this report."""
    report = BenchReport("made up", "nothing", "none", notes=["a note"])
    report.add("rate", 5.0, "rows/s", 2.0, target=4.0)
    report.add("workers", 0, "", text="no number suffices")

    def instead(real):
        def fake(*args, **kwargs):
            inspect.signature(real).bind(*args, **kwargs)
            return report

        return fake

    elsewhere = {"overhead": "overhead.benchmark"}
    for kind in KINDS:
        module = importlib.import_module(f"drumline.lab.bench.{elsewhere.get(kind, f'benchmarks.{kind}')}")
        monkeypatch.setattr(module, f"bench_{kind}", instead(getattr(module, f"bench_{kind}")))
    return report


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_benchmark_prints_one_json_object_of_the_same_shape(measured, kind):
    answer = CliRunner().invoke(command_bench.app, [kind, "--json"])
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout, parse_constant=pytest.fail)
    assert set(report) == {"name", "data", "baseline", "results", "notes", "machine"}
    assert report["results"][0] == {
        "name": "rate", "value": 5.0, "unit": "rows/s", "baseline": 2.0, "target": 4.0, "at_most": False, "text": "",
        "ratio": 2.5, "met": True,
    }  # fmt: skip
    assert {"processor", "load before", "when", "Python"} < set(report["machine"])


@pytest.mark.parametrize("path", ["no/such/folder/file.md", "folder", "not-text.md", "by-hand.md"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(measured, monkeypatch, tmp_path, path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "not-text.md").write_bytes(b"\xff\xfe")
    (tmp_path / "by-hand.md").write_text("# A page\n")
    monkeypatch.setattr(
        "drumline.lab.bench.benchmarks.codec.bench_codec", lambda *_, **__: pytest.fail("it was measured")
    )
    answer = CliRunner().invoke(command_bench.app, ["codec", "--write", str(tmp_path / path)])
    assert answer.exit_code == 2
    assert "--write" in answer.output


def test_results_are_printed_even_if_the_file_became_unusable_meanwhile(measured, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(command, "write", full)
    answer = CliRunner().invoke(command_bench.app, ["codec", "--json", "--write", str(tmp_path / "file.md")])
    assert answer.exit_code == 1
    assert json.loads(answer.stdout)["name"] == "made up"
    assert "No space left" in answer.stderr


def test_who_names_no_benchmark_sees_which_there_are():
    answer = CliRunner().invoke(command_bench.app, ["nothing"])
    text = re.sub(r"[^\w,']+", " ", answer.output)
    assert answer.exit_code == 2
    assert "no benchmark 'nothing' there are codec, sink, stream, pipeline, agent, overhead" in text


def test_what_ends_the_watching_is_raised():
    polled = threading.Event()

    def fail():
        polled.set()
        raise RuntimeError("the broker is gone")

    def check_for_ever(watch):
        while True:
            watch.check()
            time.sleep(0.001)

    with pytest.raises(RuntimeError, match="broker is gone"), ProcessWatch({}, {"lag": fail}, 0.001):
        polled.wait(60)
    with pytest.raises(RuntimeError, match="broker is gone"), ProcessWatch({}, {"lag": fail}, 0.001) as watch:
        check_for_ever(watch)


def steady_report(memory, behind, seconds=1200.0):
    """As if `memory` (MiB) and `behind` (records) had been seen every five seconds, at ten records a second."""
    watch = SimpleNamespace(memory={"sink": [m * 2**20 for m in memory]}, cpu_s={}, lag={"the sink": behind})
    report = BenchReport("soak", "data", "none")
    steady.add_steady_state(report, watch, seconds, records=10.0)
    return {result.name: result.met for result in report.results}


def test_memory_that_settles_is_flat_and_a_leak_of_one_small_object_a_record_is_not():
    settled = [100 + 20 * min(1, i / 100) for i in range(240)]
    leaking = [100 + i * 5 * 10 * 40 / 2**20 for i in range(240)]  # 40 bytes of each record
    assert steady_report(settled, [3] * 240)["memory of sink, slope of the second half"]
    assert steady_report(leaking, [3] * 240)["memory of sink, slope of the second half"] is False
    assert steady_report(leaking[:60], [3] * 60, 300)["memory of sink, slope of the second half"] is None


def test_lag_that_grows_is_not_bounded():
    waves = [i % 50 for i in range(240)]
    growing = [i * 5 * 10 * 0.02 for i in range(240)]  # two of a hundred records are not kept up with
    assert steady_report([1] * 240, waves)["lag of the sink, slope"]
    assert steady_report([1] * 240, growing)["lag of the sink, slope"] is False


def test_a_replay_that_fails_gives_the_reason(tmp_path):
    replay = replaying(tmp_path, os.environ, tmp_path / "log")
    with pytest.raises(RuntimeError, match=r"drumline replay ended with 2: .*manifest"), replay as process:
        process.summary()


def test_a_profile_puts_numpy_down_to_who_called_it_and_the_loop_to_itself():
    outer = "main (infra/cli.py:1);run (asyncio/runners.py:9)"
    stacks = [
        f"{outer};decode (schemas/batch.py:1);unique (numpy/lib/x.py:2) 6",
        f"{outer};send (aiokafka/producer.py:7);wait (asyncio/tasks.py:4) 2",
        "main (infra/cli.py:1);Runner.run (asyncio/runners.py:118) 1",
        "run (threading.py:3) 1",
    ]
    lines = profiled.text("worker", stacks, {"python": 1.0}, 1.0).splitlines()
    first = next(i for i, line in enumerate(lines) if line.endswith("by who works"))
    assert [line.split(maxsplit=1) for line in lines[first + 1 : first + 5]] == [
        ["60.0%", "schemas: decoding and encoding batches"], ["20.0%", "aiokafka"], ["10.0%", "event loop"],
        ["10.0%", "Python"],
    ]  # fmt: skip


def test_memory_that_follows_the_lag_is_distinguished_from_memory_that_is_kept():
    lag = [100 + 50 * (i // 60 % 2) + i % 7 for i in range(240)]
    follows, keeps = ([1e6 * n + kept * i for i, n in enumerate(lag)] for kept in (0.0, 500.0))
    assert steady.slope_beside(follows, lag, 5.0) == pytest.approx(0.0, abs=1e-3)
    assert steady.slope_beside(keeps, lag, 5.0) == pytest.approx(100.0)
    assert steady.slope_beside(keeps, lag[1:], 5.0) is None
    assert abs(steady.slope(keeps, 5.0)) > 1_000.0


def test_what_the_sink_warned_of_is_beside_the_findings_of_an_audit(tmp_path):
    log = tmp_path / "sink.log"
    levels = ["info     ", "warning  ", "debug    ", "error    "]
    log.write_text("".join(f"2026-01-02 03:04:05 [{level}] number {n}\n" for n in range(20) for level in levels))
    lines = soak._problems(log)
    assert len(lines) == soak.MOST_LINES
    assert {line.rpartition("] ")[2] for line in lines} == {f"number {n}" for n in range(15, 20)}
    assert not any("info" in line or "debug" in line for line in lines)
