"""A recorded job fed piece by piece, as a live one comes, gives the rows that the whole gives."""

import tracemalloc
from collections import defaultdict
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from support import trace_mutations as mutations
from support.recordings import folder

from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.table import Table
from drumline.producers.batching.live import BatchWriter
from drumline.producers.derive.nccl.calls import nccl_calls
from drumline.producers.derive.nccl.kernel_names import is_kernel
from drumline.producers.derive.rows import derive
from drumline.producers.identity import Identity
from drumline.producers.ipc.timing import REQUEST_NS
from drumline.producers.live_matching.derivation import IncrementalDerivation
from drumline.producers.live_matching.emitter import RowEmitter
from drumline.producers.replay.trace import read_trace
from drumline.schemas.batch import decode, encode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

pytestmark = pytest.mark.traces
TICK_NS = 500_000_000
IDENTITY = Identity("job", "run", 0, 0, 1, "host", "GPU-0", "process")


@cache
def recorded(path):
    """Activities of a recording's ranks."""
    return read_trace(path).activities


def when_launched(activity):
    """Return when the host launched each NCCL kernel, as CUPTI's records of CUDA calls give it."""
    pairs = derive(activity).matches
    return Table({"correlation": pairs.correlation.astype(np.uint32), "start_ns": pairs.call_ns + 500})


def host_times(activity):
    """Return when the host made each record: markers, and launches of kernels; by the correlation of NCCL's."""
    known = when_launched(activity)
    order = np.argsort(known["correlation"])
    at = np.interp(activity.kernels["correlation"], known["correlation"][order], known["start_ns"][order])
    copies = np.interp(activity.copies["correlation"], known["correlation"][order], known["start_ns"][order])
    return {"kernels": at, "copies": copies, "markers": activity.markers["time_ns"]}


def of_steps(markers):
    """Return which markers begin or end a step."""
    named = np.array([name.startswith("step") for name in markers.dictionaries["names"]])[markers["name"]]
    return np.isin(markers["id"], markers["id"][named])


