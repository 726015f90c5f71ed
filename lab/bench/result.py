"""Results of a benchmark, each beside its baseline and target, and a description of the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("drumline", "numpy", "fastavro", "confluent-kafka", "faust-streaming", "aiokafka", "clickhouse-connect",
            "chdb-core")  # fmt: skip

#: Takes a text about the work that begins now.
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """Holds one measured value.

    baseline: the same value of the baseline, measured in the same run.
    target: the design's limit: at least, or with `at_most` at most, that value.
    text: shown instead of a value that has no meaning by itself.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None
    target: float | None = None
    at_most: bool = False
    text: str = ""

    @property
    def ratio(self) -> float | None:
        """Return the value as a multiple of the baseline; None without one."""
        return self.value / self.baseline if self.baseline else None

    @property
    def met(self) -> bool | None:
        """Return True if the target is met; None without one."""
        if self.target is None:
            return None
        return bool(self.value <= self.target if self.at_most else self.value >= self.target)


@dataclass
class BenchReport:
    """Collects the results of one benchmark. `notes` states the conditions under which they hold."""

    name: str
    data: str
    baseline: str
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: float, unit: str, baseline: float | None = None, **more: Any) -> None:
        """Append a result; `more` are fields of Result."""
        self.results.append(Result(name, value, unit, baseline, **more))

    def as_json(self) -> dict[str, Any]:
        """Return all fields, and `ratio` and `met` of each result."""
        results = [{**asdict(result), "ratio": result.ratio, "met": result.met} for result in self.results]
        return {**asdict(self), "results": results}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 (linear interpolation); empty without values."""
    if not values:
        return {}
    return {f"p{q}": float(np.percentile(values, q)) for q in (50, 95, 99)}


def commit() -> str:
    """Return the commit of this checkout, with "+" behind it if files differ; "?" where git fails."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "?"
    return done.stdout.strip()


def _cores() -> str:
    """Return the number of cores, and how many of them this process may use."""
    number, usable = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    return f"{number} cores" if usable == number else f"{usable} of {number} cores"


def machine() -> dict[str, str]:
    """Return processor, cores, memory, the load of the last 1 and 5 minutes, commit and versions."""
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    load = os.getloadavg()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    facts = {
        "processor": f"{names[0] if names else platform.processor() or platform.machine()}, {_cores()}",
        "memory": f"{memory:.0f} GiB",
        "load before": f"{load[0]:.1f} (1 min), {load[1]:.1f} (5 min)",
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit(),
        "Python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts
