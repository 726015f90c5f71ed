"""Recorded jobs with damaged records: verdicts hold, or report insufficient data; they never name a wrong rank."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support import trace_mutations as mutations
from support.recordings import TOPICS, jobs_to_damage, phases, report, rows, stream, trace

from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import INSUFFICIENT, OK, SUSPECT, WARNING

JOBS = jobs_to_damage()
KINDS = ("kernels", "copies", "markers", "payloads")
LOSSES = [
    pytest.param(share, kinds, id=f"{share}-{'+'.join(kinds)}", marks=[pytest.mark.long] * (share < least))
    for least, choices in ((0.01, [(kind,) for kind in KINDS]), (0.001, [KINDS]))
    for kinds in choices
    for share in (0.001, 0.01)
]
MS = 1_000_000
CLEAR = 0.10


@cache
def undisturbed(folder):
    return rows(stream(folder))


def unchanged(folder, result, names=None):
    """Check that windows name the same ranks, under their new `names`, for the same cause and about the same loss."""
    expected = {(first, (names or {}).get(rank, rank)): row for (first, rank), row in undisturbed(folder).items()}
    assert result.keys() == expected.keys()
    for where, row in result.items():
        was = expected[where]
        assert (row.severity, row.cause) == (was.severity, was.cause) or abs(row.share - was.share) < 0.002, where
        assert row.share == pytest.approx(was.share, abs=0.005), where


def steady(folder, rank, first, last):
    """Return whether a rank costs about as much in all windows of a phase."""
    shares = [r.share for r in undisturbed(folder).values() if r.rank == rank and first <= r.first_step <= last - 4]
    return max(shares) < 1.5 * min(shares)


#: Windows of a fault until its name, at most, in jobs of few windows.
EARLY = 3


def unharmed(folder, result):
    """Check that no further rank is named, and that a rank that was clearly late is named or reported as insufficient.

    Or its loss is the job's jitter, in the first windows of a fault: with less data more are needed for its name.
    Phases with jitter are left out: there the steps that are left decide which rank was late most. Clearly: 10% lost in
    a window wholly inside a counted phase, and about as much in all its windows. Where steps are bad now and then a
    window may lose just those, and a milder loss may only show against the baseline, which lost windows take away.
    """
    whole = [(p["first_step"], p["last_step"]) for p in phases(folder) if p["counted"]]
    jitter = [(p["first_step"], p["last_step"]) for p in phases(folder) if not p["counted"]]
    for where, row in result.items():
        was = undisturbed(folder).get(where)
        if was is None or INSUFFICIENT in (row.severity, was.severity):
            continue
        if not any(first <= row.last_step and row.first_step <= last for first, last in jitter):
            assert not (was.severity == OK and row.severity >= WARNING), (where, was, row)
        for first, last in whole:
            if first <= row.first_step and row.last_step <= last and steady(folder, row.rank, first, last):
                is_early = row.first_step < first + EARLY * (row.last_step - row.first_step + 1)
                is_shown = row.severity > OK or (is_early and result[where[0], -1].cause == "jitter")
                assert is_shown or was.share < CLEAR, (where, was, row)
    for phase in report(folder, result).phases:
        if phase.counted:
            assert set(phase.found_ranks) <= set(phase.expected_ranks), phase


@pytest.mark.parametrize("folder", JOBS)
@pytest.mark.parametrize(("share", "kinds"), LOSSES)
def test_records_are_lost_at_random(folder, kinds, share):
    for seed in range(2):
        unharmed(folder, rows(stream(folder, mutations.lost(trace(folder), share, seed, kinds))))


def silent(result):
    """Return the share of the verdicts that report insufficient data."""
    return np.mean([row.severity == INSUFFICIENT for row in result.values()])


@pytest.mark.parametrize("folder", JOBS)
@pytest.mark.parametrize(("kinds", "most"), [(KINDS, 0.4), (("copies", "payloads"), 0.05)], ids=["all", "no kernels"])
def test_a_thousandth_of_the_records_lost_leaves_most_windows_evaluated(folder, kinds, most):
    """The records that are lost decide on the number of windows; over several seeds most are left."""
    damaged = (mutations.lost(trace(folder), 0.001, seed, kinds) for seed in range(5))
    assert (
        np.median([silent(rows(stream(folder, records))) for records in damaged]) <= silent(undisturbed(folder)) + most
    )


@pytest.mark.parametrize("folder", JOBS)
@pytest.mark.parametrize("share", [0.001, 0.01, 0.02])
def test_lost_kernels_other_than_nccls_leave_every_window_evaluated(folder, share):
    result = rows(stream(folder, mutations.lost_work(trace(folder), share, 1)))
    unharmed(folder, result)
    insufficient = {where for where, row in result.items() if row.severity == INSUFFICIENT}
    assert insufficient == {where for where, row in undisturbed(folder).items() if row.severity == INSUFFICIENT}


@pytest.mark.parametrize("folder", JOBS)
def test_of_kernels_only_a_sample_is_kept(folder):
    """Policy `collectives`, or rows lost on the way: budgets and collectives were made of all kernels before."""
    dice, sampled = np.random.default_rng(1), []
    for out in RecordedJob(folder, topics={*TOPICS, Topic.KERNEL}).batches("run"):
        keep = dice.random(out.batch.rows) < (0.1 if out.batch.topic == Topic.KERNEL else 1.0)
        columns = {name: values[keep] for name, values in out.batch.columns.items()}
        sampled.append((out.time_ns, Batch(out.batch.topic, {**out.batch.envelope, "rows": int(keep.sum())}, columns)))
    assert any(batch.topic == Topic.KERNEL and batch.rows for _, batch in sampled)
    assert rows(sampled) == undisturbed(folder)


@pytest.mark.parametrize("folder", JOBS)
def test_unmarked_steps_are_inferred(folder):
    unmarked = mutations.unmarked(trace(folder))
    result = report(folder, rows(stream(folder, unmarked)), unmarked)
    assert all(phase.right for phase in result.phases if phase.counted and phase.windows)
    assert all(phase.windows for phase in result.phases if phase.counted)


@pytest.mark.parametrize("folder", JOBS)
@pytest.mark.parametrize("has_markers", [True, False])
def test_communicators_that_nccl_does_not_name_are_guessed(folder, has_markers):
    """Milder faults than CLEAR may be missed: without communicators there is no lag."""
    unnamed = mutations.without_payloads(trace(folder) if has_markers else mutations.unmarked(trace(folder)))
    result = rows(stream(folder, unnamed))
    loss = report(folder, undisturbed(folder)).phases
    for phase, whole in zip(report(folder, result, None if has_markers else unnamed).phases, loss, strict=True):
        if phase.counted and phase.windows:
            assert set(phase.found_ranks) <= set(phase.expected_ranks), phase
            assert (
                phase.found_ranks
                or whole.lost_share < 2 * CLEAR
                or INSUFFICIENT in {r.severity for r in result.values()}
            )


@pytest.mark.parametrize("folder", JOBS)
def test_one_ranks_batches_are_missing_for_two_seconds(folder):
    batches = stream(folder)
    busy = [time for time, batch in batches if batch.topic == "gpu.step.v1" and batch.rows]
    begin = busy[len(busy) // 3]
    kept = mutations.without(batches, 1, begin, begin + 2000 * MS)
    assert len(kept) < len(batches)
    unharmed(folder, rows(kept))


@pytest.mark.parametrize("folder", JOBS)
def test_recording_begins_with_the_fault(folder):
    """Of the first window three or four steps are compared: too few to tell a late rank from one that is late by turns.

    Then it is the job's jitter; a later window has the name.
    """
    for phase in (p for p in phases(folder) if p["fault_ranks"]):
        result = rows(stream(folder, mutations.since(trace(folder), phase["start_ns"])))
        assert result[min(first for first, _ in result), -1].severity <= SUSPECT
        unharmed(folder, result)
        inside = [row for row in result.values() if phase["first_step"] <= row.first_step <= phase["last_step"]]
        late = [row for row in inside if row.rank in phase["fault_ranks"] and row.share >= 2 * CLEAR]
        assert len(late) < EARLY or any(row.severity >= WARNING for row in late), phase


@pytest.mark.parametrize("folder", JOBS)
@pytest.mark.parametrize("off", [(0, 500, 0, 0), (0, -500, 500, 250), (500, 0, 0, -500)], ids=str)
def test_clocks_are_off_by_half_a_second(folder, off):
    shift = [off[rank % len(off)] * MS for rank in range(len(trace(folder).activities))]
    moved = mutations.clocks(trace(folder), shift, [0.0] * len(shift))
    unchanged(folder, rows(stream(folder, moved)))


@pytest.mark.parametrize("folder", JOBS)
def test_clocks_drift_by_100_ppm(folder):
    drift = [(0.0, 1e-4, -1e-4, 5e-5)[rank % 4] for rank in range(len(trace(folder).activities))]
    unchanged(folder, rows(stream(folder, mutations.clocks(trace(folder), [0] * len(drift), drift))))


@pytest.mark.parametrize("folder", JOBS)
def test_names_follow_the_ranks(folder):
    count = len(trace(folder).activities)
    order = [(rank + 1) % count for rank in range(count)]
    result = rows(stream(folder, mutations.permuted(trace(folder), order)))
    unchanged(folder, result, dict(enumerate(order)))


@pytest.mark.parametrize("folder", JOBS)
@pytest.mark.parametrize("how", ["renamed", "renumbered", "shuffled"])
def test_names_of_kernels_numbers_of_streams_and_the_order_of_records_change_nothing(folder, how):
    change = {
        "renamed": mutations.renamed,
        "renumbered": lambda t: mutations.renumbered(t, 3),
        "shuffled": lambda t: mutations.shuffled(t, 3),
    }[how]
    unchanged(folder, rows(stream(folder, change(trace(folder)))))


@pytest.mark.parametrize("folder", JOBS)
def test_batches_come_in_another_order_and_twice(folder):
    unchanged(folder, rows(mutations.disordered(stream(folder), 3)))
