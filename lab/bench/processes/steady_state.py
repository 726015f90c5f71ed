"""Evaluates memory and lag over a long time, with a target for each and the reason for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drumline.lab.bench.benchmarks.pipeline import MEMORY_MIB
from drumline.lab.bench.processes.process_watch import ProcessWatch, over_time
from drumline.lab.bench.processes.running_pipeline import DRAIN_S
from drumline.lab.bench.result import BenchReport, percentiles

#: Period in which memory and lag are sampled; s.
EVERY_S = 5.0
#: Time from which on slopes are evaluated: in less, one garbage collection or one slow insert decides; s.
EVALUATED_S = 600.0
#: Program -> the lag whose records it holds in memory.
LAG_OF = {"stream": "the worker", "sink": "the sink"}
#: Memory is flat if less is kept of each record than the smallest object of Python; bytes.
KEPT_BYTES = 32
#: Lag is bounded if it grows by no more than this share of the published records.
GROWING = 0.01


def slope(values: Sequence[float], every_s: float) -> float:
    """Return the least-squares slope per second of values sampled every `every_s`; 0 for fewer than three."""
    if len(values) < 3:
        return 0.0
    return float(np.polyfit(np.arange(len(values)) * every_s, np.asarray(values, float), 1)[0])


def slope_beside(values: Sequence[float], beside: Sequence[float], every_s: float) -> float | None:
    """Return the slope in time, per second, of a fit on time and `beside`; None if they were not sampled together."""
    if len(values) != len(beside) or len(values) < 4:
        return None
    terms = np.column_stack([np.ones(len(values)), np.arange(len(values)) * every_s, np.asarray(beside, float)])
    fit, *_ = np.linalg.lstsq(terms, np.asarray(values, float))
    return float(fit[1])


def add_steady_state(report: BenchReport, watch: ProcessWatch, seconds: float, records: float) -> None:
    """Add memory, lag and CPU of `seconds`, in which `records` a second were published.

    Slopes have targets if the time was EVALUATED_S or longer.
    """
    evaluated = seconds >= EVALUATED_S
    for name, values in watch.memory.items():
        is_program = name in ("stream", "sink")
        limit = {"target": MEMORY_MIB, "at_most": True} if is_program else {}
        flat = {"target": KEPT_BYTES * records * 3600 / 2**20, "at_most": True} if is_program and evaluated else {}
        report.add(f"memory of {name}, most", max(values) / 2**20, "MiB", **limit)
        report.add(f"memory of {name}, slope", slope(values, EVERY_S) * 3600 / 2**20, "MiB/h")
        late = slope(values[len(values) // 2 :], EVERY_S) * 3600 / 2**20
        report.add(f"memory of {name}, slope of the second half", late, "MiB/h", **flat)
        lag = watch.lag.get(LAG_OF.get(name, ""), [])
        if (at_same_lag := slope_beside(values[len(values) // 2 :], lag[len(lag) // 2 :], EVERY_S)) is not None:
            at_equal = at_same_lag * 3600 / 2**20
            report.add(f"memory of {name}, slope of the second half where its lag is the same", at_equal, "MiB/h")
        report.notes.append(f"Memory of {name}, mean of each tenth, MiB: {over_time(values, 2**20)}.")
    for name, used in watch.cpu_s.items():
        report.add(f"cores used by {name}", used / seconds, "cores")
    for name, values in watch.lag.items():
        for statistic, value in {"most": max(values, default=0), **percentiles(values)}.items():
            report.add(f"lag of {name}, {statistic}", value, "records")
        bounded = {"target": GROWING * 100, "at_most": True} if evaluated else {}
        grows = slope(values, EVERY_S) / records * 100
        report.add(f"lag of {name}, slope", grows, "% of the records published", **bounded)
        report.notes.append(f"Lag of {name}, mean of each tenth, records: {over_time(values)}.")
    samples = max(map(len, watch.memory.values()))
    report.notes.append(
        f"{samples} samples, one every {EVERY_S:g} s, of the last {seconds / 60:.3g} minutes; slopes: least squares. "
        f"Flat is a slope, in the second half (heaps find their size in the first; a leak does not stop), of no more "
        f"than {KEPT_BYTES} bytes a record published, the smallest object that Python keeps. Records that wait are in "
        "memory: the slope where the lag is the same is of a fit on time and lag together. Lag is bounded if it "
        f"grows by no more than {GROWING:.0%} of what comes, and is drained within {DRAIN_S:.0f} s at the end. "
        + ("" if evaluated else f"Slopes of less than {EVALUATED_S / 60:.0f} minutes are not evaluated.")
    )
