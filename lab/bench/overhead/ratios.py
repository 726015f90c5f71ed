"""Report of the DDP workloads of `drumline bench overhead`: ratios to plain, and of recording on to off."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import NormalDist, mean, stdev

from drumline.lab.bench.result import BenchReport

#: Workload -> largest ratio of light steps to plain ones, and of steps with the operations recorded to those without.
TARGETS = {"ddp_launch_bound": 1.01, "ddp_gpu_bound": 1.003}
#: Widest half of its interval; points.
WIDEST = 2.0
#: Sides of a pair of blocks.
ON_OFF = ("on", "off")
#: Name of the values of pairs of blocks, beside those of the modes.
PAIRED = "light on and off"
NOTE = (
    "Above plain: blocks of both modes in turn; ratio of the medians of blocks side by side (of means where the GPU is "
    "the limit), geometric mean of a round's, interval over the rounds, each with processes of its own. "
    "Recording on and off: blocks of one process, of the ranks at once; ratio of the blocks' medians (of means where "
    "the GPU is the limit), geometric mean of a process's pairs, interval over the processes. It is NCCL's and the "
    "plugin's work for each operation, and the marks of steps. The loaded plugin and the hook of the optimizer are in "
    "both. The main thread, autograd's and the others have cores of their own; the garbage collector runs "
    "between blocks."
)
#: Workload -> mode -> a dictionary of values for each round: ms, cpu_ms, records, untimed, ratio to plain.
Rounds = dict[str, dict[str, list[dict[str, float]]]]


def mean_ratio(values: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Return the mean ratio over pairs and half of its 95% interval (Student's t); infinity for one pair.

    The mean is geometric. The arithmetic one of noisy pairs lies above 1 where nothing differs, whichever is the base:
    by about the variance of a value's logarithm, 1 % where blocks differ by 10 %.
    """
    logs = [log(value / plain) for value, plain in zip(values, base, strict=True)]
    ratio = exp(mean(logs))
    if len(logs) < 2:
        return ratio, float("inf")
    return ratio, ratio * _student(len(logs) - 1) * stdev(logs) / len(logs) ** 0.5


def add_ddp(report: BenchReport, rounds: Rounds) -> None:
    """Add step time and CPU of every mode beside plain, and its mean ratio with the interval."""
    for workload, modes in rounds.items():
        if NOTE not in report.notes:
            report.notes.append(NOTE)
        plain = modes["plain"]
        if PAIRED in modes:
            _add_paired(report, workload, modes[PAIRED])
        for mode, values in modes.items():
            if mode == PAIRED:
                continue
            name = f"{workload}, {mode}"
            for key, text in (("ms", "mean step"), ("cpu_ms", "CPU of the process a step")):
                base = mean(value[key] for value in plain)
                report.add(f"{name}: {text}", mean(value[key] for value in values), "ms", base)
            if mode == "plain":
                continue
            count = f"{len(values)} rounds"
            for key, text in (("ratio", "above plain"), ("mean_ratio", "above plain, by the blocks' means")):
                ratio, half = mean_ratio([value[key] for value in values], [1.0] * len(values))
                has_target = mode == "light" and key == "ratio"
                above, widest = (100 * (TARGETS[workload] - 1), WIDEST) if has_target else (None, None)
                report.add(f"{name}: {text}, mean of {count}", 100 * (ratio - 1), "%", target=above, at_most=True)
                report.add(f"{name}: {text}, 95% interval, +-", 100 * half, "points", target=widest, at_most=True)
            if records := mean(value["records"] for value in values):
                report.add(f"{name}: records in the ring a step", records, "records")
                untimed = mean(value["untimed"] for value in values)
                report.add(f"{name}: steps with the GPU's times", 100 * (1 - untimed), "%")


def _add_paired(report: BenchReport, workload: str, values: Sequence[dict[str, float]]) -> None:
    """Add what recording costs within a process."""
    ratio, half = mean_ratio([value["ratio"] for value in values], [1.0] * len(values))
    name = f"{workload}, light: recording on above off"
    count = f"{sum(int(value['pairs']) for value in values)} pairs of {len(values)} processes"
    report.add(f"{name}, {count}", 100 * (ratio - 1), "%", target=100 * (TARGETS[workload] - 1), at_most=True)
    report.add(f"{name}, 95% interval, +-", 100 * half, "points", target=WIDEST, at_most=True)
    measured = 100 * (1 - mean(value["on_untimed"] for value in values))
    report.add(f"{workload}, light, recording on: steps with the GPU's times", measured, "%")
    for key, text in (("ms", "mean step"), ("cpu_ms", "CPU of the process a step")):
        on, off = (mean(value[f"{side}_{key}"] for value in values) for side in ON_OFF)
        report.add(f"{workload}, light, recording on, beside off: {text}", on, "ms", off)


def _student(degrees: int) -> float:
    """Return the 97.5% quantile of Student's t by its expansion in 1/degrees (Abramowitz and Stegun 26.7.5)."""
    x = float(NormalDist().inv_cdf(0.975))
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    quantile: float = x + sum(term / degrees**power for power, term in enumerate(terms, 1))
    return quantile
