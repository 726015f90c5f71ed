"""The verdict on a window of a run: evaluated from its stored rows, and published if it is another than before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from drumline.infra.guidance.causes import CHANGED_JOB, HOST_STALL, SLOW_COMPUTE, SLOW_GPU, SLOW_LINK, UNKNOWN
from drumline.schemas.batch import Batch, dictionary
from drumline.schemas.bounds.limits import EVIDENCE
from drumline.schemas.keys import derived_process_id
from drumline.schemas.topics import Topic
from drumline.streams.core.records import run_key
from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.stragglers.alarm import STATES, Alarm, advance, hold, load_alarms, stored_alarms
from drumline.streams.stragglers.analysis.baseline import load_baseline
from drumline.streams.stragglers.analysis.lateness_history import load_lateness
from drumline.streams.stragglers.analysis.light_overlap import hidden_as_compute, kept_hidden, with_unseen_waiting
from drumline.streams.stragglers.analysis.verdict import INFERRED, WindowContext, WindowVerdict, evaluate_window
from drumline.streams.stragglers.analysis.verdict_rows import WHOLE_JOB, RankVerdict, Samples
from drumline.streams.stragglers.rank_values import by_value, ranks_of
from drumline.streams.stragglers.sources import NOWHERE, Place
from drumline.streams.stragglers.stalled import add_silent_ranks
from drumline.streams.stragglers.state import JobState, Watched
from drumline.streams.stragglers.window import load_window

#: Causes that samples explain, or change.
SAMPLED_CAUSES = frozenset({HOST_STALL, SLOW_COMPUTE, SLOW_GPU, UNKNOWN, SLOW_LINK, CHANGED_JOB})
#: The alarm of a rank without a window.
NEVER = Alarm()
LEFT_OUT = '{"evidence": "too long"}'


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


def summarize(row: RankVerdict, alarm: Alarm) -> str:
    """Return the text that identifies a row's result; rows with the same text as before are heartbeats."""
    return "|".join((STATES[alarm.state], str(row.severity), row.cause.cause, row.cause.detail, row.group))


def alarms_after(
    alarms: Mapping[int, Alarm], verdict: WindowVerdict, window: int, config: StragglerConfig
) -> dict[int, Alarm]:
    """Return the alarm of each row after a window.

    While a rank is late, the job's row is not evaluated for links and changes, so its alarm is held.
    """
    has_late_ranks = any(row.names_rank for row in verdict.rows)
    advanced = cache(lambda alarm, severity: advance(alarm, severity, config, window))  # most ranks of a job are alike
    out = {}
    for row in verdict.rows:
        alarm = alarms.get(row.rank, NEVER)
        is_held = has_late_ranks and row.rank == WHOLE_JOB and row.severity == OK
        out[row.rank] = hold(alarm) if is_held else advanced(alarm, row.severity)
    return out


def verdict_batch(
    verdict: WindowVerdict,
    alarms: Mapping[int, Alarm],
    summaries: Mapping[int, str],
    places: Mapping[int, Place],
    steps_of: Callable[[int], tuple[int, int]],
    envelope: dict[str, Any],
) -> Batch:
    """Return the batch of a verdict.

    `alarms`: by rank, after the window. `summaries`: rank -> `summarize` of the window before. `places`: by rank.
    `steps_of`: window -> its first and last step. `envelope`: job, run, revision, sequence and the window's range; a
    process id where it is not that of the verdicts.
    """
    rows = verdict.rows
    after = [alarms[row.rank] for row in rows]
    texts: dict[str, tuple[list[str], list[int]]] = {}
    for name, values in (
        ("hosts", [places.get(row.rank, NOWHERE).host for row in rows]),
        ("gpu_uuids", [places.get(row.rank, NOWHERE).gpu_uuid for row in rows]),
        ("causes", [row.cause.cause for row in rows]),
        ("details", [row.cause.detail for row in rows]),
        ("states", [STATES[alarm.state] for alarm in after]),
        ("groups", [row.group for row in rows]),
        ("evidence", _evidence(rows)),
        ("confidences", [row.cause.confidence for row in rows]),
    ):
        texts[name] = dictionary(values)
    columns = {
        "rank": np.array([row.rank for row in rows], "<i4"),
        "host": np.array(texts["hosts"][1], "<u4"),
        "gpu_uuid": np.array(texts["gpu_uuids"][1], "<u4"),
        "severity": np.array([row.severity for row in rows], "i1"),
        "state": np.array(texts["states"][1], "<u4"),
        "changed": np.array([summarize(r, a) != summaries.get(r.rank) for r, a in zip(rows, after, strict=True)], "u1"),
        "episode_first_step": np.array([steps_of(a.first)[0] if a.first >= 0 else -1 for a in after], "<i8"),
        "episode_last_step": np.array([steps_of(a.last)[1] if a.last >= 0 else -1 for a in after], "<i8"),
        "cause": np.array(texts["causes"][1], "<u4"),
        "detail": np.array(texts["details"][1], "<u4"),
        "group": np.array(texts["groups"][1], "<u4"),
        "confidence": np.array(texts["confidences"][1], "<u4"),
        "lost_ns": np.array([row.lost_ns for row in rows], "<i8"),
        "lost_share": np.array([row.share for row in rows], "<f8"),
        "lateness_ns": np.array([row.lateness_ns for row in rows], "<i8"),
        "wait_ns": np.array([row.wait_ns for row in rows], "<i8"),
        "gpu_seconds_lost": np.array([row.gpu_seconds_lost for row in rows], "<f8"),
        "money_lost": np.array([row.money_lost for row in rows], "<f8"),
        "evidence_json": np.array(texts["evidence"][1], "<u4"),
    }
    run_name = run_key(envelope["job"], envelope["run"], envelope.get("attempt_start_ns", 0))
    complete_envelope = {
        "process_id": derived_process_id(Topic.STRAGGLER, run_name),
        **envelope,
        "rows": len(rows),
        "ranks_seen": verdict.ranks_seen,
        "steps_used": verdict.steps_used,
        "steps_skipped": verdict.steps_skipped,
        "step_ns": verdict.step_ns,
        **{name: strings for name, (strings, _) in texts.items()},
    }
    return Batch(Topic.STRAGGLER, complete_envelope, columns)


def _evidence(rows: Sequence[RankVerdict]) -> list[str]:
    """Return the evidence of each row as JSON. What a record cannot hold is left out: the verdict matters more."""
    texts = [json.dumps(row.evidence, sort_keys=True) if row.evidence else "{}" for row in rows]  # most have none
    texts = [text if len(text) <= EVIDENCE.length else LEFT_OUT for text in texts]
    return texts if sum(map(len, texts)) <= EVIDENCE.total else [LEFT_OUT] * len(texts)


def digest(batch: Batch) -> str:
    """Return a hash of the batch's content, without its times, revision and sequence."""
    out = hashlib.blake2b(digest_size=16)
    numbers = ("ranks_seen", "steps_used", "steps_skipped", "step_ns", "window_start_ns", "window_end_ns")
    dictionaries = ("hosts", "gpu_uuids", "causes", "details", "states", "evidence", "groups", "confidences")
    out.update(json.dumps([batch.envelope[name] for name in (*numbers, *dictionaries)]).encode())
    for column in batch.columns.values():
        out.update(column.tobytes())
    return out.hexdigest()
