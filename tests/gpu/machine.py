"""Record samples of one real GPU under known loads, and print what they cost; called by machine.sh: machine.py OUT

MACHINE_LOADS=idle: only what sampling costs.
The sampler is the agent's own. Loads run in a process of their own, which is the job that the samples belong to.
"""

import gzip
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import mean

import pynvml

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
LOADS = (("idle", 15), ("matmul", 20), ("idle", 10), ("fp64", 10), ("int8", 8), ("host-to-device", 10),
         ("device-to-host", 8), ("device-to-device", 10), ("idle", 10))  # fmt: skip
SHOWN = ("sm_active", "sm_occupancy", "tensor_active", "tensor_half_active", "tensor_double_active",
         "tensor_integer_active", "dram_active", "fp64_active", "fp32_active", "fp16_active", "pcie_rx_kbps",
         "pcie_tx_kbps", "memory_temperature", "power_mw", "sm_clock", "violation_power_ns", "job_memory",
         "job_util_sm")  # fmt: skip


def load(name: str, seconds: float) -> None:
    import torch

    device, size = torch.device("cuda"), 8192
    big = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    if name in ("matmul", "fp64"):
        kind = torch.bfloat16 if name == "matmul" else torch.float64
        a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
        work = lambda: torch.mm(a, b)  # noqa: E731
    elif name == "int8":
        a, b = (torch.randint(-9, 9, (size, size), dtype=torch.int8, device=device) for _ in range(2))
        work = lambda: torch._int_mm(a, b.t())  # noqa: E731
    elif name == "device-to-device":
        other = torch.empty_like(big)
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
    lib = TimedNvml()
    nvml = Nvml(lib)
    for _ in range(samples):
        nvml.sample(nvml.gpus[0], time.time_ns(), complete=True)
        time.sleep(0.12)
    nvml.close()
    return result | {key: lib.seconds[key] / lib.calls[key] * 1e3 for key, _ in lib.seconds.most_common(30)}


def main(out: Path) -> None:
    nvml = Nvml(pynvml)
    gpu = nvml.gpus[0]
    facts = {
        "driver": nvml.driver,
        "model": gpu.model,
        "library": pynvml.__version__ if hasattr(pynvml, "__version__") else "",
    }
    nvml.sample(gpu, time.time_ns(), complete=True)
    facts["absent"] = dict(gpu.query.absent)
    nvml.close()
    cost = timings()
    spool, processes = SpoolWriter(out / "spool", {"process_id": "agent-1", "sequence": 0}), []
    sampler = DeviceSampler(spool, DeviceBatches("agent-1", "h"), lambda: list(processes), SamplerOptions(1.0))
    sampler.start()
    pynvml.nvmlInit()
    handle, phases = pynvml.nvmlDeviceGetHandleByIndex(0), []
    for name, seconds in LOADS if "MACHINE_LOADS" not in os.environ else [("idle", 30)]:
        answer = {}
        if name == "idle":
            begun, cpu = time.time_ns(), time.process_time()
            time.sleep(seconds)
        else:
            command = [sys.executable, __file__, "load", name, str(seconds)]
            job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            processes[:] = [{"job": name, "run": "r", "rank": 0, "host": "h", "pid": job.pid, "start_ns": 1}]
            if job.stdout.readline() != "ready\n":
                print(f"{name}: the load failed")
                processes.clear()
                continue
            begun, cpu = time.time_ns(), time.process_time()
            before = pynvml.nvmlDeviceGetViolationStatus(handle, pynvml.NVML_PERF_POLICY_POWER).violationTime
            answer = json.loads(job.stdout.readline())
            after = pynvml.nvmlDeviceGetViolationStatus(handle, pynvml.NVML_PERF_POLICY_POWER).violationTime
            answer["violation_power_ns"] = after - before
        phases.append(
            {"load": name, "start_ns": begun, "end_ns": time.time_ns(), "cpu_s": time.process_time() - cpu, **answer}
        )
        if name != "idle":
            job.wait()
            processes.clear()
    sampler.stop()
    rows = []
    names = sorted(path.name for path in Path(spool.folder).glob("*.seg"))
    frames = (frame for name in names for frame in Segment(SpoolDirectory(spool.folder), name).read(False))
    for frame in frames:
        batch = decode(model(Topic.DEVICE), frame.body)
        row = {name: values[0].item() for name, values in batch.columns.items()}
        rows.append({"job": batch.envelope["job"], "gpu_index": batch.envelope["gpu_index"], **row})
    with gzip.open(out / "machine.json.gz", "wt") as file:
        json.dump({**facts, "cost": cost, "phases": phases, "rows": rows}, file)
    report(facts, cost, phases, rows)


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
            agent = 8 * phase["cpu_s"] / seconds
            print(f"   power violation {share:.4f} of the time; agent, 8 GPUs at 1 s: {agent:.2%} of a core")
    names = [n for n in rows[-1] if n not in ("job", "gpu_index")]
    print("never read:", [n for n in names if all(r[n] == -1 for r in rows)])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if sys.argv[1] == "load":
        load(sys.argv[2], float(sys.argv[3]))
    else:
        main(Path(sys.argv[1]))