def played(
    activity,
    tick=TICK_NS,
    windows=(),
    lost_ns=(),
    given_up_ns=(),
    launched=None,
    held=(0, 0),
    pool_reports=True,
    killed_ns=0,
    denied=(1 << 62, 0),
    pieces=1,
    has_ring=False,
):
    """Feed an activity as CUPTI would deliver it, kernels when they have ended; return the batches by topic.

    `lost_ns`: of records that CUPTI dropped, of which it reports only the number. `given_up_ns`: when too much was
    pending. `launched`: delivered while it is wanted. `held`: activity of the host from the first time on comes at the
    second, as a kernel takes long; steps of the API come at once. `pool_reports`: whether the pool reports that.
    `killed_ns`: the end. `denied`: first and last time at which CUPTI got no buffers; reported in `pieces` a tick.
    `has_ring`: NCCL's plugin has the collectives.
    """
    sent = defaultdict(list)
    writer = BatchWriter(
        IDENTITY, lambda topic, key, batch: sent[topic].append(decode(model(topic), encode(model(topic), batch)))
    )
    live = IncrementalDerivation(writer)
    live.has_ring = has_ring
    for on, time_ns in windows:
        live.recording(on, time_ns)
    arrive = {
        "kernels": end_ns(activity.kernels),
        "copies": end_ns(activity.copies),
        "markers": activity.markers["time_ns"],
    }
    at_id = dict(zip(activity.markers["id"].tolist(), activity.markers["time_ns"].tolist(), strict=True))
    steps = of_steps(activity.markers)
    for name, made_ns in host_times(activity).items() if held[1] else ():
        late = (made_ns >= held[0]) & (arrive[name] < held[1]) & ~(steps if name == "markers" else False)
        arrive[name] = np.where(late, held[1], arrive[name])
        at_id |= dict(zip(activity.markers["id"].tolist(), arrive["markers"].tolist(), strict=True))
    arrive["payloads"] = np.array([at_id.get(i, 0) for i in activity.payloads["id"].tolist()], np.int64)
    first = min(int(times.min()) for times in arrive.values() if len(times))
    last = killed_ns or max(int(times.max()) for times in arrive.values() if len(times))
    for now in range(first - first % tick, last + tick + 1, tick):
        parts = {}
        for name, times in arrive.items():
            table = getattr(activity, name)
            parts[name] = table.take((times >= now) & (times < now + tick))
        if launched is not None and live.wants_launches(now):
            at = launched["start_ns"]
            parts["launched"] = launched.take((at >= now) & (at < now + tick))
        live.add(**parts)
        for begin in range(now, now + tick, tick // pieces):
            if denied[0] < begin + tick // pieces and denied[1] >= begin:
                live.lost(now + tick, (max(begin, denied[0]), min(begin + tick // pieces, denied[1])))
        for times, note in ((lost_ns, live.lost), (given_up_ns, live.give_up)):
            if ((np.asarray(times) >= now) & (np.asarray(times) < now + tick)).any():
                note(now + tick)
        live.complete_until_ns = held[0] if pool_reports and held[0] <= now + tick < held[1] else None
        live.advance(now + tick)
    live.advance(last + tick, final=True)
    writer.finish(last + tick)
    return sent, live


def joined(batches, columns):
    """Rows of batches as tuples, in the order sent."""
    return [row for b in batches for row in zip(*(b.columns[c].tolist() for c in columns), strict=True)]


def steps_like_the_whole(sent, whole):
    columns = [c.name for c in model(Topic.STEP).columns]
    live = joined(sent[Topic.STEP], columns)
    expected = list(zip(*(whole.steps[c].tolist() for c in columns), strict=True))
    assert [row[0] for row in live] == [row[0] for row in expected]
    different = [a[0] for a, b in zip(live, expected, strict=True) if a != b]
    return different


@pytest.mark.parametrize("rank", [0, 3])
def test_piecewise_gives_what_the_whole_gives(rank):
    activity = recorded(DEMO_RECORDING)[rank]
    whole = derive(activity)
    sent, _live = played(activity)
    assert not steps_like_the_whole(sent, whole)
    assert {b.envelope["steps_from"] for b in sent[Topic.STEP]} == {whole.steps_from} == {"marker"}
    by_communicator = defaultdict(list)
    columns = ["step", "ordinal", "start_ns", "duration_ns", "covered_ns", "bytes"]
    for batch in sent[Topic.COLLECTIVE]:
        by_communicator[batch.envelope["communicator"]] += joined([batch], columns)
    assert sum(map(len, by_communicator.values())) == whole.collectives.rows
    expected = set(zip(*(whole.collectives[c].tolist() for c in columns), strict=True))
    assert {row for rows in by_communicator.values() for row in rows} == expected
    starts = {
        (b.envelope["domains"][d], s)
        for b in sent[Topic.RANGE]
        for d, s in zip(*(b.columns[c].tolist() for c in ("domain", "start_ns")), strict=True)
    }
    assert len(starts) == whole.ranges.rows


@pytest.mark.parametrize("name", ["mesh-tpdp", "fsdp", "pipeline"])
def test_piecewise_on_other_parallelisms(name):
    activity = recorded(folder(name))[1]
    whole = derive(activity)
    sent, _live = played(activity)
    assert not steps_like_the_whole(sent, whole)
    assert sum(b.rows for b in sent[Topic.COLLECTIVE]) == whole.collectives.rows


def ranges_of(sent):
    """Rows of ranges: step, name, begin and duration."""
    return sorted(
        (step, batch.envelope["names"][name], start_ns, took_ns)
        for batch in sent[Topic.RANGE]
        for step, name, start_ns, took_ns in joined([batch], ["step", "name", "start_ns", "duration_ns"])
    )


@pytest.mark.parametrize("path", [DEMO_RECORDING, folder("fsdp"), folder("pipeline")], ids=lambda path: path.name)
def test_beside_a_ring_nothing_but_the_same_ranges_is_derived(path):
    activity = recorded(path)[1]
    sent, live = played(activity, has_ring=True)
    assert set(sent) == {Topic.RANGE}
    assert ranges_of(sent) == ranges_of(played(activity)[0])
    assert not live.counts["unattributed_collectives"]


def test_beside_a_ring_no_loss_makes_launches_wanted():
    activity = recorded(DEMO_RECORDING)[0]
    given = {"lost_ns": [int(np.median(activity.markers["time_ns"]))], "launched": when_launched(activity)}
    assert played(activity, **given)[1].counts["launches_requested"]
    assert not played(activity, **given, has_ring=True)[1].counts["launches_requested"]


def test_promises_are_kept():
    activity = recorded(DEMO_RECORDING)[1]
    sent, _ = played(activity)
    for topic, batches in sent.items():
        seen = {}
        for batch in batches:
            key = batch.envelope.get("communicator", "")
            before = seen.get(key)
            if before is not None:
                assert batch.envelope["sequence"] == before["sequence"] + 1
                assert batch.envelope["watermark_ns"] >= before["watermark_ns"]
                if topic in (Topic.STEP, Topic.COLLECTIVE):
                    assert batch.envelope["complete_step"] >= before["complete_step"]
                    steps = batch.columns["step"]
                    assert (steps[steps >= 0] > before["complete_step"]).all()
                if batch.rows and topic is not Topic.RANGE:
                    assert batch.columns["start_ns"].min() >= before["watermark_ns"]
            seen[key] = batch.envelope


def test_what_waits_for_the_end_of_a_step_is_small_and_bounded():
    live = IncrementalDerivation(BatchWriter(IDENTITY, lambda *_: None))
    activity = recorded(DEMO_RECORDING)[0]
    none = activity.copies.take(slice(0))
    live.add(activity.kernels.take(slice(0)), none, activity.markers.take(slice(1)), activity.payloads.take(slice(0)))
    now = int(activity.markers["time_ns"][0])
    part = activity.kernels.take(slice(50_000))
    tracemalloc.start()
    for _ in range(8):
        copy = Table({name: values.copy() for name, values in part.columns.items()}, part.dictionaries)
        live.add(copy, none, none, activity.payloads.take(slice(0)))
    del copy
    kept, peak = tracemalloc.get_traced_memory()
    assert kept < 8 * part.rows * 56, "bytes a kernel"
    tracemalloc.reset_peak()
    live.advance(now + TICK_NS)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * part.rows * 150
    while not live.counts["given_up_kernels"]:
        live.add(part, none, none, activity.payloads.take(slice(0)))
        live.advance(now + TICK_NS)
    assert live.counts["given_up_kernels"] < 1_100_000


def from_then_on(activity, since, too_many=0):
    """Return what CUPTI records when it is switched on at a time: ranges and kernels that begin later.

    `too_many`: number of NCCL kernels whose calls came before.
    """
    whole = derive(activity)
    called = whole.ranges.take(whole.ranges["start_ns"] >= since)
    nccl_kernels = np.flatnonzero(is_kernel(activity.kernels.dictionaries["names"])[activity.kernels["name"]])
    order = nccl_kernels[np.argsort(activity.kernels["correlation"][nccl_kernels])]
    calls_ns = nccl_calls(whole.ranges, activity.payloads).start_ns
    before = int((calls_ns < since).sum())
    assert len(calls_ns) == len(order), "one kernel a call"
    first = activity.kernels["correlation"][order[before - too_many]]
    ids = np.unique(called["id"])
    kept = np.isin(activity.markers["id"], ids) & (activity.markers["time_ns"] >= since)
    return replace(
        activity,
        kernels=activity.kernels.take(activity.kernels["correlation"] >= first),
        copies=activity.copies.take(activity.copies["start_ns"] >= since),
        markers=activity.markers.take(kept),
        payloads=activity.payloads.take(np.isin(activity.payloads["id"], ids)),
    )


@pytest.mark.parametrize("too_many", [0, 1])
def test_recording_that_begins_in_the_middle_finds_its_place(too_many):
    activity = recorded(DEMO_RECORDING)[2]
    whole = derive(activity)
    activity_from_then = from_then_on(activity, int(np.quantile(activity.markers["time_ns"], 0.3)), too_many)
    sent, _live = played(activity_from_then)
    columns = ["start_ns", "ordinal", "step"]
    expected = {row[0]: row for row in zip(*(whole.collectives[c].tolist() for c in columns), strict=True)}
    skipped = {row[0] for row in joined(sent[Topic.STEP], ["step", "skipped"]) if row[1]}
    rows = [row for row in joined(sent[Topic.COLLECTIVE], columns) if row[2] >= 0]
    number_gap = expected[rows[-1][0]][2] - rows[-1][2]  # the recording's warm-up has numbers of its own
    first = min(row[2] for row in rows)
    assert len(rows) > 1000
    wrong = [row for row in rows if row[2] > first and (row[0], row[1], row[2] + number_gap) != expected[row[0]]]
    assert not [row for row in wrong if row[2] not in skipped]


ROW_KEY = ["start_ns", "ordinal", "step", "bytes"]


def emitted_rows(sent):
    return {row for row in joined(sent[Topic.COLLECTIVE], ROW_KEY) if row[2] >= 0}


def truth(whole):
    rows = zip(*(whole.collectives[c].tolist() for c in ROW_KEY), strict=True)
    return {row for row in rows if row[2] >= 0}


@pytest.mark.parametrize(("lost", "most", "reported"), [(1, 1, False), (1, 1, True), (60, 16, True)])
def test_lost_kernels_cost_their_steps_and_make_no_wrong_row(lost, most, reported):
    activity = recorded(DEMO_RECORDING)[2]
    whole = derive(activity)
    nccl = np.flatnonzero(is_kernel(activity.kernels.dictionaries["names"])[activity.kernels["name"]])
    nccl = nccl[np.argsort(activity.kernels["correlation"][nccl], kind="stable")]
    lost_rows = nccl[len(nccl) // 2 : len(nccl) // 2 + lost]
    less = replace(activity, kernels=activity.kernels.take(np.setdiff1d(np.arange(activity.kernels.rows), lost_rows)))
    dropped = end_ns(activity.kernels)[lost_rows] if reported else ()
    tick = 2 * int(np.median(whole.steps["duration_ns"]))
    sent, live = played(less, tick, lost_ns=dropped, launched=when_launched(activity))
    rows, expected = emitted_rows(sent), truth(whole)
    assert rows <= expected
    skipped = {row[0] for row in joined(sent[Topic.STEP], ["step", "skipped"]) if row[1]}
    missing = {row[2] for row in expected - rows}
    assert 0 < len(missing) <= most
    assert missing <= skipped
    assert 0 <= live.counts["unattributed_collectives"] <= 20 * most


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
@pytest.mark.parametrize(("share", "kept"), [(0.001, 0.9), (0.01, 0.7)])
def test_lost_kernels_make_no_wrong_row_and_no_wrong_budget(share, kept, seed):
    for rank, damaged in enumerate(mutations.lost(read_trace(DEMO_RECORDING), share, seed, ("kernels",)).activities):
        lost = end_ns(recorded(DEMO_RECORDING)[rank].kernels)
        dropped = lost[~np.isin(lost, end_ns(damaged.kernels))]
        sent, _live = played(damaged, lost_ns=dropped, launched=when_launched(recorded(DEMO_RECORDING)[rank]))
        whole = derive(recorded(DEMO_RECORDING)[rank])
        rows, expected = emitted_rows(sent), truth(whole)
        assert rows <= expected
        assert len(rows) > kept * len(expected)
        budget = ["step", "gpu_start_ns", "gpu_duration_ns", "collectives"]
        good = {row[:-1] for row in joined(sent[Topic.STEP], [*budget, "skipped"]) if not row[-1]}
        assert good <= set(zip(*(whole.steps[c].tolist() for c in budget), strict=True))
        print(f"share={share} {seed=} {rank=}: {len(rows)} of {len(expected)} collectives, {len(good)} steps count")


def renumbered(activity, increments):
    """Other CUDA calls between the launches. `increments`: from the distances of correlation ids to others."""
    ids, at = np.unique(activity.kernels["correlation"], return_inverse=True)
    fresh = np.cumsum(increments(np.diff(ids, prepend=ids[0] - 1).astype(np.int64))).astype(ids.dtype)
    return replace(
        activity, kernels=Table({**activity.kernels.columns, "correlation": fresh[at]}, activity.kernels.dictionaries)
    )


def unusual(share, steps=134):
    """For renumbered(): a share of the steps makes more CUDA calls than the others."""
    dice = np.random.default_rng(1)

    def more(gaps):
        chosen = (dice.random(steps) < share)[np.arange(len(gaps)) * steps // len(gaps)]
        return gaps + np.where(chosen, dice.integers(0, 3, len(gaps)), 0)

    return more


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_steps_with_other_cuda_calls_than_the_template_are_emitted_too(share):
    activity = recorded(DEMO_RECORDING)[0]
    expected = truth(derive(activity))
    uneven = renumbered(activity, unusual(share))
    assert truth(derive(uneven)) == expected
    sent, live = played(uneven)
    assert emitted_rows(sent) == expected
    assert not live.counts["skipped_steps"]


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_some_time_after_a_loss_counts_are_believed_again(share):
    activity = renumbered(recorded(DEMO_RECORDING)[0], unusual(share))
    nccl = np.flatnonzero(is_kernel(activity.kernels.dictionaries["names"])[activity.kernels["name"]])
    lost_rows = nccl[np.argsort(activity.kernels["correlation"][nccl], kind="stable")][len(nccl) // 4]
    less = activity.kernels.take(np.arange(activity.kernels.rows) != lost_rows)
    expected = truth(derive(activity))
    dropped = end_ns(activity.kernels)[[lost_rows]]
    sent, live = played(replace(activity, kernels=less), lost_ns=dropped, launched=when_launched(activity))
    rows = emitted_rows(sent)
    assert rows <= expected
    missing = {row[2] for row in expected - rows}
    assert max(missing) - min(missing) <= 30
    assert 0 < live.counts["skipped_steps"] <= 30


def earlier(activity, ns):
    """The host is ahead of the GPU by so much more."""
    markers = {**activity.markers.columns, "time_ns": activity.markers["time_ns"] - ns}
    return replace(activity, markers=Table(markers, activity.markers.dictionaries))


def test_after_pending_activity_was_given_up_nothing_wrong_is_emitted():
    activity = earlier(recorded(DEMO_RECORDING)[2], 300_000_000)  # calls are given up whose kernels are still to come
    expected = truth(derive(activity))
    sent, live = played(activity, given_up_ns=np.quantile(activity.kernels["start_ns"], [0.4, 0.6]))
    rows = emitted_rows(sent)
    assert {row[:1] + row[3:] for row in rows} <= {row[:1] + row[3:] for row in expected}
    steps = {row[0]: row[2] for row in expected}
    wrong = [row for row in rows if row[2] != steps[row[0]]]
    assert not wrong
    assert len(rows) > 0.3 * len(expected)  # those before: a host that is always ahead is not found again by time
    assert live.counts["given_up_kernels"] > 0


def without(activity, low, high, steps=True):
    """Return what is left where CUPTI dropped all records of a while: kernels by their end, markers by their time.

    `steps`: markers of steps are dropped too.
    """

    def left(table, times):
        return table.take((times < low) | (times >= high))

    markers = left(activity.markers, activity.markers["time_ns"])
    if not steps:  # another thread's, whose buffer lasted longer
        inside = (activity.markers["time_ns"] >= low) & (activity.markers["time_ns"] < high)
        markers = activity.markers.take(~inside | of_steps(activity.markers))
    return replace(
        activity,
        kernels=left(activity.kernels, end_ns(activity.kernels)),
        copies=left(activity.copies, end_ns(activity.copies)),
        markers=markers,
        payloads=activity.payloads.take(np.isin(activity.payloads["id"], markers["id"])),
    )


@pytest.mark.parametrize(
    ("path", "ahead"),
    [
        (DEMO_RECORDING, 0),
        (DEMO_RECORDING, 50_000_000),
        (DEMO_RECORDING, 300_000_000),
        (folder("fsdp"), 100_000_000),
        (folder("pipeline"), 100_000_000),
    ],
)
def test_seconds_without_records_are_got_over_however_far_the_host_is_ahead(path, ahead):
    activity = earlier(recorded(path)[1], ahead)
    whole = derive(activity)
    low, high = np.quantile(whole.steps["start_ns"], [0.3, 0.6]).astype(np.int64).tolist()
    sent, live = played(without(activity, low, high), lost_ns=[high], launched=when_launched(activity))
    rows, expected = emitted_rows(sent), truth(whole)
    assert rows <= expected
    called = dict(zip(whole.steps["step"].tolist(), whole.steps["start_ns"].tolist(), strict=True))
    again = high + 3 * TICK_NS
    assert {row for row in expected if called[row[2]] > again or called[row[2]] < low - ahead - TICK_NS} <= rows
    assert live.counts["launches_requested"] == 1
    budget = ["step", "gpu_start_ns", "gpu_duration_ns", "collectives"]
    good = {row[:-1] for row in joined(sent[Topic.STEP], [*budget, "skipped"]) if not row[-1]}
    assert good <= set(zip(*(whole.steps[c].tolist() for c in budget), strict=True))


@pytest.mark.parametrize("pieces", [1, 80])
@pytest.mark.parametrize(
    ("path", "ahead"), [(DEMO_RECORDING, 0), (DEMO_RECORDING, 300_000_000), (folder("fsdp"), 100_000_000)]
)
def test_steps_that_are_marked_while_another_threads_calls_are_dropped_are_skipped(path, ahead, pieces):
    activity = earlier(recorded(path)[1], ahead)
    whole = derive(activity)
    low, high = np.quantile(whole.steps["start_ns"], [0.3, 0.4]).astype(np.int64).tolist()
    left = without(activity, low, high, steps=False)
    sent, _live = played(left, denied=(low, high), pieces=pieces, launched=when_launched(activity))
    rows = joined(sent[Topic.STEP], ["step", "skipped", "collectives", "gpu_start_ns", "gpu_duration_ns"])
    expected = truth_of_steps(whole)
    good = {row[0]: row[2:] for row in rows if not row[1]}
    assert {number: expected[number] for number in good} == good
    skipped = {row[0] for row in rows if row[1]}
    during = whole.steps["step"][(whole.steps["start_ns"] >= low) & (whole.steps["start_ns"] < high)]
    assert set(during.tolist()) <= skipped
    assert len(good) > 0.6 * len(expected)
    outside = [
        (batch.envelope["communicator"], ordinal)
        for batch in sent[Topic.COLLECTIVE]
        for ordinal in batch.columns["ordinal"][batch.columns["step"] < 0].tolist()
    ]
    assert len(set(outside)) == len(outside), "what they have left counts on, outside of steps"


@pytest.mark.parametrize("seed", range(20))
def test_losses_reach_the_steps_that_they_touch_in_any_order(seed):
    random, second = np.random.default_rng(seed), 1_000_000_000
    start = np.arange(100) * second
    steps = Table({"start_ns": start, "duration_ns": np.full(100, second)})
    firsts = 200_000_000 + np.sort(random.integers(0, 90 * second, 12))
    windows = [(int(first), int(first + random.integers(0, 3 * second))) for first in firsts]
    emitter = RowEmitter(BatchWriter(IDENTITY, lambda *_: None))
    assert not emitter._in_losses(steps).any()
    for first, last in windows if seed % 2 else random.permutation(windows).tolist():
        emitter.lost(first, last)
    touched = [any(f - REQUEST_NS <= at + second and at <= last for f, last in windows) for at in start.tolist()]
    result = emitter._in_losses(steps)
    assert not (np.array(touched) & ~result).any()
    if seed % 2:  # in order, none but these
        assert result.tolist() == touched


def test_losses_of_long_ago_are_forgotten():
    emitter = RowEmitter(BatchWriter(IDENTITY, lambda *_: None))
    for i in range(1_000):
        emitter.lost(i * 1_000_000_000, i * 1_000_000_000)
    assert 100 < len(emitter._lost) < 130


def test_a_process_whose_kernels_stop_is_reported_though_its_calls_wait_for_them(monkeypatch):
    reported, advance = [], IncrementalDerivation.advance

    def noted(live, now_ns, final=False):
        advance(live, now_ns, final)
        if live.no_kernels_since_ns and not final:
            reported.append((now_ns, live.no_kernels_since_ns))

    monkeypatch.setattr(IncrementalDerivation, "advance", noted)
    activity = recorded(DEMO_RECORDING)[0]
    played(activity)
    assert not reported
    end = int(np.median(end_ns(activity.kernels)))
    played(replace(activity, kernels=activity.kernels.take(end_ns(activity.kernels) < end)))
    assert reported[0][0] - end < 4_000_000_000
    assert {since for _, since in reported} == {reported[0][1]}
    assert abs(reported[0][1] - end) < 1_000_000_000


def test_steps_whose_kernels_are_all_elsewhere_are_skipped():
    activity = recorded(DEMO_RECORDING)[1]
    low, high = np.quantile(derive(activity).steps["start_ns"], [0.3, 0.4]).astype(np.int64).tolist()
    sent, _live = played(without(activity, low, high, steps=False))
    rows = joined(sent[Topic.STEP], ["skipped", "kernels", "compute_ns", "copy_ns", "comm_ns"])
    assert sum(not any(ran) for _, *ran in rows) > 5
    assert all(skipped for skipped, *ran in rows if not any(ran))
    assert sum(not skipped for skipped, *_ in rows) > 30


def truth_of_steps(whole):
    columns = ("step", "collectives", "gpu_start_ns", "gpu_duration_ns")
    return {row[0]: row[1:] for row in zip(*(whole.steps[c].tolist() for c in columns), strict=True)}


def test_as_many_calls_lost_as_kernels_are_no_pairs_at_the_end_of_the_job():
    activity = earlier(recorded(DEMO_RECORDING)[2], 50_000_000)
    whole = derive(activity)
    low, high = np.quantile(whole.steps["start_ns"], [0.75, 0.9]).astype(np.int64).tolist()
    sent, _live = played(without(activity, low, high), lost_ns=[high])  # without launch records
    assert emitted_rows(sent) <= truth(whole)
    assert len(emitted_rows(sent)) > 0.7 * len(truth(whole))


@pytest.mark.parametrize(("path", "ahead"), [(DEMO_RECORDING, 50_000_000), (folder("fsdp"), 100_000_000)])
def test_launches_are_not_recorded_where_nothing_was_lost(path, ahead):
    activity = earlier(recorded(path)[1], ahead)
    sent, live = played(activity, launched=when_launched(activity))
    assert emitted_rows(sent) == truth(derive(activity))
    assert "launches_requested" not in live.counts


def test_a_step_whose_end_was_lost_is_missing_but_no_other_one():
    activity = recorded(DEMO_RECORDING)[0]
    whole = derive(activity)
    names, markers = activity.markers.dictionaries["names"], activity.markers
    (step,) = markers["id"][np.flatnonzero(np.array([name == "step 40" for name in names])[markers["name"]])][:1]
    ended = (markers["id"] == step) & (markers["time_ns"] > markers["time_ns"][markers["id"] == step].min())
    sent, live = played(replace(activity, markers=markers.take(~ended)))
    numbers = {row[0] for row in joined(sent[Topic.STEP], ["step"])}
    (missing,) = set(whole.steps["step"].tolist()) - numbers
    assert {row for row in truth(whole) if row[2] != missing} == emitted_rows(sent)
    assert live.counts["endless_ranges"] == 1


def test_where_distances_match_nothing_counts_are_believed_until_records_were_dropped():
    dice = np.random.default_rng(1)
    activity = renumbered(recorded(DEMO_RECORDING)[0], lambda gaps: dice.integers(1, 100, len(gaps)))
    expected = truth(derive(activity))
    assert emitted_rows(played(activity)[0]) == expected
    half = int(np.median(activity.kernels["start_ns"]))
    sent, live = played(activity, lost_ns=[half])
    rows = emitted_rows(sent)
    assert rows < expected
    assert len(rows) > 0.4 * len(expected)
    assert max(row[0] for row in rows) < half + TICK_NS
    assert live.counts["skipped_steps"] > 50


def half_of(activity):
    return int(np.median(host_times(activity)["kernels"]))


@pytest.mark.parametrize(
    ("path", "ahead"), [(DEMO_RECORDING, 0), (DEMO_RECORDING, 300_000_000), (folder("fsdp"), 100_000_000)]
)
def test_a_kernel_of_five_seconds_holds_back_steps_and_costs_none(path, ahead):
    activity = earlier(recorded(path)[1], ahead)
    half = half_of(activity)
    sent, live = played(activity, held=(half, half + 5_000_000_000))
    assert emitted_rows(sent) == truth(derive(activity))
    assert not steps_like_the_whole(sent, derive(activity))
    assert "late_markers" not in live.counts


def test_markers_that_come_after_their_steps_were_emitted_are_counted():
    activity = earlier(recorded(DEMO_RECORDING)[1], 300_000_000)
    half = half_of(activity)
    sent, live = played(activity, held=(half, half + 5_000_000_000), pool_reports=False)
    missing = truth(derive(activity)) - emitted_rows(sent)
    assert missing
    assert live.counts["late_markers"] >= 2 * len(missing)


def emitted_steps(sent):
    """Number -> (skipped, collectives) of each step."""
    return {row[0]: row[1:] for row in joined(sent[Topic.STEP], ["step", "skipped", "collectives"])}


def test_a_step_is_not_waited_for_longer_than_forty_seconds_and_then_skipped(monkeypatch):
    monkeypatch.setattr("drumline.producers.live_matching.derivation.HELD_NS", 3_000_000_000)
    activity = earlier(recorded(DEMO_RECORDING)[1], 300_000_000)
    half = half_of(activity)
    sent, live = played(activity, held=(half, half + 5_000_000_000))
    whole = emitted_steps({Topic.STEP: [SimpleNamespace(columns=derive(activity).steps.columns)]})
    result = emitted_steps(sent)
    assert result.keys() == whole.keys()
    wrong = {step for step in result if result[step][1] != whole[step][1]}
    skipped = {step for step in result if result[step][0]}
    assert wrong
    assert wrong <= skipped
    assert 5 < len(skipped) < 30, "two seconds of 67 ms each; not all five"
    assert live.counts["skipped_steps"] == len(skipped)


def test_steps_whose_calls_were_lost_with_the_process_are_skipped():
    activity = earlier(recorded(DEMO_RECORDING)[1], 300_000_000)
    half = half_of(activity)
    sent, _live = played(activity, held=(half, 1 << 62), killed_ns=half + 1_000_000_000)
    whole = emitted_steps({Topic.STEP: [SimpleNamespace(columns=derive(activity).steps.columns)]})
    result = emitted_steps(sent)
    wrong = {step for step in result if result[step][1] != whole[step][1]}
    assert wrong
    assert wrong <= {step for step in result if result[step][0]}


def test_steps_numbered_from_the_start_again_count_on():
    activity = recorded(DEMO_RECORDING)[0]
    half = int(np.median(activity.kernels["start_ns"]))
    markers = activity.markers
    names = list(markers.dictionaries["names"])
    fresh = {i: name for i, name in enumerate(names) if name.startswith("step ")}
    numbers = {i: int(name.split()[1]) for i, name in fresh.items()}
    inside = [
        numbers[int(n)]
        for n, t in zip(markers["name"], markers["time_ns"], strict=True)
        if int(n) in fresh and t >= half
    ]
    low = min(inside)
    all_names = names + [f"step {n - low}" for n in sorted(set(inside))]
    renamed = markers["name"].copy()
    for row in np.flatnonzero(markers["time_ns"] >= half).tolist():
        if int(renamed[row]) in fresh:
            renamed[row] = len(names) + sorted(set(inside)).index(numbers[int(renamed[row])])
    table = Table(
        {**markers.columns, "name": renamed}, {"names": all_names, "domains": markers.dictionaries["domains"]}
    )
    again = type(activity)(**{**activity.__dict__, "markers": table})
    sent, _ = played(again)
    numbers_sent = [row[0] for row in joined(sent[Topic.STEP], ["step"])]
    assert numbers_sent == sorted(set(numbers_sent))
    assert len(numbers_sent) == derive(activity).steps.rows


def test_steps_that_were_not_recorded_from_start_to_end_are_left_out():
    """The API marks steps whether CUPTI records or not; what the GPU did in them is known only where it did."""
    activity = recorded(DEMO_RECORDING)[0]
    whole = derive(activity)
    at = np.quantile(whole.steps["start_ns"], [0.2, 0.4, 0.7]).astype(np.int64).tolist()
    denied = (False, at[1] + 1_000_000_000)  # by another profiler; reported twice
    windows = [(True, at[0]), (False, at[1]), denied, (True, at[2])]
    sent, _ = played(activity, windows=windows)
    begin, end = whole.steps["start_ns"], whole.steps["start_ns"] + whole.steps["duration_ns"]
    inside = ((begin >= at[0]) & (end <= at[1])) | (begin >= at[2])
    assert [row[0] for row in joined(sent[Topic.STEP], ["step"])] == whole.steps["step"][inside].tolist()
    steps = {row[0] for row in joined(sent[Topic.COLLECTIVE], ["step"])}
    assert steps - {-1} <= set(whole.steps["step"][inside].tolist())
    assert sum(b.rows for b in sent[Topic.COLLECTIVE]) == whole.collectives.rows
