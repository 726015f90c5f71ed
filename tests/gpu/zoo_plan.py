"""Phases of a job of the zoo, and what each of its ranks does in them; for tests/gpu/zoo.py and zoo_job.py.

A phase is (fault, rank, size, seconds). `host`: the rank's host is late in each step. `gpu`: another process computes
on the rank's GPU. The size is a share of a healthy step, which rank 0 measures before the first phase: all ranks read
it from the file `began`. Each rank prints a JSON line when a phase begins and when it ends.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from phase_clock import phase_at, write_whole

Phase = tuple[str, int, float, float]
SHAPES = [
    "moe", "accumulation", "pipeline", "rl", "tp_decode", "fsdp2", "ddp", "ddp_buffers", "lengths", "tp", "one_f_one_b",
    "interleaved", "context", "recommender", "evaluation", "compiled", "two_hosts",
]  # fmt: skip
#: Sizes of faults, the ranks that have them, and the seed of random lengths, by mode.
MODES = {
    "whole": (1, [("host", 1, 0.10), ("host", 0, 0.35), ("gpu", 0, 0.10), ("gpu", 1, 0.35)]),
    "short": (1, [("host", 1, 0.10), ("host", 0, 0.35), ("gpu", 0, 0.10), ("gpu", 1, 0.35)]),
    "once": (7, [("gpu", 1, 0.16), ("host", 0, 0.14), ("gpu", 0, 0.28), ("host", 1, 0.24)]),
}
#: Steps before the first phase, and those of them at the end that are measured.
WARM_STEPS, MEASURED_STEPS = 48, 24
#: Steps that another rank may be ahead of rank 0.
AHEAD = 24
#: Time in which the other process computes once; s.
PERIOD_S = 0.02
#: Time for the other process to come up and measure itself; s.
MEASURE_S = 25.0


def phases_of(text: str, seconds: float, default: str) -> list[Phase]:
    """Return phases of equal length, a healthy one before the first fault and after each of them.

    `text`: faults as `host:1:0.1 gpu:0:0.35`, without healthy phases; "" = those of the mode `default`.
    """
    faults = [(name, int(on), float(size)) for name, on, size in (part.split(":") for part in text.split())]
    phases: list[Phase] = [("healthy", -1, 0.0, seconds)]
    for name, on, size in faults or MODES[default][1]:
        phases += [(name, on, size, seconds), ("healthy", -1, 0.0, seconds)]
    return phases


@dataclass
class Shape:
    """A job. `folder`: of its plan, logs and rings. `packing`: the process that packs its rows, and its end at most."""

    name: str
    number: int
    folder: Path
    ranks: list[subprocess.Popen] = field(default_factory=list)
    packing: tuple[subprocess.Popen, float] | None = None
    result: dict[str, object] = field(default_factory=dict)

    @property
    def job(self) -> str:
        """Return the job's name; none is a part of another one."""
        return f"zoo-{self.name}-job"


class GpuNeighbour:
    """A second process on this rank's GPU, which zoo_neighbour.py is. It starts idle, and ends with this process."""

    def __init__(self, local_rank: int) -> None:
        plain = {
            name: text
            for name, text in os.environ.items()
            if name not in ("PYTHONPATH", "NCCL_PROFILER_PLUGIN") and not name.startswith("DRUMLINE_")
        }
        # Without drumline the hook is not there, but PyTorch may be on PYTHONPATH as well.
        plain["PYTHONPATH"] = os.environ.get("ZOO_PYTHONPATH", "")
        command = [sys.executable, str(Path(__file__).with_name("zoo_neighbour.py")), str(local_rank)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=plain, text=True)

    def take(self, share: float) -> None:
        """Take this share of the GPU's time from now on."""
        self.process.stdin.write(f"{share}\n")
        self.process.stdin.flush()

    def measure(self) -> str:
        """Let it measure its work while nothing else runs on the GPU; return its answer, "" where none comes."""
        self.take(0.0)
        is_ready, _, _ = select.select([self.process.stdout], [], [], MEASURE_S)
        return self.process.stdout.readline().strip() if is_ready else ""


