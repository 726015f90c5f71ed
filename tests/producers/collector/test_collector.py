"""The collector's whole path without a GPU: recorded buffers through a fake CUPTI, the shared pool, the decoder's own
process, and the spool; and what is left when the job ends badly."""

import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.fakes import pc_sampling as fake_sampling
from support.fakes.cupti import FakeCupti, Job, RawBuffer
from support.labs.collected import batches, rows, sequences_are_whole
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import SpoolSettings
from drumline.producers.collector import collector, decoder_process, gpu_claim, pc_sampling
from drumline.producers.collector.cupti import Callbacks
from drumline.producers.collector.recorder import ActivityRecorder
from drumline.producers.decoder.main import may_read
from drumline.producers.decoder.pc_samples import DROPPED, OUTSIDE
from drumline.producers.ipc.buffer_pool import BufferPool
from drumline.producers.ipc.events import MARK
from drumline.producers.spool.location import spool_bytes, spool_root

pytestmark = pytest.mark.waits
TESTS = Path(__file__).parents[2]
MEMCPY, MEMSET, KERNEL = "1", "2", "10"
RAW_BUFFER = RawBuffer("ddp_steps")
RAW_BUFFER_KERNELS = sum(kind == int(KERNEL) for kind, _ in RAW_BUFFER.positions)


def run(tmp_path, how, *arguments, **extra):
    environment = {
        **os.environ,
        "DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"),
        "DRUMLINE_JOB": "fake",
        "DRUMLINE_RUN": "r1",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "PYTHONPATH": str(TESTS),
        "RAW_CUPTI_PLAIN": str(tmp_path),
        **extra,
    }
    (tmp_path / "ddp_steps").write_bytes(RAW_BUFFER.data.tobytes())
    command = [sys.executable, str(TESTS / "support/collector_job.py"), how, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    if reports:
        wait_for_exit(reports[0]["decoder"])
    left = next((report.pop("left") for report in reports if "left" in report), [])
    if how != "stuck":
        assert left == ([1, 10] if (how, *arguments) == ("yielded", 0) else []), "another profiler's only"
    return done, {k: v for report in reports for k, v in report.items()}


def wait_for_exit(pid):
    """Wait until the decoder has ended."""
    deadline = time.monotonic() + WAIT_S
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}"), "the decoder outlived its job"


def all_delivered(published, report):
    total, delivered = rows(published), report["delivered"]
    assert total["gpu.kernel.v1"] == delivered[KERNEL]
    assert total["gpu.memcpy.v1"] == delivered[MEMCPY] + delivered[MEMSET]
    assert delivered[KERNEL] > 0
    names = {n for topic, _, b in published if topic == "gpu.kernel.v1" for n in b.envelope["names"]}
    assert names == {n for n in RAW_BUFFER.about["strings"].values() if n in names}
    sequences_are_whole(published)


def test_every_record_that_cupti_delivered_is_in_the_spool(tmp_path):
    done, report = run(tmp_path, "end", 5)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    published, process = batches(tmp_path)
    all_delivered(published, report)
    assert {(b.envelope["rank"], b.envelope["local_rank"], b.envelope["world_size"]) for _, _, b in published} == {
        (3, 1, 8)
    }
    assert (process["job"], process["run"], process["source"]) == ("fake", "r1", "cupti")
    cost = process["collector"]
    assert int(cost["records_dropped"]) == 0
    assert int(cost["kernels"]) == rows(published)["gpu.kernel.v1"]
    assert not [name for name in cost if name.startswith("problem")], cost


def test_a_killed_job_loses_nothing_that_was_flushed(tmp_path):
    done, report = run(tmp_path, "kill")
    assert done.returncode == -9
    published, process = batches(tmp_path)
    all_delivered(published, report)
    assert process["policy"] == "off: the process exited without a shutdown event"


