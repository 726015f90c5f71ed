"""A job for test_collector.py: attaches with the fake CUPTI, plays recorded buffers, and ends as HOW states.

usage: collector_job.py HOW [REPETITIONS]; prints what CUPTI delivered as JSON when it can.
"""

import atexit
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from support.fakes.cupti import MULTIPLE_SUBSCRIBERS, FakeCupti, Job, RawBuffer, record
from support.fakes.launches import LAUNCH, SMALL, FakeDriver, numbers
from support.fakes.pc_sampling import INVALID_OPERATION, NO_PRIVILEGE, FakePcSampling

from drumline.producers.collector import (
    attach,
    attachment,
    collector,
    gpu_claim,
    marks,
    pc_sampling,
    process_info,
    recorder,
    stack_samples,
    watchdog,
)
from drumline.producers.decoder.cupti_layout import DRIVER, KERNEL, MEMCPY, PEER_COPY, RUNTIME
from drumline.producers.ipc.buffer_pool import Header
from drumline.producers.ipc.events import thread_name
from drumline.producers.ipc.policy import ALWAYS, AUTO, OFF

STEP_NS = 10_000_000
# What CUPTI points to lives as long as the process.
fake, job, raw = FakeCupti(), Job(0, STEP_NS), RawBuffer("ddp_steps").relocate()


def no_thread(self: threading.Thread) -> None:
    """As Python 3.12.0 and 3.12.1 have it when a process ends."""
    raise RuntimeError("can't create new thread at interpreter shutdown")


def first_ns(raw: RawBuffer) -> int:
    return raw.span()[0]


def left(pid: int) -> None:
    """Print what is still on when a process has ended in order."""
    if os.getpid() == pid:
        print(json.dumps({"left": [*fake.enabled, *[PEER_COPY] * fake.kept]}), flush=True)


def print_decoder() -> None:
    """Print the decoder's pid, for a job that ends without a report."""
    print(json.dumps({"decoder": attach.attached().decoder}), flush=True)


def gap(steps: int) -> None:
    """The host is ahead of the GPU all the time; of the steps CUPTI drops an eighth.

    Another profiler has CUPTI's callbacks, so that it records calls, whose times are made up too.
    """
    fake.holder = MULTIPLE_SUBSCRIBERS
    for step in range(steps + job.behind):
        time.sleep(max(0.0, (job.begin_ns + (step + 1) * STEP_NS - time.time_ns()) / 1e9))
        data, places = job.records(step)
        if step >= steps:
            places = [(kind, at) for kind, at in places if kind == KERNEL]
        if steps // 4 <= step < 3 * steps // 8:
            fake.drop(places)
        else:
            fake.play(data, places)


def busy(steps: int, off: int = -1) -> None:
    """Steps are the API's. What CUPTI has of the steps between a quarter and three quarters it keeps as long, as a
    kernel runs. `off`: the step with which recording ends."""
    job.behind = 0
    for step in range(steps):
        if step == off:
            attach.attached().pool.header[Header.MODE] = OFF
        attach.step(step)
        job.begin_ns = time.time_ns() - step * STEP_NS
        fake.busy = steps // 4 <= step < 3 * steps // 4
        fake.play(*job.records(step))
        time.sleep(STEP_NS / 1e9)
    attach.step(steps)