class Plan:
    """Applies the phases on one rank. The job calls `step` between two steps and ends when it returns True.

    `step_number`: returns the step that the recorder is in.
    """

    def __init__(self, rank: int, step_number: Callable[[], int]) -> None:
        plan = json.loads(Path(os.environ["ZOO_PLAN"]).read_text())
        self.rank, self.folder, self.step_number = rank, Path(plan["folder"]), step_number
        self.phases: list[Phase] = [tuple(phase) for phase in plan["phases"]]
        self.steps, self.now, self.began_s, self.healthy_s = 0, -1, 0.0, 0.0
        self.last: int | None = None
        self.ended = time.perf_counter()
        self.took: list[float] = []
        needs_neighbour = any(fault == "gpu" and on == rank for fault, on, *_ in self.phases)
        self.neighbour = GpuNeighbour(int(os.environ["LOCAL_RANK"])) if needs_neighbour else None

    def open(self) -> None:
        """Prepare what needs the GPU, before the job uses it."""
        if self.neighbour:
            print(json.dumps({"neighbour": self.neighbour.measure()}), flush=True)

    def step(self) -> bool:
        """End a step; return whether it was the last."""
        now = time.perf_counter()
        self.took.append(now - self.ended)
        self.ended = now
        self.steps += 1
        if not self.began_s:
            self._begin()
            return False
        elapsed = time.time() - self.began_s
        at = phase_at((seconds for *_, seconds in self.phases), elapsed)
        if elapsed >= 0 and at != self.now:
            self._change(at)
        self._be_late()
        return self._is_last()

    def _be_late(self) -> None:
        if 0 <= self.now < len(self.phases):
            fault, on, size, _ = self.phases[self.now]
            if fault == "host" and on == self.rank:
                time.sleep(size * self.healthy_s)

    def _begin(self) -> None:
        """Let rank 0 measure a healthy step and begin for all ranks."""
        path = self.folder / "began"
        if self.rank == 0 and self.steps == WARM_STEPS:
            values = {"at": time.time() + 0.5, "step_s": median(self.took[-MEASURED_STEPS:])}
            write_whole(path, json.dumps(values))
        if path.exists():
            values = json.loads(path.read_text())
            self.began_s, self.healthy_s = values["at"], values["step_s"]

    def _change(self, to: int) -> None:
        """End a phase and begin another."""
        if 0 <= self.now < len(self.phases):
            self._report(self.now, "end", median_step_ms=round(1e3 * median(self.took), 3), steps=len(self.took))
        took_part = self.now >= 0
        self.now, self.took = to, []
        is_inside = to < len(self.phases)
        if self.neighbour and (took_part or is_inside):
            fault, on, size, _ = self.phases[to] if is_inside else ("healthy", -1, 0.0, 0.0)
            # A step of t becomes one of (1 + size) * t where the other process has size / (1 + size) of the time.
            self.neighbour.take(size / (1 + size) if (fault, on) == ("gpu", self.rank) else 0.0)
        if is_inside:
            self._report(to, "begin", size_ms=round(1e3 * self.phases[to][2] * self.healthy_s, 3))

    def _report(self, phase: int, event: str, **values: object) -> None:
        at = {"rank": self.rank, "phase": phase, "event": event, "step": self.step_number(), "time_ns": time.time_ns()}
        print(json.dumps({**at, **values}), flush=True)

    def _is_last(self) -> bool:
        path = self.folder / "last"
        if self.rank == 0 and self.now == len(self.phases) and self.last is None:
            write_whole(path, json.dumps({"step": self.steps + AHEAD}))
        if self.last is None and path.exists():
            self.last = int(json.loads(path.read_text())["step"])
        return self.last is not None and self.steps >= self.last
