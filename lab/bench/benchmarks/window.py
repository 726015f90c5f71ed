"""Measures the evaluation of one window of a large job in which many ranks are late, without Kafka."""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.lab.bench.result import BenchReport, Progress
from drumline.streams.core.records import NO_ROWS, Rows, key, pack_rows, run_key
from drumline.streams.core.thresholds import WARNING, StragglerConfig
from drumline.streams.stragglers.lateness_rows import KEPT_ROW
from drumline.streams.stragglers.lateness_state import STEPS_OF_VALUE
from drumline.streams.stragglers.sample_state import BUCKET_NS, DEVICE
from drumline.streams.stragglers.slices import RANKS_OF_VALUE
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.stragglers.step_rows import BUDGET, STEP_ROW
from drumline.streams.stragglers.step_state import RankReport

RANKS, LATE = 16_384, 1_000
STEP_NS, BEGIN_NS, LATE_NS = 1_000_000_000, 10**18, 100_000_000
#: Ranks that share a tensor-parallel communicator, and stages of the pipeline.
TENSOR, STAGES = 8, 16
#: Collectives a step, by the axis of their communicator; stages send to each other.
COLLECTIVES = {"tensor": 32, "data": 10, "pipeline": 0}
RUN = run_key("bench", "bench")
#: CPU seconds.
TARGET = 3.0