def marked_step(step: int, kind: int) -> None:
    """A step of the API, with a kernel or a copy."""
    attach.step(step)
    now, name = time.time_ns(), int(raw.data.view("<u8")[raw.field(KERNEL, 104, "<u8")[0]])
    named = {"name": name} if kind == KERNEL else {}
    fake.play(record(kind, start=now, end=now + STEP_NS // 2, **named), [(kind, 0)])
    time.sleep(STEP_NS / 1e9)


def without_kernels(steps: int) -> None:
    """Of steps with a kernel each CUPTI suddenly has none any more."""
    step, last = 0, steps
    while step < last and step < 100 * steps:
        marked_step(step, KERNEL)
        step += 1
        if step == steps // 2:
            fake.silent = True
        last = step + steps // 2 if fake.silent else last
    attach.step(step)


def without_kernels_off(steps: int) -> None:
    """The last steps before recording is off for long have no kernel."""
    for step in range(steps):
        marked_step(step, MEMCPY if steps // 2 - 5 <= step < steps // 2 else KERNEL)
        if step == steps // 2 - 1:
            attach.step(steps // 2)
            attach.attached().pool.header[Header.MODE] = OFF
            time.sleep(3 * watchdog.MISSING_NS / 1e9)
            attach.attached().pool.header[Header.MODE] = ALWAYS


def settled() -> None:
    """Wait until the decoder has read everything that was played."""
    quiet = 0
    while quiet < 5:
        quiet = 0 if fake._open is not None or attach.attached().pool.done() else quiet + 1
        time.sleep(0.01)


def back(how: str) -> None:
    """A profiler ends. CUPTI fails then; or a signal's handler starts another one meanwhile; or PyTorch is about to
    finalise CUPTI."""
    collecting = attach.attached().collector
    collecting.yield_to("a profiler")
    if how == "back_broken":
        collecting._recorder._register_callbacks = lambda: 1 // 0
    if how == "back_signal":
        signal.signal(signal.SIGUSR1, lambda *_: collecting.yield_to("another"))
        register = collecting._recorder._register_callbacks
        collecting._recorder._register_callbacks = lambda: (
            os.kill(os.getpid(), signal.SIGUSR1),
            time.sleep(0),
            register(),
        )[2]
    collecting.resume_after("a profiler")
    state = attach.status(), len(fake.enabled), fake.kept
    if how == "back_torn_down_off":
        attach.attached().pool.header[Header.MODE] = OFF
    if how.startswith("back_torn_down"):
        assert state == ("yielded", 0, False)
        time.sleep(collector.TEARDOWN_S + 3 * collector.FLUSH_S)
        state = attach.status(), len(fake.enabled), fake.kept
    if how == "back_signal":
        del fake.clock, collecting._recorder._register_callbacks
        collecting.resume_after("another")
        assert fake.clock, "the other's is there"
        assert len(fake.enabled) == 5
    print(json.dumps({"decoder": attach.attached().decoder, "state": state}), flush=True)


def auto() -> None:
    """CUPTI comes with the first window that the control file states, at a mark of the job, and rests after it."""
    file = Path(os.environ["DRUMLINE_SPOOL__ROOT"]) / "policy"
    marks.SCAN_S = 0.0
    assert attach.attach("auto", cupti=fake.bound())
    for number, text in enumerate(("", "off", "always 1s", "light")):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        attach.step(number)
        assert (attach.attached(), attach.status(), fake.subscribed) == (None, "auto", 0)
    file.write_text("always")
    attach.step(4)
    assert fake.subscribed == threading.get_ident(), "in the thread that marks"
    while len(fake.enabled) < 5:
        time.sleep(0.01)
    attach.step(5)
    fake.play(raw.shifted(time.time_ns() - first_ns(raw), 9_000_000), raw.positions)
    settled()
    file.unlink()
    while fake.enabled or not (fake.finalized or marks.graph_was_captured):
        time.sleep(0.01)
    if marks.graph_was_captured:
        time.sleep(recorder.DRAIN_S + 1)
        assert (fake.finalized, fake.kept) == (0, True), "a graph's next replay would fail"
    print_decoder()


def windows() -> None:
    """A second window after CUPTI has gone: it comes back in the thread that marks, and records."""
    auto()
    assert fake.subscribed == 0
    attach.step(6)
    assert fake.subscribed == 0, "no window yet"
    (Path(os.environ["DRUMLINE_SPOOL__ROOT"]) / "policy").write_text("always")
    while not fake.subscribed:
        attach.step(7)
        time.sleep(0.01)
    assert fake.subscribed == threading.get_ident()
    while len(fake.enabled) < 5:
        time.sleep(0.01)
    os.kill(attach.attached().decoder, signal.SIGSTOP)
    fake.play(raw.shifted(time.time_ns() - first_ns(raw), 9_000_000), raw.positions)
    attach.attached().pool.header[Header.MODE] = AUTO
    time.sleep(recorder.DRAIN_S + 4 * collector.FLUSH_S)
    assert (fake.enabled, fake.finalized) == (set(), 1), "what the decoder has not read may be of a CUDA graph"
    os.kill(attach.attached().decoder, signal.SIGCONT)
    settled()


def resumed() -> None:
    """A profiler has CUPTI in the second window; for the third CUPTI comes back, and stays: it has the profiler's
    state."""
    auto()
    collecting, header = attach.attached().collector, attach.attached().pool.header
    collecting.yield_to("a profiler")
    for mode in (ALWAYS, AUTO):
        header[Header.MODE] = mode
        attach.step(6)
    assert fake.subscribed == 0, "CUPTI is the profiler's"
    collecting.resume_after("a profiler")
    assert fake.subscribed == 0, "no window"
    header[Header.MODE] = ALWAYS
    attach.step(7)
    assert (fake.subscribed, fake.kept, len(fake.enabled)) == (threading.get_ident(), True, 5), "in a thread that marks"
    header[Header.MODE] = AUTO
    time.sleep(recorder.DRAIN_S + 2 * collector.FLUSH_S)
    assert (fake.finalized, fake.kept) == (1, True)


def launches(how: str) -> None:
    """A deep window with launches and stacks, as the agent's file asks; each function launches a kernel in each step.

    A function launches when it was sampled while it ran, however long that takes. `launches_taken`: another profiler
    has CUPTI's callbacks, so CUPTI records calls.
    """
    is_taken, driver = how == "launches_taken", FakeDriver(fake)
    fake.holder = MULTIPLE_SUBSCRIBERS if is_taken else 0
    rounds, sample = [0], stack_samples.ThreadSampler.sample

    def counted(*arguments) -> None:
        sample(*arguments)
        rounds[0] += 1

    stack_samples.ThreadSampler.sample = counted
    file, now = Path(os.environ["DRUMLINE_SPOOL__ROOT"]) / ".control", time.time_ns()
    file.parent.mkdir(exist_ok=True)
    window = {"key": "w", "kind": "window", "policy": "always", "job": "*", "run": "", "host": "*", "ranks": [],
             "last_step": -1, "start_ns": now, "until_ns": now + 600 * 10**9, "requested_ns": now, "launches": True,
             "stacks": True}  # fmt: skip
    file.write_text(json.dumps([window]))
    assert attach.attach("off", cupti=fake.bound())
    while len(fake.enabled) < 5 + 2 * is_taken or bool(fake.callbacks) == is_taken or rounds[0] < 1:
        os.utime(file)
        time.sleep(0.01)
    name = int(raw.data.view("<u8")[raw.field(KERNEL, 104, "<u8")[0]])
    correlations = iter(range(1, 1_000))

    def wait_for_samples() -> None:
        until = rounds[0] + 2
        while rounds[0] < until:
            os.utime(file)
            time.sleep(0.001)

    def launch(gpu_ns: int, kind: int) -> None:
        number, now, thread = next(correlations), time.time_ns(), thread_name(threading.get_ident())
        fake.play(record(kind, start=now, end=now + 2_000, thread_id=thread, correlation_id=number), [(kind, 0)])
        driver.call(LAUNCH, numbers(0x1000, *SMALL), correlation=number)  # the runtime calls the driver too
        times = {"start": now + 5_000, "end": now + 5_000 + gpu_ns}
        fake.play(record(KERNEL, **times, name=name, correlation_id=number), [(KERNEL, 0)])

    def planted() -> None:
        wait_for_samples()
        launch(900_000, RUNTIME)  # as PyTorch

    def quick() -> None:
        wait_for_samples()
        launch(100_000, DRIVER)  # as NCCL

    for step in range(3):
        attach.step(step)
        with attach.scope("forward"):
            planted()
        quick()
    attach.step(3)
    file.unlink()
    while fake.enabled or any(thread.name == "drumline samples" for thread in threading.enumerate()):
        time.sleep(0.01)
    settled()
    assert fake._called is None, "the subscriber was given back"
    print_decoder()


def waited(file: Path, is_so: Callable[[], bool]) -> None:
    """Wait for a state, and renew the agent's file meanwhile."""
    while not is_so():
        os.utime(file)
        time.sleep(0.01)


def pc(how: str) -> None:
    """A deep window with samples of the GPU, as the agent's file asks, until six readings; or a rejection."""
    sampling = FakePcSampling(fake)
    for name in dir(sampling):
        if name.startswith("cuptiPCSampling"):
            setattr(fake, name, getattr(sampling, name))
    sampling.rejects = NO_PRIVILEGE if how == "pc_rejected" else 0
    sampling.rejects_settings = INVALID_OPERATION if how == "pc_settings" else 0
    attachment.load_driver = lambda: sampling
    claims, claim = [], gpu_claim.claim
    gpu_claim.claim = lambda *place: claims.append(claim(*place)) or claims[-1]
    pc_sampling.SAFE_VERSIONS = () if how == "pc_unsafe" else (130001,)
    file, now = Path(os.environ["DRUMLINE_SPOOL__ROOT"]) / ".control", time.time_ns()
    file.parent.mkdir(exist_ok=True)
    window = {"key": "w", "kind": "window", "policy": "always", "job": "*", "run": "", "host": "*", "ranks": [],
              "last_step": -1, "start_ns": now, "until_ns": now + 600 * 10**9, "requested_ns": now,
              "pc": True}  # fmt: skip
    file.write_text(json.dumps([window]))
    assert attach.attach("off" if how in ("pc_late", "pc_unsafe") else "always", cupti=fake.bound())
    waited(file, lambda: len(fake.enabled) >= 5)
    step = 0
    while sampling.readings < 6 and fake.enabled and not sampling.rejected and -1 not in claims:
        os.utime(file)
        marked_step(step, KERNEL)
        step += 1
    readings = sampling.readings
    if how == "pc":  # CUPTI records no kernels once it was off: another window is rejected, and its policy goes
        file.write_text(json.dumps([window | {"key": "p", "kind": "policy", "policy": "off", "pc": False}]))
        waited(file, lambda: not fake.enabled)
        readings = sampling.readings
        file.write_text(json.dumps([*json.loads(file.read_text()), window | {"key": "again"}]))
        for state in ("yielded", "off"):
            waited(file, lambda state=state: attach.attached().collector.state == state)
    file.unlink()
    settled()
    assert (sampling.is_on, sampling.contexts) == (False, int(how in ("pc", "pc_settings"))), (
        "no sample is taken any more"
    )
    assert sampling.readings == readings
    print(json.dumps({"decoder": attach.attached().decoder, "readings": sampling.readings}), flush=True)


def captured() -> None:
    """As `auto`, in a process that captured a CUDA graph."""
    marks.graph_was_captured = True
    auto()


def main() -> None:
    how, repetitions = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    if how.startswith("refused"):  # another profiler holds CUPTI, and lets go of it
        collector.RETRY_S, fake.reject = 0.5, MULTIPLE_SUBSCRIBERS
    if how == "stopped":
        collector.DECODER_S = 1.0
    watchdog.MISSING_NS = 1_000_000_000 if how.startswith("no_kernels") else watchdog.MISSING_NS
    collector.TAKEN_S = 1.0 if how == "taken" else collector.TAKEN_S
    if how == "no_peer_copies":  # a kind that this CUPTI does not have
        fake.reject, fake.only = 14, PEER_COPY
    fake.racy = how != "refused"  # what CUPTI does once another one let go of it is not known
    if how == "broken":
        recorder.ActivityRecorder.keep = lambda _: 1 // 0
        os.environ["DRUMLINE_COLLECT__POLICY"] = "off"
    atexit.register(left, os.getpid())
    if how.startswith("pc"):
        pc(how)
        return
    if how.startswith("launches"):
        launches(how)
        return
    if how in ("auto", "windows", "resumed", "captured"):
        {"auto": auto, "windows": windows, "resumed": resumed, "captured": captured}[how]()
        return
    policy, profiler = "off" if how in ("late", "refused_off") else "", "a profiler" if how == "yielded" else ""
    assert attach.attach(policy, cupti=fake.bound(), active_profiler=profiler)
    if how == "late":
        time.sleep(0.5)
        assert (fake.enabled, fake.kept) == (set(), True)
        fake.peer_copy()
        settled()
        attach.attached().pool.header[Header.MODE] = ALWAYS
    if how == "refused_off":
        assert (fake.kept, fake._request) == (False, None), "CUPTI is another's"
        print_decoder()
        return
    if how not in ("yielded", "broken", "late", "refused"):
        assert len(fake.enabled) == 5, "when this thread makes its context"
    if how == "broken":
        assert attach.status() == "failed: ZeroDivisionError: integer division or modulo by zero"
        print_decoder()
        return
    if how == "yielded":  # it runs since before CUDA was used
        time.sleep(0.5)
        assert (fake.enabled, fake.subscribed, attach.status()) == (set(), 0, "yielded")
        attach.attached().collector.resume_after("a profiler")
    if how not in ("yielded", "refused", "no_peer_copies"):
        assert fake.kept
    if how != "refused":
        assert fake.subscribed == threading.get_ident(), "another thread may be in an NVTX call meanwhile"
    if how == "refused":
        while attach.status() != "yielded":
            time.sleep(0.01)
        assert not fake.enabled
        while not list(Path(os.environ["DRUMLINE_SPOOL__ROOT"]).glob("*/identity.json")):
            time.sleep(0.01)
        time.sleep(2 * collector.RETRY_S)  # asked again, and refused again
        if repetitions == 0:
            print_decoder()
            return
        fake.reject = 0
    first, last = raw.span()
    begin = time.time_ns() - (last - first) * repetitions
    while len(fake.enabled) < 5 or not attach.attached().pool.header[Header.TICKS]:  # both sides are up
        time.sleep(0.01)
    if how == "hold":
        os.kill(attach.attached().decoder, signal.SIGSTOP)
    if how == "gap":
        job.begin_ns = time.time_ns()
        gap(repetitions)
        repetitions = 0
    if how.startswith("no_kernels"):
        (without_kernels if how == "no_kernels" else without_kernels_off)(repetitions)
        repetitions = 0
    if how in ("busy", "busy_off"):
        busy(repetitions, repetitions * 3 // 10 if how == "busy_off" else -1)
        repetitions = 0
    for i in range(repetitions):
        if how == "paced":  # as a job runs: each repetition ends now
            time.sleep((last - first) / 1e9)
            begin = time.time_ns() - (i + 1) * (last - first)
        fake.play(raw.shifted(begin + i * (last - first) - first, i * 100_000), raw.positions)
        if how == "steps":
            attach.step(i)
            with attach.scope("evaluate"), attach.scope(None), attach.scope("\udcff"):  # names are the job's matter
                time.sleep(0.01)
    if how.startswith("back_"):
        back(how)
        return
    if how == "yielded":
        collecting = attach.attached().collector
        collecting.yield_to("a profiler")
        assert not fake.enabled
        assert not fake.kept
        assert attach.status() == "yielded"
        flushes, _ = fake.flushes, fake.enabled.update({1, 10})  # the other's, from now on
        collecting.yield_to("a profiler")
        if repetitions == 0:  # for ever: the collector fails meanwhile
            collecting._revive_decoder = lambda: 1 // 0
            while attach.status() == "yielded":
                time.sleep(0.01)
            collecting.resume_after("a profiler")
            collecting.yield_to("another profiler")
            assert (fake.enabled, fake.flushes, attach.status()[:6]) == ({1, 10}, flushes, "failed")
            print_decoder()
            return
        assert (fake.enabled, fake.flushes) == ({1, 10}, flushes)
        fake.enabled.clear()
        collecting.resume_after("a profiler")
        assert (len(fake.enabled), fake.holds, attach.status()) == (5, True, "on"), (
            "in this thread, which launches nothing"
        )
        fake.play(raw.shifted(time.time_ns() - first, 9_000_000), raw.positions)
    if how == "taken":
        settled()
        fake.busy = True  # so that a buffer is out
        fake.play(raw.shifted(time.time_ns() - first, 8_000_000), raw.positions[:1])
        fake.taken()
        fake.busy = False
        collecting, ticks = attach.attached().collector, []
        is_taken = collecting._is_taken
        collecting._is_taken = lambda: ticks.append(is_taken()) or ticks[-1]
        while len(fake.enabled) < 5 and len(ticks) < 4 * collector.TAKEN_S / collector.FLUSH_S:
            time.sleep(0.01)
        fake.play(raw.shifted(time.time_ns() - first, 9_000_000), raw.positions)
    if how == "overslept":  # the decoder stands still until the job is gone, and has no room for events
        time.sleep(1.0)
        decoder = attach.attached().decoder
        os.kill(decoder, signal.SIGSTOP)
        fake.play(raw.shifted(time.time_ns() - first, 9_000_000), raw.positions)
        for i in range(2_000):
            attach.step(i)
        wake, nowhere = f"sleep 4; kill -CONT {decoder}", subprocess.DEVNULL
        subprocess.Popen(["sh", "-c", wake], start_new_session=True, stdout=nowhere, stderr=nowhere)
    if how == "policy":
        file = Path(os.environ["DRUMLINE_SPOOL__ROOT"]) / "policy"
        header = attach.attached().pool.header
        for text, wanted in (
            (b"off\n", OFF),
            (b"always\n", ALWAYS),
            (b"\xff\xfe\0\n", ALWAYS),
            (None, ALWAYS),
        ):
            settled()
            file.write_bytes(text) if text else file.unlink()
            ticks = header[Header.TICKS]
            while (
                header[Header.MODE] != wanted
                or len(fake.enabled) != 5 * (wanted != OFF)
                or header[Header.TICKS] < ticks + 30
            ):
                time.sleep(0.01)
            fake.play(raw.shifted(time.time_ns() - first, 9_000_000), raw.positions)
    if how == "place":  # torch.distributed was initialised
        settled()
        process_info.place = lambda: {"rank": 5, "world_size": 6}
        process_info.gpus = lambda: [{"uuid": f"GPU-{i}", "model": "NVIDIA H200"} for i in range(8)]
        while not attach.attached()._place:
            time.sleep(0.01)
        time.sleep(0.5)
        fake.play(raw.shifted(time.time_ns() - first, 9_000_000), raw.positions)
    if how == "stopped":  # as by a batch system that suspends jobs, but the job goes on
        os.kill(attach.attached().decoder, signal.SIGSTOP)
        while attach.status() != "decoder_stalled":
            time.sleep(0.01)
        assert not fake.enabled
        os.kill(attach.attached().decoder, signal.SIGCONT)
        while len(fake.enabled) < 5:
            time.sleep(0.01)
        fake.play(raw.shifted(time.time_ns() - first, 9_000_000), raw.positions)
    if how == "decoder":
        settled()
        first = attach.attached().decoder
        os.kill(first, signal.SIGKILL)
        while attach.attached().decoder == first:
            time.sleep(0.01)
        fake.play(raw.shifted(time.time_ns() - first_ns(raw), 9_000_000), raw.positions)
    if how == "closed":  # as a daemon does; then the job opens connections
        events = attach.attached()._events.fileno()
        settled()
        os.closerange(3, 1_024)
        pairs = [socket.socketpair() for _ in range(8)]
        assert events in {end.fileno() for pair in pairs for end in pair}
        for i in range(100):
            attach.step(i)
        while not attach.status().startswith("failed"):
            time.sleep(0.01)
        attach.step(100)
        attach.attached().close()
        for pair in pairs:
            for end, other in (pair, pair[::-1]):
                end.send(b"of the job")
                assert other.recv(64) == b"of the job"
    if how == "decoders":  # something kills each of them
        while not attach.status().startswith("failed"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(attach.attached().decoder, signal.SIGKILL)
            time.sleep(0.05)
        fake.play(raw.shifted(time.time_ns() - first, 9_000_000), raw.positions)
    if how in ("kill", "exit"):
        settled()  # names are read from the memory of the job
    if how in ("fork", "hold", "stuck", "peer"):
        time.sleep(1.0)  # flushed since
    if how == "peer":  # the first is in the last buffer
        fake.peer_copy()
        fake.play(raw.shifted(time.time_ns() - first, 9_000_000), raw.positions)
    if how == "end":
        threading.Thread.start = no_thread
    report = {"delivered": fake.delivered, "dropped": fake.dropped, "status": attach.status()}
    report.update(recorded=sorted(fake.enabled), begin_ns=job.begin_ns)
    print(json.dumps({**report, "decoder": attach.attached().decoder}), flush=True)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(3)
    elif how == "stuck":  # CUPTI never comes back from its last flush
        fake.stuck = True
    elif how == "exception":
        raise RuntimeError("the job's own")
    elif how == "hold":
        os.kill(attach.attached().decoder, signal.SIGCONT)
    elif how == "fork":
        child = os.fork()
        if not child:
            assert attach.attached() is None
            fake.play(raw.shifted(begin, 5_000_000), raw.positions)  # a callback in the child: nothing happens
            sys.exit(0)  # with atexit handlers
        assert os.waitpid(child, 0)[1] == 0
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        fake.play(raw.shifted(time.time_ns() - first, 9_000_000), raw.positions)
        print(json.dumps({"delivered": fake.delivered}), flush=True)


if sys.argv[1] == "forked":  # as vLLM starts its engine: multiprocessing's forked processes know no atexit
    sys.argv[1] = "end"
    child = multiprocessing.get_context("fork").Process(target=main)
    child.start()
    child.join()
    sys.exit(child.exitcode)
main()