def test_a_job_that_exits_without_a_shutdown_event_loses_nothing_that_was_flushed(tmp_path):
    done, report = run(tmp_path, "exit")
    assert (done.returncode, done.stderr) == (3, "")
    all_delivered(batches(tmp_path)[0], report)


def test_a_flush_that_never_returns_does_not_hold_up_the_end(tmp_path):
    done, report = run(tmp_path, "stuck")  # the flush sleeps for a quarter of an hour, longer than a job is waited for
    assert (done.returncode, done.stderr) == (0, "")
    all_delivered(batches(tmp_path)[0], report)


@pytest.mark.parametrize("root", ["file", "file/below"])
def test_where_nothing_can_be_spooled_the_job_goes_on_and_it_is_reported_once(tmp_path, root):
    (tmp_path / "file").write_text("")
    done, report = run(tmp_path, "end", DRUMLINE_SPOOL__ROOT=str(tmp_path / root))
    assert done.returncode == 0
    [warning] = done.stderr.splitlines()
    assert warning.startswith("drumline: ")
    assert f"nothing is recorded in {tmp_path / root}" in warning
    assert (report["dropped"], report["status"]) == (0, "on")


def test_an_exception_stays_the_jobs_own(tmp_path):
    done, report = run(tmp_path, "exception")
    assert done.returncode == 1
    assert "RuntimeError: the job's own" in done.stderr
    assert "drumline" not in done.stderr.replace("drumline/", "").replace(str(TESTS), "")
    all_delivered(batches(tmp_path)[0], report)


def test_a_forked_child_neither_records_nor_ends_the_recording(tmp_path):
    done, report = run(tmp_path, "fork")
    assert done.returncode == 0, done.stderr
    all_delivered(batches(tmp_path)[0], report)


def test_a_process_that_multiprocessing_forked_ends_in_order(tmp_path):
    done, report = run(tmp_path, "forked")
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    all_delivered(published, report)
    assert process["policy"] == "off: end of the process"


def test_a_node_whose_ranks_will_not_be_compared_with_the_others_is_reported(tmp_path):
    nodes = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "DRUMLINE_RUN": "", "DRUMLINE_MINTED_RUN": "made-here"}
    done, _ = run(tmp_path, "end", 1, LOCAL_RANK="0", **nodes)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("drumline: each node has its own run id")


def test_a_decoder_that_hangs_costs_records_which_are_counted(tmp_path):
    done, report = run(tmp_path, "hold", 40, DRUMLINE_COLLECT__BUFFER_MB="4")
    assert done.returncode == 0, done.stderr
    published, process = batches(tmp_path)
    total, delivered = rows(published), report["delivered"]
    assert total["gpu.kernel.v1"] == delivered[KERNEL]
    assert int(process["collector"]["buffers_denied"]) > 0
    lost = sum(b.envelope["dropped_before"] for _, _, b in published)
    assert lost == int(process["collector"]["records_dropped"]) > 0


def test_a_decoder_that_stands_still_costs_what_happens_meanwhile_and_no_more(tmp_path):
    done, report = run(tmp_path, "stopped")
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    all_delivered(published, report)
    assert process["policy"] == "off: end of the process"


def test_after_a_loss_of_whole_steps_pairs_are_found_again_while_the_job_goes_on(tmp_path):
    done, report = run(tmp_path, "gap", 600)
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    job = Job(report["begin_ns"], 10_000_000)
    pairs, counted = 0, set()
    for topic, _, batch in published:
        if topic == "gpu.collective.v1" and batch.rows:
            for row in zip(*(batch.columns[n].tolist() for n in ("step", "ordinal", "bytes", "start_ns")), strict=True):
                if row[0] >= 0:
                    assert row == (row[0], row[1], 1_000 + row[1], job.ran_ns(row[0], row[1]))
                    pairs += 1
        if topic == "gpu.step.v1" and batch.rows:
            whole = batch.columns["step"][batch.columns["skipped"] == 0]
            counted.update(whole.tolist())
    cost = process["collector"]
    assert int(cost["records_dropped"]) > 0
    assert int(cost["launches_requested"]) == 1
    assert 0 < int(cost["launches"]) < 600 * 6
    again = min(step for step in counted if step >= 225)
    assert again < 400, "found again by itself"
    assert set(range(2, 140)) | set(range(again, 600)) <= counted
    assert not counted & set(range(150, 225))
    assert pairs > 6 * (138 + 600 - again)
    assert report["recorded"] == [1, 2, 10, 12, 13], "launches are not recorded any more"


