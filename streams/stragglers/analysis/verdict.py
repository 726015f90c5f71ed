"""Evaluation of one window of one run: a verdict for each rank, and one (rank -1) for the job as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from drumline.infra.guidance.causes import SLOW_GPU
from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Attribution, attribute_lost_time
from drumline.streams.stragglers.analysis.baseline import Baseline, same_work, summarize_window
from drumline.streams.stragglers.analysis.cause import NO_CAUSE, Cause
from drumline.streams.stragglers.analysis.cost import priced, shared_out
from drumline.streams.stragglers.analysis.groups import lockstep_groups
from drumline.streams.stragglers.analysis.jitter import find_jitter
from drumline.streams.stragglers.analysis.job_change import JobRegression, find_job_regression
from drumline.streams.stragglers.analysis.lateness_history import LatenessHistory
from drumline.streams.stragglers.analysis.light_overlap import Hidden
from drumline.streams.stragglers.analysis.overlap import hidden_waiting
from drumline.streams.stragglers.analysis.pipelines import (
    pipeline_windows,
    ranks_without_peers,
    stage_members,
    stage_work,
    unequal_stages,
)
from drumline.streams.stragglers.analysis.rank_naming import LatenessTest
from drumline.streams.stragglers.analysis.rank_rows import RankRows
from drumline.streams.stragglers.analysis.slow_link import (
    SlowLink,
    find_slow_link,
    locate,
    summarize_links,
    with_lateness,
)
from drumline.streams.stragglers.analysis.verdict_rows import (
    NO_SAMPLES,
    Evaluable,
    RankVerdict,
    Samples,
    grouped,
    insufficient_job_row,
    job_row,
    totals,
)
from drumline.streams.stragglers.analysis.window_data import CommunicatorWindow, Floats, Ints, WindowData, step_length
from drumline.streams.stragglers.inspection.sampled_stacks import Inspection
from drumline.streams.stragglers.links.busy_hosts import with_cpu_wait
from drumline.streams.stragglers.links.flows import Flow, summarize_flows
from drumline.streams.stragglers.links.slow_flows import find_slow_flows

#: Steps that a rank must have been compared in, but in windows of one step: one shows no health.
LEAST_STEPS = 2
#: Slow flows that later windows know.
MOST_SLOW = 64
#: Value of gpu.step.v1 `steps_from` for steps that the producer derived from the collectives.
INFERRED = "inferred"


@dataclass(frozen=True)
class WindowContext:
    """Holds what a window is evaluated against besides its own data.

    Attributes:
        baseline: of the windows before.
        lateness: how late ranks were in the windows before.
        world_size: ranks of the job as configured, 0 = unknown.
        hosts: rank -> host.
        samples: rank -> samples of its GPU, and of its process; None = there are none.
        inspections: the newest ones of the run, by the window that asked for each.
        inferred: the job marks no steps; evidence states it.
        stages: `stages` of the verdicts on the windows before, oldest first.
        flows: what ranks sent each other in the window, as far as it was recorded.
    """

    baseline: Baseline = field(default_factory=Baseline)
    lateness: LatenessHistory = field(default_factory=LatenessHistory)
    world_size: int = 0
    hosts: Mapping[int, str] = field(default_factory=dict)
    samples: Samples = NO_SAMPLES
    inspections: Mapping[int, Inspection] = field(default_factory=dict)
    inferred: bool = False
    stages: Sequence[Mapping[str, Any]] = ()
    flows: Sequence[Flow] = ()


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """Holds the evaluation of one window.

    Attributes:
        rows: the job first, then ranks ascending.
        ranks_seen: ranks compared in enough steps.
        steps_used, steps_skipped: steps of the window that were compared, and that were not.
        step_ns: median length of a step.
        baseline: what later windows compare with; {} if a rank was late, a link slow, or the data insufficient; where
            ranks took turns its `links` alone.
        hidden: of light windows (light_overlap.py); None = as after the window before.
        lateness: what later windows know of how late ranks were (rank_naming.py); {} if the data was insufficient.
        stages: of a pipeline how long its stages work (`stage_work`), unless a rank is late; what was `stated` last.
    """

    rows: tuple[RankVerdict, ...]
    ranks_seen: int
    steps_used: int
    steps_skipped: int
    step_ns: int
    baseline: dict[str, Any]
    hidden: Hidden | None = None
    lateness: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)


def evaluate_window(data: WindowData, context: WindowContext, config: StragglerConfig) -> WindowVerdict:
    """Return the verdict on a window; a function of its arguments only.

    Below the quorum of ranks that were compared in enough steps, every row reports insufficient data.
    """
    baseline_step = context.baseline.job_step(config)
    data = replace(data, lockstep_groups=lockstep_groups(data))
    attribution = _attribute(data, baseline_step, config)
    without_peers = ranks_without_peers(data, attribution)
    if len(without_peers):
        groups = pipeline_windows(data, context.baseline, config)
        data = replace(data, communicators=[*data.communicators, *groups])
        attribution = _attribute(data, baseline_step, config)
    coverage = _coverage(data, attribution, without_peers, context, config)
    flows = with_lateness(data, context.flows)
    slow_flows = find_slow_flows(flows, context.baseline.flows, context.baseline.slow, context.hosts, config)
    link = find_slow_link(data, context.baseline.links, config)
    link = locate(data, link, slow_flows, context.baseline.links, config)
    link_ns = 0.0 if link is None else link.lost_ns / max(1, np.isfinite(step_length(data)).sum())
    test = LatenessTest(data, attribution, context.lateness, config, context.inspections, link_ns)
    late = _rank_rows(data, attribution, coverage, context, config)
    tested = [test.tested(row) for row in late]
    lateness = test.kept(tested) if coverage.quorate else {}
    is_jittery = tested != late
    if coverage.is_single:
        tested = [row if row.severity > OK else coverage.without_verdict(at, row) for at, row in enumerate(tested)]
    rows = grouped(tested, data, context.hosts)
    has_late_ranks = any(row.names_rank for row in rows)
    evaluated, regression, jitter = coverage.job_evaluable, None, None
    if not evaluated or (has_late_ranks and (link is None or link.flows is None)):
        link = None  # a late rank may be all that collectives show
    link = with_cpu_wait(link, data.ranks, context.samples.host, config)
    if evaluated and not has_late_ranks:
        evaluated, link, regression = _evaluate_job(data, context.baseline, link, coverage.complete, config)
        regression = None if is_jittery else regression
    if regression is not None and data.pipelines:
        behind = replace(data, communicators=pipeline_windows(data, context.baseline, config), lockstep_groups=[])
        if stages := _late_stages(behind, context.samples, config, stage_members(data)):
            rows = grouped([_replaced(row, stages.get(row.rank)) for row in rows], data, context.hosts)
            data = replace(data, communicators=[*data.communicators, *behind.communicators])
            has_late_ranks, regression = True, None
    is_unexplained = not has_late_ranks and link is None and regression is None
    if evaluated and coverage.complete and is_unexplained and not len(without_peers):  # the past loses nothing by turns
        jitter = find_jitter(data, attribution.behind_ns, config)
    finding = link or regression or jitter
    has_verdict = evaluated and (finding is not None or has_late_ranks or coverage.shows_anything)
    rows.insert(0, job_row(finding, context.hosts, config) if has_verdict else insufficient_job_row(coverage.reason))
    may_be_late = has_late_ranks or (len(without_peers) > 0 and test.is_suspect())
    work = stage_work(data) if evaluated and not may_be_late else {}
    kept_stages, evidence = _stages(work, context, config)
    rows[0] = replace(rows[0], evidence={**rows[0].evidence, **evidence})
    if context.inferred:
        rows = [replace(row, evidence={**row.evidence, "steps_from": INFERRED}) for row in rows]
    # A rank whose past is its norm varies there too: else the first windows without turns were its norm for ever.
    is_norm = not is_jittery or (len(without_peers) > 0 and not test.is_suspect())
    is_healthy = evaluated and not has_late_ranks and link is None
    # Turns move no floor, which is the duration of whoever enters last. A slow GPU does, so no rank may be suspect.
    shows_links = is_healthy and not test.is_suspect()
    kept = _kept(data, is_norm) if is_healthy and (is_norm or shows_links) else {}
    if flows and evaluated:  # those that are not slow are as they were, whatever else is found
        slow_names = [slow.flow.name for slow in slow_flows.flows] if slow_flows else []
        kept |= {"flows": summarize_flows(flows, slow_names, config.most_flows), "slow": slow_names[:MOST_SLOW]}
        kept |= {"light": True} if data.light else {}
    length = step_length(data)
    used = int(attribution.steps.max(initial=0))
    return WindowVerdict(
        rows=tuple(priced(shared_out(rows, data), data, config)),
        ranks_seen=int(coverage.enough.sum()),
        steps_used=used,
        steps_skipped=len(data.steps) - used,
        step_ns=round(float(np.nanmedian(length))) if np.isfinite(length).any() else 0,
        baseline=kept,
        lateness=lateness,
        stages=kept_stages,
    )


def _stages(
    work: dict[str, Any], context: WindowContext, config: StragglerConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what later windows know of the stages, and evidence of the job's row. `work`: of `stage_work`."""
    stated = context.stages[-1]["stated"] if context.stages else {}
    windows = [entry for entry in context.stages[-config.history_windows :] if "work" in entry]
    now = unequal_stages([*windows, work], stated, config) if work else {}
    kept = {**work, "stated": now or stated} if work or stated else {}
    return kept, {"stages": now} if now else {}


