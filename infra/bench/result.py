"""What a benchmark measured: figures, each beside its baseline and its bar, and the machine it ran on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("drumline", "numpy", "fastavro", "confluent-kafka", "faust-streaming", "aiokafka", "clickhouse-connect",
            "chdb-core")  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """`baseline`: the same figure of the baseline, measured in the same run. `bar`: what the design asks for, at least
    (`most`: at most) that value. `words`: shown instead of a value that says nothing by itself."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    bar: float | None = None
    most: bool = False
    words: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times the baseline; None without one."""
        return self.value / self.baseline if self.baseline else None

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.most else self.value >= self.bar


@dataclass
class Report:
    """One benchmark's result. `notes`: what a reader must know to judge the figures."""

    name: str
    data: str
    baseline: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: float, unit: str, baseline: float | None = None, **more: Any) -> None:
        self.figures.append(Figure(name, value, unit, baseline, **more))

    def as_json(self) -> dict[str, Any]:
        """All fields, and `ratio` and `met` of each figure."""
        figures = [{**asdict(figure), "ratio": figure.ratio, "met": figure.met} for figure in self.figures]
        return {**asdict(self), "figures": figures}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 (linear interpolation); empty without values."""
    if not values:
        return {}
    return {f"p{q}": float(np.percentile(values, q)) for q in (50, 95, 99)}


def commit() -> str:
    """Of the checkout that this runs from, "+" behind it if files differ; "?" where that cannot be told."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "?"
    return done.stdout.strip()


def machine() -> dict[str, str]:
    """Processor, cores, memory, load at the moment (1 and 5 minutes), and versions; `commit`: "+" = with changes."""
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    load = os.getloadavg()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = {
        "processor": f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "load before": f"{load[0]:.1f} (1 min), {load[1]:.1f} (5 min)",
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit(),
        "Python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
