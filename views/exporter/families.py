"""The series of a fleet: which runs, ranks and GPUs have some within a limit, and their values. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from drumline.infra.telemetry import verdict_metrics as of
from drumline.infra.telemetry.metrics import Metric
from drumline.streams.core.thresholds import OK
from drumline.views.exporter.live_runs import LiveRuns, Run
from drumline.views.exporter.run_state import LEVELS, SECOND_NS, RankRow, RunState

#: Series that a run takes at most, and a rank; lost GPUs that have one.
RUN_SERIES, RANK_SERIES, MOST_LOST = 20, 6, 100
#: Longest text of a label; a longer one ends with the mark.
LONGEST, MARK = 200, "..."
LEVEL_NAMES = {level: name for name, level in LEVELS.items() if name != "cleared"}


@dataclass(frozen=True, slots=True)
class SeriesLimits:
    """Limits of the number of series. worst: ranks of a run that have some. series: in all.."""

    worst: int
    series: int


@dataclass
class Families:
    """Holds all series: metric -> label values -> value. left_out: runs, ranks, GPUs without series, by kind."""

    values: dict[Metric, dict[tuple[str, ...], float]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    size: int = 0

    def add(self, metric: Metric, labels: Iterable[str], value: float) -> None:
        """Add a series; of two with the same labels, which a scraper rejects, the first stays."""
        family = self.values.setdefault(metric, {})
        key = tuple(map(bounded, labels))
        self.size += key not in family
        family.setdefault(key, value)

    def of(self, metric: Metric) -> dict[tuple[str, ...], float]:
        """Return the series of a metric: label values -> value."""
        return self.values.get(metric, {})


def bounded(text: str) -> str:
    """Return a label's text within LONGEST characters."""
    return text if len(text) <= LONGEST else text[: LONGEST - len(MARK)] + MARK


@dataclass(frozen=True)
class _Shown:
    """Holds a run with its verdict, the ranks that a standstill names, and rows of its worst ranks."""

    run: Run
    state: RunState
    verdict: RankRow
    awaited: dict[int, RankRow]
    worst: list[RankRow]


