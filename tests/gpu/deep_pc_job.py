"""One probe of CUPTI's PC sampling in a process of its own, for deep_probe.py: deep_pc_job.py OPTIONS (JSON).

Options: mode (1 continuous, 2 serialized), control (start and stop by calls), before and after (kinds of activity
records that are switched on before and after PC sampling), early (PC sampling begins before the first kernel), thread
(its calls come from another thread), periods (several, one after the other), hardware_mb, uid, drumline (this process
is below `drumline run` and records with policy always), busy (a thread
launches kernels all the time). Prints a JSON object after each stage: what a crash leaves.
"""

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from statistics import median

import torch
from deep_cupti import CONTINUOUS, Calls, PcSampler, Records, current_context, privileges, support

options = json.loads(sys.argv[1])

SMALL, BLOCKS = 2_000, 3
BEGAN = time.monotonic()


def report(**values: object) -> None:
    print(json.dumps({"s": round(time.monotonic() - BEGAN, 1), **values}, default=str), flush=True)


class Work:
    """Kernels that wait for memory, that compute, that are short, and two at a time."""

    def __init__(self) -> None:
        self.x = torch.ones(1 << 28, device="cuda")
        self.y = torch.empty_like(self.x)
        self.a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self.v = torch.rand(1 << 22, device="cuda") + 1
        self.tiny = torch.ones(1024, device="cuda")
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def memory(self) -> None:
        for _ in range(20):
            torch.add(self.x, 1.0, out=self.y)

    def products(self) -> None:
        for _ in range(10):
            torch.mm(self.a, self.a)

    def arithmetic(self) -> None:
        for _ in range(50):
            torch.lgamma(self.v)

    def small(self) -> None:
        for _ in range(SMALL):
            self.tiny.add_(1.0)

    def two_streams(self) -> None:
        for stream in self.streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(30_000_000)

    def kinds(self) -> dict[str, Callable[[], None]]:
        names = ("memory", "products", "arithmetic", "small", "two_streams")
        return {name: getattr(self, name) for name in names}


def ms(work: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def times(work: Work) -> dict[str, float]:
    return {name: round(median(ms(run) for _ in range(BLOCKS)), 3) for name, run in work.kinds().items()}


def called(run: Callable[[], object]) -> object:
    """Run in another thread, which never used CUDA, if the options say so."""
    if not options.get("thread"):
        return run()
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    thread.join()
    return results[0]


def sampled(sampler: PcSampler, work: Work, records: Records, control: bool, period: int) -> None:
    """Sample each kind of work, and report its reasons, times and records; then disable."""
    mode, before_mb = options.get("mode", CONTINUOUS), torch.cuda.mem_get_info()[0] >> 20
    begin = time.perf_counter()
    about = called(lambda: sampler.enable(mode, control, period, options.get("hardware_mb", 0)))
    report(
        stage="enabled", period=period, about=about, ms=round(1e3 * (time.perf_counter() - begin), 1),
        gpu_mb=before_mb - (torch.cuda.mem_get_info()[0] >> 20), results=sampler.calls.results,
    )  # fmt: skip
    records.switch(True, tuple(options.get("after", ())))
    if not about:
        return
    if control:
        report(stage="enabled, not started", times=times(work))
        called(lambda: sampler.plain("Start"))
    for name, run in work.kinds().items():
        took = ms(run)
        if control:
            called(lambda: sampler.plain("Stop"))
        begin = time.perf_counter()
        called(sampler.drain)
        drained = round(1e3 * (time.perf_counter() - begin), 1)
        report(stage=name, ms=round(took, 2), drain_ms=drained, totals=sampler.totals, kernels=sampler.by_kernel())
        sampler.totals.clear()
        if control:
            called(lambda: sampler.plain("Start"))
    records.flush()
    report(stage="sampling", period=period, times=times(work), records=records.flush())
    if control:
        called(lambda: sampler.plain("Stop"))
    called(sampler.drain)
    begin = time.perf_counter()
    called(sampler.disable)
    report(
        stage="disabled", ms=round(1e3 * (time.perf_counter() - begin), 1), totals=sampler.totals, times=times(work),
        records=records.flush(), results=sampler.calls.results,
    )  # fmt: skip


def launching(halt: threading.Event) -> None:
    """Launch kernels until `halt`, the host ahead of the GPU."""
    data, number = torch.ones(1 << 16, device="cuda"), 0
    while not halt.is_set():
        data.add_(1.0)
        number += 1
        if number % 500 == 0:
            torch.cuda.synchronize()


def main() -> None:
    faulthandler.dump_traceback_later(30, exit=True)
    if options.get("uid"):  # before CUDA: the driver looks at who opens it
        os.setgid(options["uid"])
        os.setuid(options["uid"])
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    calls = Calls()
    if options.get("drumline"):
        import drumline

        report(stage="drumline", status=drumline.status())
    records = Records(calls, registers=not options.get("drumline"))
    sampler, control = PcSampler(calls, current_context()), bool(options.get("control"))
    report(
        stage="begun", cupti=calls.version(), gpu=torch.cuda.get_device_name(), **privileges(), support=support(calls)
    )
    work = Work()
    periods = options.get("periods") or [0]
    halt = threading.Event()
    if options.get("busy"):
        threading.Thread(target=launching, args=(halt,), daemon=True).start()
    if not options.get("early"):
        times(work)
        report(stage="plain", times=times(work))
    records.switch(True, tuple(options.get("before", ())))
    if options.get("before"):
        report(stage="with records", times=times(work), records=records.flush(), order=records.order())
    for period in periods:
        sampled(sampler, work, records, control, period)
    records.switch(False, (*options.get("before", ()), *options.get("after", ())))
    report(stage="after", times=times(work), records=records.flush(), results=calls.results)
    if options.get("drumline"):
        import drumline

        report(stage="drumline", status=drumline.status(), marks_s=round(time.monotonic() - BEGAN, 1))
        return
    calls("cuptiFinalize")
    report(stage="finalized, going on", results=calls.results)
    time.sleep(1)
    halt.set()
    report(stage="finalized", times=times(work), results=calls.results)


main()
