"""Record samples of one real GPU under known loads, and print what they cost; called by machine.sh: machine.py OUT

The sampler is the agent's own. Loads run in a process of their own, which is the job that the samples belong to; each
load is a job by name. With two GPUs, `peer` copies to the other one. OUT gets machine.json.gz.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import pynvml

from drumline.producers.health.host_health import host_health
from drumline.producers.network.link_samples import LinkSamples
from drumline.producers.nvml.batches import DeviceBatches
from drumline.producers.nvml.sampler import DeviceSampler, SamplerOptions
from drumline.producers.nvml.samples import Nvml
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import decode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Load and its seconds, in this order.
LOADS = (("idle", 8), ("matmul", 12), ("idle", 6), ("fp64", 6), ("int8", 6), ("host-to-device", 8),
         ("device-to-host", 6), ("device-to-device", 6), ("peer", 6), ("idle", 6))  # fmt: skip
SHOWN = ("sm_active", "sm_occupancy", "tensor_active", "tensor_half_active", "tensor_double_active",
         "tensor_integer_active", "dram_active", "fp64_active", "fp32_active", "fp16_active", "pcie_rx_kbps",
         "pcie_tx_kbps", "nvlink_rx_kbps", "nvlink_tx_kbps", "nvlink_links", "nvlink_active", "memory_temperature",
         "power_mw", "sm_clock", "violation_power_ns", "job_memory", "job_util_sm")  # fmt: skip


def loads() -> None:
    """Run the loads that standard input names, `NAME SECONDS` a line."""
    import torch

    device, size = torch.device("cuda", 0), 8192
    big = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    for line in sys.stdin:
        name, seconds = line.split()
        load(torch, name, float(seconds), big, device, size)


def load(torch, name: str, seconds: float, big, device, size: int) -> None:
    if name in ("matmul", "fp64"):
        kind = torch.bfloat16 if name == "matmul" else torch.float64
        a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
        work = lambda: torch.mm(a, b)  # noqa: E731
    elif name == "int8":
        a, b = (torch.randint(-9, 9, (size, size), dtype=torch.int8, device=device) for _ in range(2))
        work = lambda: torch._int_mm(a, b.t())  # noqa: E731
    elif name in ("device-to-device", "peer"):
        if name == "peer" and torch.cuda.device_count() < 2:
            print("no second GPU", flush=True)
            return
        other = torch.empty_like(big, device=torch.device("cuda", int(name == "peer")))
        work = lambda: other.copy_(big)  # noqa: E731
    else:
        pinned = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
        to, source = (big, pinned) if name == "host-to-device" else (pinned, big)
        work = lambda: to.copy_(source, non_blocking=True)  # noqa: E731
    work()
    torch.cuda.synchronize()
    print("ready", flush=True)
    count, begun = 0, time.monotonic()
    while time.monotonic() - begun < seconds:
        for _ in range(4):
            work()
        torch.cuda.synchronize()
        count += 4
    took = time.monotonic() - begun
    print(json.dumps({"calls_per_s": count / took}), flush=True)


class TimedNvml:
    """Passes calls on to NVML and adds up their CPU time; s."""

    def __init__(self) -> None:
        self.seconds, self.calls = Counter(), Counter()

    def __getattr__(self, name: str) -> object:
        value = getattr(pynvml, name)
        if not name.startswith("nvml") or not callable(value):
            return value

        def call(*arguments: object) -> object:
            if name == "nvmlDeviceGetFieldValues" and len(arguments[1]) > 1:
                return [call(arguments[0], [field])[0] for field in arguments[1]]
            key = f"{name} {arguments[1:]}" if name.endswith("FieldValues") else name
            begun = time.thread_time()
            try:
                return value(*arguments)
            finally:
                self.seconds[key] += time.thread_time() - begun
                self.calls[key] += 1

        return call


def reopen(times: int = 12) -> None:
    """Open NVML again and again, as the agent does after a GPU was lost."""
    for number in range(times):
        nvml = Nvml(pynvml)
        for gpu in list(nvml.gpus):
            nvml.sample(gpu, time.time_ns(), complete=True)
            time.sleep(0.11 * (number % 2))
            nvml.sample(gpu, time.time_ns())
        nvml.close()
        print("opened and closed", number + 1, flush=True)


def timings(samples: int = 15) -> dict[str, float]:
    """Return the mean CPU time of a sample, of a complete one, and of each call; ms."""
    result = {}
    for name, complete in (("sample", False), ("complete sample", True)):
        nvml = Nvml(pynvml)
        nvml.sample(nvml.gpus[0], time.time_ns())
        cpu = 0.0
        for _ in range(samples):
            time.sleep(0.12)
            before = time.thread_time()
            nvml.sample(nvml.gpus[0], time.time_ns(), complete=complete)
            cpu += time.thread_time() - before
        nvml.close()
        result[name] = cpu / samples * 1e3
        print(f"{name} is measured", flush=True)
    lib = TimedNvml()
    nvml = Nvml(lib)
    for number in range(samples):
        nvml.sample(nvml.gpus[0], time.time_ns(), complete=True)
        time.sleep(0.12)
        print("calls are measured", number + 1, flush=True)
    nvml.close()
    return result | {key: lib.seconds[key] / lib.calls[key] * 1e3 for key, _ in lib.seconds.most_common(60)}


def main(out: Path) -> None:
    nvml = Nvml(pynvml)
    gpu = nvml.gpus[0]
    facts = {"driver": nvml.driver, "model": gpu.model, "library": getattr(pynvml, "__version__", "")}
    nvml.sample(gpu, time.time_ns(), complete=True)
    facts["absent"] = dict(gpu.query.absent)
    facts["instances"] = len(gpu.instances)
    nvml.close()
    # Without what names this very board.
    checks = [asdict(check) | {"gpu_uuid": "", "serial": ""} for check in host_health(lambda: pynvml, 0)]
    facts["checks"] = [check for check in checks if check["gpu_index"] <= 0]
    links = LinkSamples({})
    list(links.read(time.time_ns()))
    for part in ("reopen", "timings"):
        child = subprocess.run([sys.executable, __file__, part], stdout=subprocess.PIPE, text=True, check=False)
        print(f"{part}: exit code {child.returncode}", child.stdout if child.returncode else "", flush=True)
    cost = json.loads(child.stdout.splitlines()[-1]) if child.returncode == 0 else {}
    with tempfile.TemporaryDirectory(prefix="drumline-machine-") as folder:
        phases, rows = record(Path(folder))
    facts["links"] = [{**sample.texts, **sample.numbers} for sample in links.read(time.time_ns())]
    with gzip.open(out / "machine.json.gz", "wt") as file:
        json.dump({**facts, "cost": cost, "phases": phases, "rows": rows}, file)
    report(facts, cost, phases, rows)


def record(folder: Path) -> tuple[list[dict], list[dict]]:
    """Return the phases and the samples of the first GPU."""
    spool, processes = SpoolWriter(folder, {"process_id": "agent-1", "sequence": 0}), []
    sampler = DeviceSampler(spool, DeviceBatches("agent-1", "h"), lambda: list(processes), SamplerOptions(1.0))
    sampler.start()
    pynvml.nvmlInit()
    handle, phases = pynvml.nvmlDeviceGetHandleByIndex(0), []

    def limited_ns() -> int:
        return pynvml.nvmlDeviceGetViolationStatus(handle, pynvml.NVML_PERF_POLICY_POWER).violationTime

    job = None
    for name, seconds in LOADS:
        answer = {}
        if name == "idle":
            begun, cpu = time.time_ns(), time.process_time()
            time.sleep(seconds)
        else:
            job = job or subprocess.Popen([sys.executable, __file__, "loads"], text=True, stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE)  # fmt: skip
            processes[:] = [{"job": name, "run": "r", "rank": 0, "host": "h", "pid": job.pid, "start_ns": 1}]
            job.stdin.write(f"{name} {seconds}\n")
            job.stdin.flush()
            if (line := job.stdout.readline()) != "ready\n":
                print(f"{name}: {line.strip() or 'the load failed'}")
                processes.clear()
                continue
            begun, cpu, before = time.time_ns(), time.process_time(), limited_ns()
            answer = json.loads(job.stdout.readline())
            answer["violation_power_ns"] = limited_ns() - before
        phases.append(
            {"load": name, "start_ns": begun, "end_ns": time.time_ns(), "cpu_s": time.process_time() - cpu, **answer}
        )
        processes.clear()
    sampler.stop()
    job.stdin.close()
    job.wait()
    rows = []
    names = sorted(path.name for path in Path(spool.folder).glob("*.seg"))
    frames = (frame for name in names for frame in Segment(SpoolDirectory(spool.folder), name).read(False))
    for frame in frames:
        batch = decode(model(Topic.DEVICE), frame.body)
        row = {name: values[0].item() for name, values in batch.columns.items()}
        if batch.envelope["gpu_index"] == 0:
            rows.append({"job": batch.envelope["job"], "gpu_index": 0, **row})
    return phases, rows


def report(facts: dict, cost: dict, phases: list, rows: list) -> None:
    print(json.dumps(facts, indent=1))
    print(json.dumps({name: round(value, 3) for name, value in cost.items()}, indent=1))
    for phase in phases:
        seconds = (phase["end_ns"] - phase["start_ns"]) / 1e9
        inside = [r for r in rows if phase["start_ns"] + 1.5e9 < r["time_ns"] < phase["end_ns"]]
        means = {name: round(mean(r[name] for r in inside), 2) for name in SHOWN} if inside else {}
        more = {name: value for name, value in phase.items() if name not in ("load", "start_ns", "end_ns")}
        print(f"{phase['load']}: {len(inside)} samples in {seconds:.1f} s", more, means, {r["job"] for r in inside})
        if len(inside) > 1:
            span = inside[-1]["time_ns"] - inside[0]["time_ns"]
            share = (inside[-1]["violation_power_ns"] - inside[0]["violation_power_ns"]) / span
            print(f"   power violation {share:.4f} of the time; sampler: {phase['cpu_s'] / seconds:.2%} of a core")
    names = [n for n in rows[-1] if n not in ("job", "gpu_index")]
    print("never read:", [n for n in names if all(r[n] == -1 for r in rows)])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if sys.argv[1] == "loads":
        loads()
    elif sys.argv[1] == "reopen":
        reopen()
    elif sys.argv[1] == "timings":
        print(json.dumps(timings()))
    else:
        main(Path(sys.argv[1]))