def test_steps_of_the_api_wait_for_the_calls_that_cupti_holds_back_while_a_kernel_runs(tmp_path):
    done, _report = run(tmp_path, "busy", 500)
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    calls = Counter()
    for topic, _, batch in published:
        if topic == "gpu.step.v1" and batch.rows:
            calls.update(dict(zip(*(batch.columns[n].tolist() for n in ("step", "collectives")), strict=True)))
    assert calls == dict.fromkeys(range(500), 6)
    assert rows(published)["gpu.collective.v1"] == 6 * 500
    assert "late_markers" not in process["collector"]


def test_what_cupti_holds_back_when_recording_ends_is_waited_for(tmp_path):
    done, _report = run(tmp_path, "busy_off", 500)
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    calls = {}
    for topic, _, batch in published:
        if topic == "gpu.step.v1" and batch.rows:
            columns = (batch.columns[n].tolist() for n in ("step", "skipped", "collectives"))
            calls.update({step: (skipped, count) for step, skipped, count in zip(*columns, strict=True)})
    assert all(calls[step] == (0, 6) for step in range(150))
    assert float(process["collector"]["held_max_s"]) > 2


def test_a_decoder_that_sleeps_beyond_the_jobs_end_still_publishes_all_but_names(tmp_path):
    done, report = run(tmp_path, "overslept")
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    assert rows(published)["gpu.kernel.v1"] == report["delivered"][KERNEL]
    assert process["policy"] == "off: end of the process"
    assert int(process["collector"]["events_lost"]) > 0
    assert int(process["collector"]["unreadable_strings"]) > 0


def test_a_killed_decoder_is_replaced_and_what_it_had_is_kept(tmp_path):
    done, report = run(tmp_path, "decoder")
    assert done.returncode == 0, done.stderr
    parts = [batches(tmp_path, folder) for folder in (tmp_path / "spool").iterdir()]
    assert len({process["process_id"] for _, process in parts}) == 2
    assert sum(rows(published)["gpu.kernel.v1"] for published, _ in parts) == report["delivered"][KERNEL]
    for published, _ in parts:
        sequences_are_whole(published)
    gave_up = sorted("given_up_kernels" in process["collector"] for _, process in parts)
    assert gave_up == [False, True], "the second one has no calls of the first"


def test_decoders_that_keep_dying_end_the_recording_and_that_is_reported(tmp_path):
    done, report = run(tmp_path, "decoders", 1)
    assert done.returncode == 0
    assert done.stderr == "drumline: 5 decoders have died: nothing is recorded any more; the job goes on\n"
    assert (report["recorded"], report["status"]) == ([], "failed: RuntimeError: 5 decoders have died")


