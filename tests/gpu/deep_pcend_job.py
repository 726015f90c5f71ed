"""One way to end CUPTI's PC sampling beside a training loop, in a process of its own: deep_pcend_job.py OPTIONS (JSON).

Options: call ("Disable", or "Stop": sampling is started and stopped by calls, and stays enabled), place ("beside":
another thread calls it while the loop launches; "mark": the loop's thread does between two steps), begun (the same of
the begin; default: as place), synced (the context is synchronized before), second (a second thread launches all the
time; "late": once sampling has begun), drumline (below `drumline run`, policy always), rounds. Prints a JSON object
after each round: a process that hangs leaves those before.
"""

import ctypes
import faulthandler
import json
import sys
import threading
import time
from statistics import median

import torch
from deep_cupti import CONTINUOUS, KERNEL, Calls, PcSampler, current_context

options = json.loads(sys.argv[1])
BEGAN, PERIOD, HARDWARE_MB, SAMPLE_S = time.monotonic(), 16, 32, 1.0


def report(**values: object) -> None:
    print(json.dumps({"s": round(time.monotonic() - BEGAN, 1), **values}, default=str), flush=True)


class Loop:
    """Trains small layers: many short kernels, and a backward pass, which another thread launches."""

    def __init__(self) -> None:
        layers = [module for _ in range(30) for module in (torch.nn.Linear(256, 256), torch.nn.GELU())]
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.data = torch.randn(64, 256, device="cuda")
        self.steps: list[float] = []

    def step(self) -> None:
        begin = time.perf_counter()
        self.model(self.data).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps.append(time.perf_counter() - begin)

    def run(self, seconds: float, until: threading.Event | None = None) -> float:
        """Train for so long, or until the event; return the median step in ms."""
        self.steps.clear()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (until and until.is_set()):
            self.step()
        torch.cuda.synchronize()
        return round(1e3 * median(self.steps or [0.0]), 3)


def beside(loop: Loop, run: "object") -> float:
    """Call in another thread while the loop trains; return its ms."""
    done, took = threading.Event(), []

    def call() -> None:
        time.sleep(0.3)
        begin = time.perf_counter()
        run()
        took.append(1e3 * (time.perf_counter() - begin))
        done.set()

    threading.Thread(target=call, daemon=True).start()
    loop.run(60, done)
    return round(took[0], 1)


def at_mark(loop: Loop, run: "object") -> float:
    """Call in the loop's thread after some steps that may still run; return its ms."""
    for _ in range(20):
        loop.step()
    begin = time.perf_counter()
    run()
    return round(1e3 * (time.perf_counter() - begin), 1)


def launching(halt: threading.Event) -> None:
    data, stream = torch.ones(1 << 12, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        while not halt.is_set():
            for _ in range(50):
                data.add_(1.0)
            stream.synchronize()


def draining(sampler: PcSampler, halt: threading.Event) -> None:
    while not halt.wait(0.1):
        sampler.drain()


def main() -> None:
    faulthandler.dump_traceback_later(25, exit=True)
    torch.cuda.init()
    loop, calls, halt = Loop(), Calls(), threading.Event()
    loop.run(0.5)
    sampler, driver = PcSampler(calls, current_context()), ctypes.CDLL("libcuda.so.1")
    places = {"beside": beside, "mark": at_mark}
    place = places[options["place"]]
    begin = places[options.get("begun", options["place"])]
    plain = loop.run(1)
    if not options.get("drumline"):
        calls("cuptiActivityEnable", KERNEL) if options.get("records") else None
    if options.get("second") is True:
        threading.Thread(target=launching, args=(halt,), daemon=True).start()
    report(stage="begun", cupti=calls.version(), plain_ms=plain, recorded_ms=loop.run(1))
    by_calls = options["call"] == "Stop"

    def end() -> None:
        if options.get("synced"):
            driver.cuCtxSynchronize()
        if by_calls:
            sampler.plain("Stop")
        else:
            sampler.disable()

    for number in range(options.get("rounds", 4)):
        if by_calls and number:
            begun_ms = begin(loop, lambda: sampler.plain("Start"))
        else:
            begun_ms = begin(loop, lambda: sampler.enable(CONTINUOUS, by_calls, PERIOD, HARDWARE_MB))
            if by_calls:
                begin(loop, lambda: sampler.plain("Start"))
        report(stage="begun round", number=number, begun_ms=begun_ms)
        late = threading.Event()
        if options.get("second") == "late":
            threading.Thread(target=launching, args=(late,), daemon=True).start()
        stop = threading.Event()
        thread = threading.Thread(target=draining, args=(sampler, stop), daemon=True)
        thread.start()
        sampled_ms = loop.run(SAMPLE_S)
        stop.set()
        thread.join()
        ended_ms = place(loop, end)
        if by_calls:
            sampler.drain()
        report(
            stage="round", number=number, begun_ms=begun_ms, ended_ms=ended_ms, step_sampled_ms=sampled_ms,
            step_after_ms=loop.run(1), totals=sampler.totals, results=calls.results,
        )  # fmt: skip
        late.set()
        time.sleep(0.3)
        sampler.totals.clear()
        sampler.samples.clear()
    halt.set()
    if options.get("drumline"):
        import drumline

        report(stage="drumline", status=drumline.status())
    report(stage="end", step_ms=loop.run(1))


main()
