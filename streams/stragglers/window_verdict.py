"""The verdict on a window of a run: evaluated from its stored rows, and published if it is another than before."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from drumline.infra.guidance.causes import CHANGED_JOB, HOST_STALL, SLOW_COMPUTE, SLOW_GPU, SLOW_LINK, UNKNOWN
from drumline.schemas.batch import Batch
from drumline.streams.stragglers.alarm import load_alarms, stored_alarms
from drumline.streams.stragglers.analysis.baseline import load_baseline
from drumline.streams.stragglers.analysis.lateness_history import load_lateness
from drumline.streams.stragglers.analysis.light_overlap import hidden_as_compute, kept_hidden, with_unseen_waiting
from drumline.streams.stragglers.analysis.verdict import INFERRED, WindowContext, WindowVerdict, evaluate_window
from drumline.streams.stragglers.analysis.verdict_rows import WHOLE_JOB, Samples
from drumline.streams.stragglers.rank_values import by_value, ranks_of
from drumline.streams.stragglers.stalled import add_silent_ranks
from drumline.streams.stragglers.state import JobState, Watched
from drumline.streams.stragglers.verdict_batch import alarms_after, digest, summarize, verdict_batch
from drumline.streams.stragglers.window import load_window

#: Causes that samples explain, or change.
SAMPLED_CAUSES = frozenset({HOST_STALL, SLOW_COMPUTE, SLOW_GPU, UNKNOWN, SLOW_LINK, CHANGED_JOB})


def evaluate_stored(state: JobState, window: int) -> tuple[WindowVerdict, tuple[int, int]]:
    """Return the verdict on a stored window, and its span (see `LoadedWindow`).

    The state keeps which samples it depends on.
    """
    config = state.lengths.config_of(window)
    before_it = {w: state.published[w] for w in sorted(state.published) if w < window}
    earlier = list(before_it.values())
    data, span_ns, world_size = load_window(state, window)
    before = earlier[-1]["hidden"] if earlier else {}
    data, hidden = hidden_as_compute(with_unseen_waiting(data), before, config)
    collectives = {of.name: sum(float(counts.sum()) for counts, _ in of.kinds.values()) for of in data.communicators}
    read: set[int] = set()
    context = WindowContext(
        baseline=load_baseline((head["baseline"] for head in earlier), config, data.light),
        lateness=load_lateness({w: head["lateness"] for w, head in before_it.items()}, config),
        world_size=world_size,
        hosts=state.sources.hosts,
        samples=Samples(partial(state.device_rows, window), partial(state.host_rows, window)).noting(read),
        inspections={state.lengths.window_of(of.first_step): of for of in state.stacks.inspections},
        inferred=any(source.steps_from == INFERRED for source in state.sources.ranks.values()),
        stages=[head["stages"] for head in earlier if head["stages"]],
        flows=state.flows(window, span_ns, collectives),
    )
    verdict = evaluate_window(data, context, config)
    share = max((row.share for row in verdict.rows if row.rank != WHOLE_JOB), default=0.0)
    hidden = kept_hidden(before, hidden, share, config)
    verdict = replace(verdict, hidden=hidden)
    if any(row.cause.cause in SAMPLED_CAUSES for row in verdict.rows):
        state.watched[window] = Watched(sorted(read), *span_ns)
    return verdict, span_ns


def publish_verdict(
    state: JobState, window: int, verdict: WindowVerdict, span_ns: tuple[int, int], now_ns: int
) -> Batch | None:
    """Return the verdict on a window as a batch, whose head the state keeps as published.

    None if it is the published one. `span_ns`: host times.
    """
    before = max((w for w in state.published if w < window), default=None)
    known = {"alarms": [], "summaries": [], "hidden": {}} if before is None else state.published[before]
    alarms = load_alarms(known["alarms"])
    verdict = add_silent_ranks(verdict, alarms)
    alarms |= alarms_after(alarms, verdict, window, state.config)
    summaries = {rank: text for text, runs in known["summaries"] for rank in ranks_of(runs)}
    envelope = _envelope(state, window, span_ns, now_ns)
    batch = verdict_batch(verdict, alarms, summaries, state.sources.places, state.lengths.steps_of, envelope)
    head = state.published.get(window)
    summaries |= {row.rank: summarize(row, alarms[row.rank]) for row in verdict.rows}
    kept = {
        "attempt": envelope["attempt_start_ns"],
        "digest": digest(batch),
        "alarms": stored_alarms(alarms),
        "summaries": list(by_value(summaries)),
        "baseline": verdict.baseline,
        "lateness": verdict.lateness,
        "stages": verdict.stages,
        "hidden": known["hidden"] if verdict.hidden is None else verdict.hidden,
    }
    if head is not None and head["digest"] == kept["digest"]:
        head.update(kept)
        return None
    batch.envelope["revision"] = 0 if head is None else head["revision"] + 1
    state.sequence += 1
    state.published[window] = {"revision": batch.envelope["revision"], "sequence": state.sequence, **kept}
    return batch


def _envelope(state: JobState, window: int, span_ns: tuple[int, int], now_ns: int) -> dict[str, Any]:
    start_ns, end_ns = span_ns
    return {
        "job": state.job,
        "run": state.run,
        "world_size": state.world_size,
        "sequence": state.sequence,
        "base_time_ns": start_ns,
        "sent_ns": now_ns,
        "attempt_start_ns": state.attempt.started_ns(),
        "first_step": state.lengths.first_step_of(window),
        "last_step": state.lengths.last_step_of(window),
        "window_start_ns": start_ns,
        "window_end_ns": end_ns,
    }