def _kept(data: WindowData, is_norm: bool) -> dict[str, Any]:
    """Return what later windows compare with, which is light where the window is. `is_norm`: not its links alone."""
    kept = {"links": summarize_links(data), **(summarize_window(data, stage_members(data)) if is_norm else {})}
    return {**kept, "light": True} if data.light else kept


def _attribute(data: WindowData, baseline_step: Mapping[str, float], config: StragglerConfig) -> Attribution:
    def hidden(groups: Sequence[CommunicatorWindow]) -> list[Floats]:
        return hidden_waiting(data, groups, config.quorum, config.equal_ratio, baseline_step)

    return attribute_lost_time(data, config.quorum, hidden)


def _coverage(
    data: WindowData, attribution: Attribution, without_peers: Ints, context: WindowContext, config: StragglerConfig
) -> Evaluable:
    expected = max(context.world_size, len(data.ranks), 1)
    least = max(config.used_steps * config.window_steps, min(LEAST_STEPS, config.window_steps))
    replicas = [np.zeros(0, np.int64), *(stage for stage in stage_members(data).values() if len(stage) > 1)]
    return Evaluable(
        steps=attribution.steps,
        enough=attribution.steps >= least,
        present=np.isfinite(data.budget["gpu_duration_ns"]).sum(1) >= least,
        without_peers=np.isin(np.arange(len(data.ranks)), without_peers) | (expected == 1),
        expected=expected,
        quorum=config.quorum * expected,
        left_out=data.left_out,
        replicated=np.isin(np.arange(len(data.ranks)), np.concatenate(replicas)),
        unlike=np.isin(np.arange(len(data.ranks)), np.flatnonzero(data.unlike >= least)),
        known=max(len(context.hosts), len(data.ranks)),
        is_single=least < 2 and len(context.lateness.windows) < config.baseline_windows_min,
    )