def families(fleet: LiveRuns, limits: SeriesLimits, now_ns: int) -> Families:
    """Return the series of a fleet, at most `limits.series`, the worst runs and ranks first."""
    out = Families()
    verdicts = {run: state.verdict(now_ns) for run, state in fleet.runs.items()}
    for state, count in Counter(row.state for row in verdicts.values()).items():
        out.add(of.JOBS, (state,), count)
    for loss in sorted(fleet.lost.values(), key=lambda loss: (loss.host, loss.gpu_uuid))[:MOST_LOST]:
        out.add(of.GPU_LOST, (loss.gpu_uuid, loss.host, loss.job, loss.run), 1)
    order = sorted(verdicts, key=lambda run: (-verdicts[run].severity, -verdicts[run].gpu_lost_s, run))
    most = max(0, (limits.series - out.size) // RUN_SERIES)
    shown = [_shown(fleet, run, verdicts[run], limits.worst, now_ns) for run in order[:most]]
    out.left_out["job"] = len(order) - len(shown)
    ranks = _chosen(shown, (limits.series - out.size - RUN_SERIES * len(shown)) // RANK_SERIES)
    for entry in shown:
        _add_run(out, entry, ranks.get(entry.run, []), now_ns)
        for row in ranks.get(entry.run, []):
            _add_rank(out, fleet, entry.run, row)
    _add_other_gpus(out, fleet, shown, ranks, limits.series)
    return out


def _shown(fleet: LiveRuns, run: Run, verdict: RankRow, worst: int, now_ns: int) -> _Shown:
    state = fleet.runs[run]
    awaited, window = state.awaited(now_ns), state.window
    if window is None:
        return _Shown(run, state, verdict, awaited, list(awaited.values())[:worst])
    rank, order = window.number("rank"), window.by_badness()
    is_awaited = np.isin(rank[order], list(awaited))
    measured = {int(rank[at]): window.row(at) for at in order[is_awaited].tolist()}
    rows = [_joined(row, measured.get(row.rank, row)) for row in awaited.values()][:worst]
    rows += [window.row(at) for at in order[~is_awaited][: worst - len(rows)].tolist()]
    return _Shown(run, state, verdict, awaited, rows)


def _joined(awaited: RankRow, seen: RankRow) -> RankRow:
    """Return the state of a rank that the job waits for, with the measurements of its last window."""
    return replace(
        awaited, host=awaited.host or seen.host, gpu_uuid=awaited.gpu_uuid or seen.gpu_uuid,
        lost_ratio=seen.lost_ratio, lateness_s=seen.lateness_s, gpu_lost_s=seen.gpu_lost_s,
    )  # fmt: skip


def _chosen(shown: list[_Shown], most: int) -> dict[Run, list[RankRow]]:
    """Return the ranks that have series, by run: of all that may have, the worst."""
    rows = [(entry, row) for entry in shown for row in entry.worst]
    rows.sort(key=lambda item: (item[1].rank not in item[0].awaited, -LEVELS.get(item[1].state, OK),
                                -item[1].gpu_lost_s, -item[1].lateness_s))  # fmt: skip
    out: dict[Run, list[RankRow]] = {}
    for entry, row in rows[: max(0, most)]:
        out.setdefault(entry.run, []).append(row)
    return out


def _add_run(out: Families, entry: _Shown, rows: list[RankRow], now_ns: int) -> None:
    run, verdict, state = entry.run, entry.verdict, entry.state
    out.add(of.JOB_STATE, (*run, verdict.state, verdict.cause, verdict.detail), 1)
    out.add(of.JOB_SEVERITY, run, verdict.severity)
    if state.standstill(now_ns) and state.hang is not None:
        out.add(of.JOB_STANDSTILL, run, max(0, now_ns - int(state.hang.envelope["start_ns"])) / SECOND_NS)
        out.add(of.JOB_AWAITED, run, len(entry.awaited))
    window = state.window
    world = window.envelope if window is not None else state.hang.envelope if state.hang is not None else {}
    out.add(of.JOB_WORLD, run, int(world.get("world_size", 0)))
    if window is None:
        return
    counts = Counter(window.levels[window.ranks].tolist())
    for level, name in LEVEL_NAMES.items():
        out.add(of.JOB_RANKS, (*run, name), counts[level])
    whole = window.row(window.whole) if window.whole is not None else RankRow(-1)
    envelope = window.envelope
    out.add(of.JOB_STEP, run, int(envelope["step_ns"]) / SECOND_NS)
    out.add(of.JOB_LAST_STEP, run, int(envelope["last_step"]))
    out.add(of.JOB_LOST, run, whole.lost_ratio)
    out.add(of.JOB_GPU_LOST, run, float(window.number("gpu_seconds_lost").sum()))
    out.add(of.JOB_WINDOW_LENGTH, run, (window.end_ns - int(envelope["window_start_ns"])) / SECOND_NS)
    out.add(of.JOB_WINDOW_END, run, window.end_ns / SECOND_NS)
    numbers = {row.rank for row in rows}
    rest = [at for at in window.ranks.tolist() if int(window.number("rank")[at]) not in numbers]
    out.add(of.REST_RANKS, run, len(rest))
    out.add(of.REST_GPU_LOST, run, float(window.number("gpu_seconds_lost")[rest].sum()))
    out.add(of.REST_LATENESS, run, window.lateness_s(int(window.number("lateness_ns")[rest].sum())))
    out.left_out["rank"] += len(rest)


def _add_rank(out: Families, fleet: LiveRuns, run: Run, row: RankRow) -> None:
    place = fleet.place(run, row.rank)
    host, gpu = row.host or place.host, row.gpu_uuid or place.gpu_uuid
    labels = (*run, str(row.rank), host, gpu, place.namespace, place.pod)
    out.add(of.RANK_STATE, (*labels, row.state, row.cause, row.detail), 1)
    out.add(of.RANK_SEVERITY, labels, row.severity)
    out.add(of.RANK_LOST, labels, row.lost_ratio)
    out.add(of.RANK_LATENESS, labels, row.lateness_s)
    out.add(of.RANK_GPU_LOST, labels, row.gpu_lost_s)
    if gpu:
        out.add(of.GPU_INFO, (gpu, *run, str(row.rank), host, place.namespace, place.pod), 1)


def _add_other_gpus(
    out: Families, fleet: LiveRuns, shown: list[_Shown], ranks: dict[Run, list[RankRow]], most: int
) -> None:
    """Add the GPUs of ranks that have no other series, as far as the limit allows."""
    for entry in shown:
        numbers = {row.rank for row in ranks.get(entry.run, [])}
        for rank, host, gpu in _gpus(entry):
            if rank in numbers:
                continue
            if out.size >= most:
                out.left_out["gpu"] += 1
                continue
            place = fleet.place(entry.run, rank)
            out.add(of.GPU_INFO, (gpu, *entry.run, str(rank), host, place.namespace, place.pod), 1)


def _gpus(entry: _Shown) -> Iterator[tuple[int, str, str]]:
    """Yield rank, host and GPU of each rank of the newest window that states its GPU."""
    window = entry.state.window
    if window is None:
        return
    hosts, gpus = window.envelope["hosts"], window.envelope["gpu_uuids"]
    columns = (window.number(name)[window.ranks].tolist() for name in ("rank", "host", "gpu_uuid"))
    for rank, host, gpu in zip(*columns, strict=True):
        if gpus[gpu]:
            yield rank, hosts[host], gpus[gpu]