@pytest.mark.parametrize("allowed", [True, False])
def test_a_job_that_lets_itself_be_read_keeps_the_readers_that_it_named(monkeypatch, allowed):
    named = []
    answer = SimpleNamespace(returncode=0, stdout=f"77 {allowed:d}\n".encode())
    monkeypatch.setattr(decoder_process.subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(
        decoder_process.ctypes, "CDLL", lambda _: SimpleNamespace(prctl=lambda *arguments: named.append(arguments))
    )
    assert decoder_process.start(3, 4) == 77
    assert named == ([] if allowed else [(decoder_process.PR_SET_PTRACER, 77, 0, 0, 0)])


def test_whether_a_process_may_be_read_is_asked_of_the_kernel():
    assert may_read(os.getpid())
    assert not may_read(1 << 22), "there is no such process"


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_another_user_may_not_read_a_process():
    parent, child = os.getpid(), os.fork()
    if not child:
        os.setuid(65_534)
        os._exit(may_read(parent))
    assert os.waitpid(child, 0)[1] == 0


def test_buffers_stay_mapped_when_python_has_let_go_of_them():
    """A thread of CUPTI that still writes when Python ends would crash the process: seen with CUPTI 13.5."""
    pool, callbacks = BufferPool(), Callbacks()
    place = f"{ctypes.addressof(ctypes.c_char.from_buffer(pool.memory)):x}-"
    ActivityRecorder(FakeCupti().bound(), pool, callbacks, threading.current_thread()).close()
    del pool, callbacks
    gc.collect()
    assert any(line.startswith(place) for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("how", ["late", "peer"])
def test_copies_between_gpus_come_where_nothing_is_recorded_too_and_cost_nothing(tmp_path, how):
    done, report = run(tmp_path, how)
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    all_delivered(published, report)
    assert process["collector"]["peer_copies"] == "1"
    assert process["policy"] == "off: end of the process"


def test_a_collector_that_cannot_begin_costs_the_job_nothing_and_reports_the_reason(tmp_path):
    done, _ = run(tmp_path, "broken")
    assert done.returncode == 0
    assert done.stderr.count("ZeroDivisionError") == done.stderr.count("\n") == 1, done.stderr
    _, process = batches(tmp_path)
    assert process["collector"]["problem: collector"].startswith("ZeroDivisionError")
    assert process["policy"].startswith("off: ZeroDivisionError")


def test_another_profiler_gets_cupti_and_gives_it_back(tmp_path):
    done, report = run(tmp_path, "yielded")
    assert done.returncode == 0, done.stderr
    all_delivered(batches(tmp_path)[0], report)


def test_a_job_that_ends_under_another_profiler_leaves_cupti_to_it(tmp_path):
    done, _ = run(tmp_path, "yielded", 0)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("how", "state"), [
    ("back_broken", ["failed: ZeroDivisionError: integer division or modulo by zero", 0, False]),
    ("back_signal", ["yielded", 0, False]),
    ("back_torn_down", ["on", 5, True]),
    ("back_torn_down_off", ["off", 0, True]),
])  # fmt: skip
def test_whatever_happens_while_a_profiler_ends_the_job_goes_on(tmp_path, how, state):
    done, report = run(tmp_path, how, **({"TEARDOWN_CUPTI": "1"} if "torn_down" in how else {}))
    assert done.returncode == 0, done.stderr
    assert report["state"] == state


def test_a_cupti_without_the_kind_that_stays_on_records_all_others(tmp_path):
    done, report = run(tmp_path, "no_peer_copies", 2)
    assert (done.returncode, done.stderr) == (0, "")
    all_delivered(batches(tmp_path)[0], report)


def test_where_the_policy_is_off_and_cupti_rejects_recording_it_is_left_alone(tmp_path):
    done, _ = run(tmp_path, "refused_off")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("on_demand", [True, False])
def test_cupti_that_a_profiler_took_silently_is_taken_back_where_that_is_allowed(tmp_path, on_demand):
    done, _ = run(tmp_path, "taken", **({"KINETO_USE_DAEMON": "1"} if on_demand else {}))
    assert (done.returncode, done.stderr) == (0, "")
    once = Counter(str(kind) for kind, _ in RAW_BUFFER.positions)[KERNEL]
    published, process = batches(tmp_path)
    assert rows(published)["gpu.kernel.v1"] == (4 if on_demand else 3) * once
    assert process["policy"] == "off: end of the process"
    assert ("problem: taken" in process["collector"]) == on_demand


def test_recording_restarts_where_steps_have_no_kernels_any_more(tmp_path):
    done, report = run(tmp_path, "no_kernels", 100)
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    all_delivered(published, report)
    assert "recording restarts" in process["collector"]["problem: no_kernels"]
    steps = [batch.columns for topic, _, batch in published if topic == "gpu.step.v1" and batch.rows]
    skipped = np.concatenate([columns["skipped"] for columns in steps]).astype(bool)
    assert skipped.sum() > 50
    assert not skipped[:40].any()
    assert not skipped[-40:].any(), "those recorded since"
    assert np.concatenate([columns["kernels"] for columns in steps])[~skipped].min() == 1


def test_time_during_which_nothing_was_recorded_is_not_one_without_kernels(tmp_path):
    done, report = run(tmp_path, "no_kernels_off", 200)
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    all_delivered(published, report)
    assert not [name for name in process["collector"] if name.startswith("problem")]


def test_cupti_that_another_profiler_holds_is_taken_when_it_is_free(tmp_path):
    done, report = run(tmp_path, "refused")
    assert done.returncode == 0
    assert done.stderr.count("another profiler holds CUPTI") == done.stderr.count("\n") == 1, done.stderr
    published, process = batches(tmp_path)
    all_delivered(published, report)
    assert process["policy"] == "off: end of the process"


def test_a_process_that_another_profiler_holds_all_its_life_is_in_the_data_with_the_reason(tmp_path):
    done, _ = run(tmp_path, "refused", 0, DRUMLINE_QUIET="1")
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    assert rows(published).total() == 0
    assert process["policy"] == "off: another profiler holds CUPTI (CUptiResult 39)"
    assert (process["rank"], process["world_size"]) == (3, 8)


def test_the_policy_is_changed_while_the_job_runs(tmp_path):
    (tmp_path / "spool").mkdir()
    done, report = run(tmp_path, "policy")
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    once = sum(kind == int(KERNEL) for kind, _ in RAW_BUFFER.positions)
    assert int(process["collector"]["kernels"]) == report["delivered"][KERNEL] == 6 * once, (
        "three at first, none under off, two under always, for nonsense changes nothing, one without a file"
    )
    assert rows(published)["gpu.kernel.v1"] == 6 * once
    assert process["policy"].startswith("off: end of the process")


def test_steps_and_scopes_of_the_api_are_in_the_data(tmp_path):
    done, _report = run(tmp_path, "steps", 4)
    assert done.returncode == 0, done.stderr
    published, _ = batches(tmp_path)
    names = Counter()
    for topic, _, batch in published:
        if topic == "gpu.range.v1" and batch.rows:
            names.update(batch.strings("name", "names").tolist())
    assert (names["evaluate"], names["None"], names["?"]) == (4, 4, 4)
    assert {"step 0", "step 1", "step 2"} <= set(names)


def test_a_rank_that_is_known_later_is_in_what_follows(tmp_path):
    unset = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE"), "")
    done, report = run(tmp_path, "place", **unset)
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    all_delivered(published, report)
    ranks = [(b.envelope["rank"], b.envelope["world_size"]) for topic, _, b in published if topic == "gpu.kernel.v1"]
    assert sorted(set(ranks)) == [(0, 1), (5, 6)]
    assert ranks == sorted(ranks)
    assert (process["rank"], process["world_size"]) == (5, 6)
    assert (process["gpu_uuid"][:4], process["gpu_model"]) == ("GPU-", "NVIDIA H200"), (
        "CUDA was not used when it attached"
    )


def test_a_job_that_closes_all_descriptors_keeps_its_connections_to_itself(tmp_path):
    done, report = run(tmp_path, "closed")
    assert done.returncode == 0, done.stderr
    [warning] = done.stderr.splitlines()
    assert "the job has closed descriptors" in warning
    all_delivered(batches(tmp_path)[0], report)


def test_under_auto_cupti_comes_with_the_first_window_and_rests_after_it(tmp_path):
    done, _report = run(tmp_path, "auto", DRUMLINE_RINGS__FOLDER=str(tmp_path / "spool" / ".rings"))
    assert (done.returncode, done.stderr) == (0, "")
    (ring,) = (tmp_path / "spool" / ".rings").iterdir()
    assert memoryview(ring.read_bytes()[:128]).cast("Q")[5] == 6, "all six steps are marked there"
    (folder,) = (path.parent for path in (tmp_path / "spool").glob("*/identity.json"))
    published, process = batches(tmp_path, folder)
    assert rows(published)["gpu.kernel.v1"] == RAW_BUFFER_KERNELS
    assert process["policy"].startswith("off")


def test_after_a_window_cupti_goes_and_the_next_window_brings_it_back(tmp_path):
    done, _report = run(tmp_path, "windows", DRUMLINE_RINGS__FOLDER=str(tmp_path / "spool" / ".rings"))
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = (path.parent for path in (tmp_path / "spool").glob("*/identity.json"))
    published, _process = batches(tmp_path, folder)
    assert rows(published)["gpu.kernel.v1"] == 2 * RAW_BUFFER_KERNELS


def test_cupti_that_has_gone_comes_back_after_a_profiler_with_a_window(tmp_path):
    done, _report = run(tmp_path, "resumed", DRUMLINE_RINGS__FOLDER=str(tmp_path / "spool" / ".rings"))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_that_captured_a_graph_keeps_cupti_whose_end_would_break_it(tmp_path):
    done, _report = run(tmp_path, "captured", DRUMLINE_RINGS__FOLDER=str(tmp_path / "spool" / ".rings"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("how", ["launches", "launches_taken"])
def test_each_kernel_of_a_window_with_launches_has_its_launch_its_scope_and_its_line(tmp_path, how):
    done, _report = run(tmp_path, how)
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = (path.parent for path in (tmp_path / "spool").glob("*/identity.json"))
    published, process = batches(tmp_path, folder)
    calls, kernels = [], set()
    for topic, _, batch in published:
        if topic == "gpu.kernel.v1" and batch.rows:
            kernels |= set(batch.columns["correlation"].tolist())
        if topic == "gpu.launch.v1" and batch.rows:
            texts = (batch.strings(name, f"{name}s") for name in ("scope", "stack"))
            numbers = (batch.columns[name].tolist() for name in ("correlation", "sampled"))
            calls += list(zip(*numbers, *texts, strict=True))
    assert {call[0] for call in calls} == kernels == set(range(1, 7))
    scopes = [scope for step in range(3) for scope in (f"step {step};forward", f"step {step}")]
    assert [(owner, scope) for _, owner, scope, _ in sorted(calls)] == [(1, scope) for scope in scopes]
    functions = ["planted", "quick"] * 3
    assert [stack.split(";")[-2].split(" (")[0] for *_, stack in sorted(calls)] == functions, "in a wait for samples"
    assert "kernels_without_launch" not in process["collector"]


def test_a_window_with_pc_samples_what_kernels_wait_for_beside_their_records_once(tmp_path):
    done, report = run(tmp_path, "pc")
    assert (done.returncode, done.stderr.count(collector.AFTER_SAMPLING)) == (0, 1), done.stderr
    published, process = batches(tmp_path)
    sums = Counter()
    for topic, _, batch in published:
        if topic == "gpu.stall.v1" and batch.rows:
            assert set(batch.columns["cycles"].tolist()) == {1 << pc_sampling.PERIOD}
            assert (batch.columns["duration_ns"] > 0).all()
            names, reasons = batch.strings("name", "names"), batch.strings("reason", "reasons")
            counts = (batch.columns[name].tolist() for name in ("samples", "not_issued"))
            for name, reason, samples, idle in zip(names, reasons, *counts, strict=True):
                sums[name, reason] += samples
                sums[name, reason, "idle"] += idle
    expected = {("", OUTSIDE): fake_sampling.OUTSIDE, ("", DROPPED): fake_sampling.DROPPED}
    for kernel, (memory, memory_idle, selected, _) in fake_sampling.KERNELS.items():
        name = kernel.decode()
        expected |= {(name, "long_scoreboard"): memory, (name, "long_scoreboard", "idle"): memory_idle}
        expected |= {(name, "selected"): selected}
    assert report["readings"] >= 6
    assert +sums == {place: count * report["readings"] for place, count in expected.items()}
    assert rows(published)["gpu.kernel.v1"] > 0
    assert process["collector"]["control"] == "done p"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("pc_rejected", "cuptiPCSamplingEnable fails (CUptiResult 35); the driver"),
        ("pc_settings", "cuptiPCSamplingSetConfigurationAttribute fails (CUptiResult 7); another thread"),
        ("pc_unsafe", "CUPTI 130001 hangs jobs when it ends: pip install nvidia-cuda-cupti"),
        ("pc_late", "CUPTI names no kernel where it came late: run the job with"),
        ("pc_taken", "another process samples this GPU until it ends"),
    ],
)
def test_a_gpu_that_is_not_sampled_is_an_answer_and_the_window_ends(tmp_path, how, reason):
    (tmp_path / "spool").mkdir()
    taken = gpu_claim.claim(tmp_path / "spool", "00" * 16) if how == "pc_taken" else -1  # GPU 0 of the fake
    done, report = run(tmp_path, how)
    if taken >= 0:
        os.close(taken)
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    answer = process["collector"]["control"]
    assert answer.startswith(f"rejected w: PC sampling is rejected: {reason}")
    assert (report["readings"], "gpu.stall.v1" in rows(published)) == (0, False)
    assert rows(published)["gpu.kernel.v1"] > 0


def test_settings_that_are_not_made_are_the_agents():
    agents = SpoolSettings()
    assert spool_root({}) == agents.root
    assert spool_bytes({}) == agents.max_mb << 20
    assert spool_bytes({"DRUMLINE_SPOOL__MAX_MB": "4"}) == 4 << 20


def test_a_setting_that_is_no_number_is_reported_in_the_data_and_the_default_counts(tmp_path):
    done, report = run(tmp_path, "end", DRUMLINE_SPOOL__MAX_MB="256MB")
    assert (done.returncode, done.stderr) == (0, "")
    published, process = batches(tmp_path)
    all_delivered(published, report)
    assert process["collector"]["problem: settings"] == "DRUMLINE_SPOOL__MAX_MB: '256MB' is no number"


def test_the_decoder_has_packages_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise ImportError('built for another Python')")
    (tmp_path / "sitecustomize.py").write_text("print('of the job', end='')")
    monkeypatch.setenv("DRUMLINE_PACKAGES", str(tmp_path))
    monkeypatch.setenv("DRUMLINE_SPOOL__ROOT", str(tmp_path / "spool"))
    job_end, decoder_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    decoder = decoder_process.start(BufferPool().fd, decoder_end.fileno())
    decoder_end.close()
    job_end.send(MARK.pack(b"M", 2, 1, time.time_ns()) + b"step 1")
    job_end.close()
    wait_for_exit(decoder)
    assert batches(tmp_path)[1]["pid"] == os.getpid()


@pytest.mark.parametrize(("quiet", "beginning"), [("0", ["drumline:", "decoder"]), ("1", [])])
def test_a_decoder_that_fails_is_reported_unless_drumline_is_quiet(quiet, beginning):
    command = [sys.executable, "-m", "drumline.producers.decoder.main", "998", "999", "1"]
    environment = {**os.environ, "DRUMLINE_QUIET": quiet}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stderr.split()[:2] == beginning


def test_under_another_tool_drumline_keeps_away():
    name = "CUDA_INJECTION64_PATH"
    script = "from drumline.producers.collector import attach; print(attach.attach(), attach.status())"
    environment = {**os.environ, name: "/opt/nsight/libToolsInjection64.so"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False not attached")
    assert name in done.stderr