def _rank_rows(
    data: WindowData,
    attribution: Attribution,
    coverage: Evaluable,
    context: WindowContext,
    config: StragglerConfig,
) -> list[RankVerdict]:
    """Return a row for each rank."""
    baseline_step = context.baseline.job_step(config)
    comparable_work = bool(baseline_step) and same_work(data, baseline_step, config.equal_ratio)
    baseline_compute_ns = baseline_step["compute_ns"] if comparable_work else None
    of_ranks = RankRows(data, attribution, baseline_compute_ns, context.samples, config)
    wait, late = totals(data)
    comparable_ranks = (coverage.enough & coverage.quorate).tolist()
    rows = []
    for index, rank in enumerate(data.ranks.tolist()):
        if comparable_ranks[index]:
            rows.append(of_ranks.row(index, late[index], wait[index]))
        else:
            row = RankVerdict(rank, OK, NO_CAUSE, lateness_ns=late[index], wait_ns=wait[index])
            rows.append(coverage.without_verdict(index, row))
    return rows


def _evaluate_job(
    data: WindowData, baseline: Baseline, link: SlowLink | None, complete: bool, config: StragglerConfig
) -> tuple[bool, SlowLink | None, JobRegression | None]:
    """Return (evaluated, slow link, slower job) of a job without late ranks. `link`: what was found of it."""
    regression = find_job_regression(data, baseline, config) if link is None else None
    is_located = link is not None and link.flows is not None
    if not complete and not is_located and (link is not None or regression is not None):  # a silent rank may be late
        return False, None, None
    return True, link, regression


def _late_stages(
    behind: WindowData, samples: Samples, config: StragglerConfig, stages: Mapping[int, Ints]
) -> dict[int, RankVerdict]:
    """Return rank -> row, of ranks that hold a pipeline back together with their whole stage.

    None of a stage's ranks is faster than its peers, but the same work takes all of them longer than their baseline.
    `behind`: the window with the groups of `pipeline_windows` only.
    """
    attribution = attribute_lost_time(behind, config.quorum)
    indices = np.flatnonzero(attribution.via >= 0).tolist()
    of_ranks = RankRows(behind, attribution, None, samples, config)
    rows = [of_ranks.row(index) for index in indices]
    late = {row.rank: row for row in rows if row.severity > OK and not _may_be_work(row.cause)}
    ranks_of_stages = [set(behind.ranks[stage].tolist()) for stage in stages.values() if len(stage) > 1]
    return {rank: late[rank] for stage in ranks_of_stages if stage <= late.keys() for rank in stage}


def _may_be_work(cause: Cause) -> bool:
    """Return whether a rank may be slower because it has more work than in its baseline."""
    return cause.cause == SLOW_GPU or cause.detail in ("more_work", "other_work")


def _replaced(row: RankVerdict, late: RankVerdict | None) -> RankVerdict:
    """Return the late row with the waiting of the row that it replaces."""
    return row if late is None else replace(late, wait_ns=row.wait_ns, lateness_ns=row.lateness_ns)
