"""A job under policy counts, with a fake CUPTI and a fake driver: counted_job.py HOW; ends as HOW says.

Prints as JSON the decoder, the time, and what it launched: [kernel or kind of copy, launches, of them replays, bytes].
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from support.fakes import launches as calls
from support.fakes.cupti import MULTIPLE_SUBSCRIBERS, FakeCupti, record
from support.fakes.launches import FakeDriver, Node, numbers

from drumline.producers.collector import attach, attachment, collector, counter, marks
from drumline.producers.decoder.cupti_layout import KERNEL

GEMM, ADD, COPY_KERNEL = 0x1000, 0x2000, 0x3000
NAMES = {GEMM: b"_Z4gemmPf", ADD: b"_Z3addPf", COPY_KERNEL: b"_Z4copyPf"}
EXEC, GRAPH = 0xE0, 0xA0
ADD_NAME = ctypes.create_string_buffer(NAMES[ADD])
fake = FakeCupti()
driver = FakeDriver(fake, dict(NAMES))
driver.graphs[GRAPH] = [
    Node(calls.KERNEL_NODE, ADD), Node(calls.KERNEL_NODE, COPY_KERNEL), Node(calls.KERNEL_NODE, ADD),
    Node(calls.COPY_NODE, bytes=4_096),
]  # fmt: skip
launched: Counter[tuple[str, str]] = Counter()


def add(name: str, launches: int, replayed: int = 0, size: int = 0) -> None:
    for field, number in (("launches", launches), ("replayed", replayed), ("bytes", size)):
        launched[name, field] += number


def step(counts: bool = True) -> None:
    """Launch three kernels, replay a graph twice, and copy."""
    for function in (GEMM, GEMM, ADD):
        driver.launch(function, (4, 2, 1, 128, 1, 1, 48))
    for _ in range(2):
        driver.replay(EXEC)
    driver.call(calls.HTOD_ASYNC, numbers(0x7000_0000, 0x10, 1_000, 9))
    if counts:
        add("_Z4gemmPf", 2)
        add("_Z3addPf", 5, 4)
        add("_Z4copyPf", 2, 2)
        add("1", 3, 2, 1_000 + 2 * 4_096)


def wait_for(state: str) -> None:
    """Wait for a state of the collector, at a mark of the job now and then: recording begins at one."""
    until = time.monotonic() + 60
    while attach.status() != state:
        assert time.monotonic() < until, attach.status()
        attach.step(100)
        time.sleep(0.01)


def policy(text: str) -> None:
    file = Path(os.environ["DRUMLINE_SPOOL__ROOT"]) / "policy"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text) if text else file.unlink()


def window() -> None:
    """Launch in a deep window: one kernel is recorded, none is counted."""
    policy("always")
    wait_for("on")
    assert fake.subscribed == threading.get_ident(), "in the thread that marks"
    step(counts=False)
    now, name = time.time_ns(), ctypes.addressof(ADD_NAME)
    fake.play(record(KERNEL, start=now, end=now + 9, name=name), [(KERNEL, 0)])
    time.sleep(0.3)
    policy("")
    wait_for("counting")


def main() -> None:
    how = sys.argv[1]
    attachment.load_driver = lambda: driver
    fake.racy, marks.SCAN_S, counter.RETRY_S = False, 0.0, 0.3
    fake.version = 130_401 if how == "kept" else fake.version
    os.environ["TEARDOWN_CUPTI"] = str(int(how == "torn_down"))
    if how == "held":  # another profiler has CUPTI's callbacks
        fake.holder = MULTIPLE_SUBSCRIBERS
    started = "auto" if how == "late" else "counts"
    assert attach.attach(started, cupti=fake.bound())
    if how == "late":
        driver.instantiate(EXEC, GRAPH)
        attach.step(0)
        assert not fake.callbacks
        policy("counts")
        attach.step(1)
        wait_for("counting")
        for _ in range(2):
            driver.replay(EXEC)  # of a graph from before
        add("(graph of unknown kernels)", 2)
    if how == "held":
        time.sleep(1.0)
        assert attach.status() == "off"
        print(json.dumps({"decoder": attach.attached().decoder}), flush=True)
        return
    wait_for("counting")
    assert not fake.enabled, "no record"
    if how != "late":
        assert (fake.kept, fake.subscribed) == (False, 0), "no record was ever on"
    if how == "gone":
        driver.launch(ADD, (4, 2, 1, 128, 1, 1, 48))
        add("_Z3addPf", 1)
        window()
        while not fake.finalized:
            time.sleep(0.01)
        assert not fake.callbacks
        step(counts=False)
        attach.step(100)
        assert fake.callbacks, "at the next mark"
        assert (fake.kept, fake.enabled) == (False, set())
    driver.instantiate(EXEC, GRAPH)
    for number in range(5):
        attach.step(number)
        step()
    if how == "window":  # records count while they are on, and the policy's counts go on behind them
        window()
        step()
        assert not fake.finalized, "a graph's next replay would fail"
    if how in ("yielded", "kept", "torn_down"):
        attach.attached().collector.yield_to("a profiler")
        assert not fake.callbacks
        step(counts=False)
        fake.holder = MULTIPLE_SUBSCRIBERS  # the profiler's, for ever
        attach.attached().collector.resume_after("a profiler")
    if how in ("kept", "torn_down"):
        time.sleep(collector.TEARDOWN_S + 3 * counter.RETRY_S)
        assert (attach.status(), fake.holder) == ("off", MULTIPLE_SUBSCRIBERS)
        step(counts=False)
    if how == "yielded":  # a graph that was made meanwhile, under the handle of one that is known, is not taken for it
        wait_for("counting")
        driver.launch(GEMM, (4, 2, 1, 128, 1, 1, 48))
        driver.replay(EXEC)
        add("_Z4gemmPf", 1)
        add("(graph of unknown kernels)", 1)
    if how == "late":
        policy("")
        attach.step(9)
        wait_for("off")
        step(counts=False)
    if how == "fork":
        child = os.fork()
        if not child:
            step()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        step()
    counts = {name: [launched[name, field] for field in ("launches", "replayed", "bytes")] for name, _ in launched}
    print(json.dumps({"decoder": attach.attached().decoder, "launched": counts}), flush=True)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


main()
