"""Is memory flat and lag bounded? What was watched over a long time, with bars, and the reason for each bar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drumline.infra.bench.benchmarks.pipeline import MEMORY_MIB
from drumline.infra.bench.processes.process_watch import Watch, over_time
from drumline.infra.bench.processes.running_pipeline import DRAIN_S
from drumline.infra.bench.result import Report, percentiles

#: How often memory and lag are looked at; s.
EVERY_S = 5.0
#: Slopes are judged when they were watched for so long: in less, one garbage collection or one slow insert is all there
#: is; s.
JUDGED_S = 600.0
#: Whose lag it is that a program holds in memory.
LAG_OF = {"stream": "the worker", "sink": "the sink"}
#: Flat: not even the smallest object that Python can keep is kept of each record; bytes.
KEPT_BYTES = 32
#: Lag does not grow: it keeps up with all but this share of the records that come.
GROWING = 0.01


def slope(values: Sequence[float], every_s: float) -> float:
    """Least-squares slope of what was sampled every `every_s`, a second. 0 for fewer than three."""
    if len(values) < 3:
        return 0.0
    return float(np.polyfit(np.arange(len(values)) * every_s, np.asarray(values, float), 1)[0])


def slope_beside(values: Sequence[float], beside: Sequence[float], every_s: float) -> float | None:
    """Least-squares slope in time, a second, of what also follows `beside`. None: not sampled together."""
    if len(values) != len(beside) or len(values) < 4:
        return None
    terms = np.column_stack([np.ones(len(values)), np.arange(len(values)) * every_s, np.asarray(beside, float)])
    found, *_ = np.linalg.lstsq(terms, np.asarray(values, float))
    return float(found[1])


def watched(report: Report, watch: Watch, seconds: float, records: float) -> None:
    """Memory, lag and CPU of `seconds`, in which `records` a second were published. Slopes have bars if that was long
    enough."""
    judged = seconds >= JUDGED_S
    for name, values in watch.memory.items():
        ours = name in ("stream", "sink")
        most = {"bar": MEMORY_MIB, "most": True} if ours else {}
        flat = {"bar": KEPT_BYTES * records * 3600 / 2**20, "most": True} if ours and judged else {}
        report.add(f"memory of {name}, most", max(values) / 2**20, "MiB", **most)
        report.add(f"memory of {name}, slope", slope(values, EVERY_S) * 3600 / 2**20, "MiB/h")
        late = slope(values[len(values) // 2 :], EVERY_S) * 3600 / 2**20
        report.add(f"memory of {name}, slope of the second half", late, "MiB/h", **flat)
        waits = watch.lag.get(LAG_OF.get(name, ""), [])
        if (alone := slope_beside(values[len(values) // 2 :], waits[len(waits) // 2 :], EVERY_S)) is not None:
            at_equal = alone * 3600 / 2**20
            report.add(f"memory of {name}, slope of the second half where its lag is the same", at_equal, "MiB/h")
        report.notes.append(f"Memory of {name}, mean of each tenth, MiB: {over_time(values, 2**20)}.")
    for name, used in watch.cpu_s.items():
        report.add(f"cores used by {name}", used / seconds, "cores")
    for name, values in watch.lag.items():
        for what, value in {"most": max(values, default=0), **percentiles(values)}.items():
            report.add(f"lag of {name}, {what}", value, "records")
        bounded = {"bar": GROWING * 100, "most": True} if judged else {}
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
        + ("" if judged else f"Slopes of less than {JUDGED_S / 60:.0f} minutes are not evaluated.")
    )