def fill(ranks: int, late: NDArray[np.bool_], config: StragglerConfig, component: str) -> dict[str, bytes]:
    """Return the state of a run with one complete window. Late ranks lose `component`: "idle_ns" or "compute_ns"."""
    store: dict[str, bytes] = {}
    dice, steps = np.random.default_rng(0), np.arange(config.window_steps)
    of_part: dict[int, list[Rows]] = {}
    clocks_of: dict[tuple[int, int], list[Rows]] = {}
    for rank in range(ranks):
        rows = np.zeros(len(steps), STEP_ROW)
        for name in BUDGET:
            rows[name] = -1
        waited = 120_000_000 - LATE_NS * int(late[rank]) + dice.integers(0, 1_000_000, len(steps))
        rows["step"], rows["start_ns"] = steps, BEGIN_NS + steps * STEP_NS
        rows["duration_ns"] = rows["gpu_duration_ns"] = STEP_NS
        rows["compute_ns"], rows["idle_ns"] = STEP_NS * 8 // 10, 0
        rows[component] += STEP_NS // 5 - waited
        rows["copy_ns"], rows["compute_overlapped_ns"], rows["comm_exposed_ns"] = 0, 0, waited
        rows["kernels"], rows["blocks"] = 1_000, 100_000
        rows["rank"] = rank
        of_part.setdefault(rank // RANKS_OF_VALUE, []).append(rows)
        clocks = np.zeros(len(steps), DEVICE.narrow)
        clocks["time_ns"], clocks["processes"], clocks["sm_clock"] = rows["start_ns"], 1, 1_980 - 200 * int(late[rank])
        clocks["rank"] = rank
        for bucket in np.unique(clocks["time_ns"] // BUCKET_NS).tolist():
            inside = clocks[clocks["time_ns"] // BUCKET_NS == bucket]
            clocks_of.setdefault((bucket, rank // RANKS_OF_VALUE), []).append(inside)
    for part, values in of_part.items():
        reports = {
            int(rows["rank"][0]): RankReport(
                int(steps[-1]), ranks, f"host{int(rows['rank'][0]) // TENSOR:05d}", f"GPU-{int(rows['rank'][0]):08x}",
                "marker",
            )
            for rows in values
        }  # fmt: skip
        head = {"window_steps": config.window_steps, "ranks": reports}
        store[key("s", 0, part, RUN)] = pack_rows(1, head, np.concatenate(values))
    for (bucket, part), values in clocks_of.items():
        store[key("d", bucket, part, RUN)] = pack_rows(1, {}, np.concatenate(values))
    axes = {
        "tensor": np.arange(ranks) // TENSOR,
        "data": np.arange(ranks) % (TENSOR * STAGES),
        "pipeline": np.arange(ranks) // (TENSOR * STAGES) * TENSOR + np.arange(ranks) % TENSOR,
    }
    for axis, communicator in axes.items():
        for number in range(int(communicator.max()) + 1):
            members = np.flatnonzero(communicator == number)
            _fill_communicator(store, f"{axis}-{number:05d}", members, late, COLLECTIVES[axis], steps, dice)
    return store


def _fill_communicator(
    store: dict[str, bytes],
    name: str,
    members: NDArray[np.int64],
    late: NDArray[np.bool_],
    collectives: int,
    steps: NDArray[np.int64],
    dice: np.random.Generator,
) -> None:
    ranks = members.tolist()
    head = {
        "complete": int(steps[-1]),
        "ranks": ranks,
        "world_size": len(late),
        "pipeline": [] if collectives else ranks,
    }
    store[key("c", name, RUN)] = pack_rows(1, head, np.zeros(0, NO_ROWS))
    values: dict[int, tuple[dict[int, Any], list[Rows]]] = {}
    for step in steps.tolist():
        rows = np.zeros(len(members), KEPT_ROW)
        rows["step"], rows["rank"], rows["collectives"] = step, members, collectives
        if collectives:
            wait = dice.integers(0, 2_000_000, len(members)) + LATE_NS * (late[members].any() & ~late[members])
            rows["wait_ns"], rows["lateness_ns"] = wait - wait.min(), wait.max() - wait
            rows["lag_ns"], rows["worst_longest_ns"], rows["worst_own_ns"] = np.median(wait) - wait, wait.max(), wait
        kinds = [["AllReduce", 1 << 20, collectives, 500_000 * collectives]] if collectives else []
        lists, parts = values.setdefault(step // STEPS_OF_VALUE * STEPS_OF_VALUE, ({}, []))
        lists[step] = {"kinds": kinds, "hidden": []}
        parts.append(rows)
    for first, (lists, parts) in values.items():
        store[key("l", first, name, RUN)] = pack_rows(1, {"steps": lists}, np.concatenate(parts))


def bench_window(ranks: int = RANKS, late: int = LATE, progress: Progress = lambda _: None) -> BenchReport:
    """Measure CPU seconds from the stored state of a window to its verdict, and whether it names the late ranks."""
    config = StragglerConfig()
    is_late = np.zeros(ranks, bool)
    is_late[np.random.default_rng(1).permutation(ranks)[:late]] = True
    report = BenchReport("window", f"a window of {ranks:,} made-up ranks, {late:,} of them late", "none")
    for component in ("idle_ns", "compute_ns"):
        progress(f"{ranks:,} ranks, {late:,} late by {component.removesuffix('_ns')}")
        store = fill(ranks, is_late, config, component)
        stage = JobStage(store, config)
        began = time.process_time()
        [verdict] = stage.on_tick(BEGIN_NS + config.window_steps * STEP_NS, True)
        spent = time.process_time() - began
        rows = verdict.columns
        named = rows["rank"][(rows["severity"] >= WARNING) & (rows["rank"] >= 0)]
        name = component.removesuffix("_ns")
        report.add(f"late by {name}: state to verdict, CPU", spent, "s", target=TARGET, at_most=True)
        report.add(f"late by {name}: late ranks named", int(is_late[named].sum()), "", target=late)
        report.add(f"late by {name}: other ranks named", int((~is_late[named]).sum()), "", target=0, at_most=True)
        report.add(f"late by {name}: state", sum(map(len, store.values())) / 2**20, "MiB")
    report.add("memory of the process, most", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, "MiB")
    report.notes.append(
        f"The window is in the state of the straggler stage (a dict). {TENSOR} ranks share a tensor-parallel "
        f"communicator; {STAGES} stages; the others are replicas. {config.window_steps} steps."
    )
    return report
