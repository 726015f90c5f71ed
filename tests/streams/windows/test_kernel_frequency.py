"""Rolling kernel frequency: the content of a window, its time of emission, and no row counted twice."""

import asyncio

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.labs.windows import CONFIG, T0, Lab, S, kernels

from drumline.infra.telemetry.metrics import STREAM_DROPPED
from drumline.streams.core import batch_dedup
from drumline.streams.windows import kernel_frequency
from drumline.streams.windows import process_state as progress
from drumline.streams.windows.kernel_frequency import KernelFrequency
from drumline.streams.windows.panes import RELATIVE_ERROR
from drumline.streams.windows.process_state import CHECKPOINT_KINDS
from drumline.streams.worker.partition_store import CheckpointOrder, PartitionStore
from drumline.streams.worker.telemetry import Drops, count_drops


def test_a_window_holds_one_row_per_kernel_and_the_identity_of_its_process():
    lab = Lab()
    lab.feed(kernels([(0, 100, "gemm"), (1, 300, "gemm"), (9.9, 7, "relu"), (10, 5, "gemm")], watermark=10))
    batch = lab.results[("p", 0)]
    e, c = batch.envelope, batch.columns
    assert (e["job"], e["run"], e["rank"], e["host"], e["revision"], e["late_rows"]) == ("j", "r", 3, "h", 0, 0)
    assert (e["window_start_ns"], e["window_end_ns"]) == (T0, T0 + 10 * S)
    assert e["names"] == ["gemm", "relu"]
    assert [c[n].tolist() for n in ("launches", "gpu_ns", "min_ns", "max_ns")] == [[2, 1], [400, 7], [100, 7], [300, 7]]
    assert [c[n].tolist() for n in ("grid_sum", "grid_max")] == [[16, 8], [8, 8]]
    assert [c[n].tolist() for n in ("block_sum", "block_max")] == [[128, 64], [64, 64]]
    np.testing.assert_allclose(c["p50_ns"], [100, 7], rtol=RELATIVE_ERROR)
    assert ("p", 5) not in lab.results
    lab.silence()
    assert lab.table()[("p", 5)] == {"gemm": 1, "relu": 1}
    assert lab.table()[("p", 10)] == {"gemm": 1}


def test_windows_overlap_by_the_hop():
    lab = Lab()
    lab.feed(kernels([(at, 1, "k") for at in range(20)], watermark=20))
    assert {w: t["k"] for (_, w), t in lab.table().items()} == {-5: 5, 0: 10, 5: 10, 10: 10}


def test_a_heartbeat_without_rows_closes_windows():
    lab = Lab()
    assert not lab.feed(kernels([(1, 1, "k")], watermark=2))[1:]
    lab.feed(kernels([], watermark=11))
    assert lab.table()[("p", 0)] == {"k": 1}


def test_late_rows_within_grace_raise_the_revision_and_older_ones_are_counted():
    lab = Lab()
    lab.feed(kernels([(1, 1, "k"), (11, 1, "k")], watermark=12))
    lab.feed(kernels([(2, 1, "k")], watermark=12))
    assert (lab.table()[("p", 0)], lab.results[("p", 0)].envelope["revision"]) == ({"k": 2}, 1)
    lab.feed(kernels([(30, 1, "k")], watermark=30))
    sent = len(lab.sent)
    lab.feed(kernels([(3, 1, "k"), (4, 1, "k")], watermark=30))
    assert len(lab.sent) == sent
    lab.silence()
    assert lab.audit() == (4, 2)


def test_late_rows_are_published_even_if_nothing_else_changes():
    lab = Lab()
    lab.feed(kernels([(1, 1, "k")], watermark=90))
    lab.feed(kernels([(2, 1, "k")], watermark=90))
    assert lab.stage.open_windows == 1
    [batch] = lab.silence()
    assert (batch.rows, batch.envelope["late_rows"]) == (0, 1)
    assert lab.tick() == []
    assert lab.stage.open_windows == 0


def test_silence_closes_windows_only_without_lag():
    lab = Lab()
    lab.feed(kernels([(1, 1, "k")], watermark=1))
    assert lab.tick(60, caught_up=False) == []
    lab.tick(1)
    assert lab.table() == {("p", -5): {"k": 1}, ("p", 0): {"k": 1}}


def test_a_process_that_comes_back_after_silence_adds_to_its_window():
    lab = Lab()
    lab.feed(kernels([(1, 1, "k")], watermark=1))
    lab.silence()
    lab.feed(kernels([(2, 1, "k")], watermark=2))
    lab.silence()
    assert (lab.table()[("p", 0)], lab.results[("p", 0)].envelope["revision"]) == ({"k": 2}, 1)


def test_a_window_on_its_way_is_not_sent_again_and_what_came_meanwhile_is():
    lab = Lab()
    first = lab.feed(kernels([(6, 1, "k")], watermark=15), acknowledge=False)
    assert [b.envelope["window_start_ns"] - T0 for b in first] == [0, 5 * S]
    assert lab.feed(kernels([(7, 1, "k")], watermark=15)) == []
    lab.take(first)
    lab.feed(kernels([], watermark=15))
    assert lab.table()[("p", 0)] == {"k": 2}
    assert lab.results[("p", 0)].envelope["revision"] == 1


def test_a_restart_before_the_acknowledgement_sends_again_and_leaves_no_gap():
    lab = Lab()
    lab.feed(kernels([(6, 1, "k")], watermark=15), acknowledge=False)
    lab.restart()
    lab.tick(1)
    lab.feed(kernels([], watermark=16))
    assert sorted(b.envelope["sequence"] for b in lab.sent) == [0, 1]
    assert {b.envelope["revision"] for b in lab.sent} == {0}


def test_broken_clocks_allocate_nothing_and_are_counted():
    lab = Lab()
    lab.feed(kernels([(1, 1, "k"), (10**8, 1, "k"), (-5 * 10**5, 1, "k")], watermark=5))
    assert len([key for key in lab.store if key.startswith("w|")]) == 1
    lab.silence()
    assert lab.audit() == (1, 2)


def test_runs_of_one_job_and_processes_never_mix():
    lab = Lab()
    for run, process in (("r1", "a"), ("r2", "a"), ("r2", "b")):
        lab.feed(kernels([(1, 1, "k")], watermark=11, run=run, process=process))
    assert [
        (b.envelope["run"], b.columns["launches"].tolist()) for b in lab.sent if b.envelope["window_start_ns"] == T0
    ] == [
        ("r1", [1]),
        ("r2", [1]),
        ("r2", [1]),
    ]


def test_state_goes_away_with_time_but_late_counts_stay_longer():
    lab = Lab()
    lab.feed(kernels([(at, 1, "k") for at in range(0, 90, 5)], watermark=90))
    held = [key for key in lab.store if key.startswith("w|")]
    assert len(held) <= (CONFIG.window_ns + CONFIG.grace_ns) // CONFIG.hop_ns + 1
    lab.silence()
    lab.tick(CONFIG.retire_ns / S)
    assert {key.split("|")[0] for key in lab.store} == {"p", "n"}
    lab.feed(kernels([(91, 1, "k")], watermark=91))
    lab.silence()
    assert lab.audit() == (18, 1)
    lab.tick(CONFIG.forget_ns / S)
    assert lab.store == {}


def test_more_kernels_than_a_record_holds_share_a_row_and_no_launch_is_lost(monkeypatch):
    monkeypatch.setattr(kernel_frequency, "MAX_ROWS", 4)
    monkeypatch.setattr(progress, "MAX_NAMES", 9)
    lab = Lab()
    lab.feed(kernels([(1, n + 1, f"k{n:02}") for n in range(20)], watermark=11))
    launches = lab.table()[("p", 0)]
    assert len(launches) == 4
    assert sum(launches.values()) == 20
    assert launches[progress.OTHER] == 17
    assert sum(lab.table("gpu_ns")[("p", 0)].values()) == sum(range(1, 21))


EVENTS = st.lists(st.tuples(st.floats(0, 60), st.integers(1, 10**6), st.sampled_from("abc")), max_size=5)
FEEDS = st.lists(
    st.tuples(EVENTS, st.floats(0, 60), st.sampled_from(["", "again", "restart", "lost", "tick"])), max_size=12
)


@settings(max_examples=150, deadline=None)
@given(FEEDS)
def test_replays_restarts_and_lost_acknowledgements_do_not_change_the_outcome(feeds):
    plain, rough = Lab(), Lab()
    total = 0
    sent = []
    for offset, (rows, watermark, event) in enumerate(feeds):
        batch = kernels(rows, watermark)
        sent.append(batch)
        total += len(rows)
        plain.feed(batch, 2 * offset)
        rough.feed(batch, 2 * offset, acknowledge=event != "lost")
        if event == "again":
            rough.feed(batch, 2 * offset)  # delivered again by Kafka
            rough.feed(sent[offset // 2], 2 * offset + 1)  # published again by its producer
        elif event in ("restart", "lost"):
            rough.restart()
        elif event == "tick":
            rough.tick(60, caught_up=False)
    for lab in (plain, rough):
        lab.silence()
        lab.silence()
        assert sum(lab.audit()) == total
        assert lab.stage.open_windows == 0
    assert plain.table() == rough.table()
    assert plain.table("p95_ns") == rough.table("p95_ns")


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=4), st.data())
def test_a_crash_between_any_two_writes_is_repaired_by_the_replay(feeds, data):
    whole = Lab()
    batches = [kernels(rows, 1 + 12 * n) for n, rows in enumerate(feeds)]
    for offset, batch in enumerate(batches):
        whole.feed(batch, offset)
    writes = []

    class Recorder(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            writes.append((key, value))

        def pop(self, key, *default):
            writes.append((key, None))
            return super().pop(key, *default)

    torn = Lab(KernelFrequency(), store=Recorder())
    for offset, batch in enumerate(batches):
        torn.feed(batch, offset)
    survived = {}
    for key, value in writes[: data.draw(st.integers(0, len(writes)))]:
        survived[key] = value
    again = Lab(store={key: value for key, value in survived.items() if value is not None})
    again.results = dict(torn.results)  # the broker keeps what it had
    for offset, batch in enumerate(batches):
        again.feed(batch, offset)
    whole.silence()
    again.silence()
    assert again.table() == whole.table()


@settings(max_examples=200, deadline=None)
@given(FEEDS, st.data())
def test_a_crash_between_any_two_writes_of_a_checkpoint_is_repaired_by_the_records_since_the_last_one(feeds, data):
    whole, changelog = Lab(), []
    store = PartitionStore({}, lambda key, value: changelog.append((key, value)), CheckpointOrder(CHECKPOINT_KINDS))
    torn, acknowledged, batches = Lab(store=store), [(0, 0)], []
    for offset, (rows, watermark, event) in enumerate(feeds):
        batches.append(kernels(rows, watermark))
        whole.feed(batches[-1], offset)
        torn.feed(batches[-1], offset, acknowledge=event != "lost")
        if event == "tick":
            torn.silence()  # windows leave before their end
        if event in ("again", "restart"):
            for change in store.take_checkpoint():
                asyncio.run(store.write([change]))
            acknowledged.append((offset + 1, len(changelog)))
    survived = data.draw(st.integers(0, len(changelog)), "changes that the broker has")
    kept = dict(changelog[:survived])
    again = Lab(store={key: value for key, value in kept.items() if value is not None})
    again.results, again.sent = dict(torn.results), list(torn.sent)  # the broker has them
    first = max(offset for offset, changes in acknowledged if changes <= survived)
    for offset, batch in enumerate(batches[first:], first):
        again.feed(batch, offset)
    for lab in (whole, again):
        lab.silence()
        lab.silence()
    assert again.table() == whole.table()
    assert again.table("p95_ns") == whole.table("p95_ns")
    assert again.audit() == whole.audit()


def test_a_pane_in_the_changelog_has_the_names_of_its_kernels():
    batches = [kernels([(1, 1, "a")], watermark=2), kernels([], watermark=11), kernels([(2, 1, "b")], watermark=11)]
    changelog, store = [], PartitionStore({}, None, CheckpointOrder(CHECKPOINT_KINDS))
    torn = Lab(store=store)
    torn.feed(batches[0], 0)
    changelog += store.take_checkpoint()
    first = len(changelog)
    for offset in (1, 2):
        torn.feed(batches[offset], offset)
    changelog += store.take_checkpoint()
    for survived in range(first, len(changelog) + 1):
        again = Lab(store=dict(changelog[:survived]))
        again.results = dict(torn.results)  # the broker has them
        for offset in (1, 2):
            again.feed(batches[offset], offset)
        again.silence()
        assert again.table()["p", 0] == {"a": 1, "b": 1}


def test_batches_under_the_sequences_of_a_process_erase_none_of_its_own():
    """Attack: another producer of the job publishes first, under the process id and the next 197 sequences."""
    lab, batches = Lab(), {}
    for name, first in (("own", 0), ("foreign", 3)):
        batches[name] = [kernels([(n / 25, 1, name)]) for n in range(first, 200)]
        for n, batch in enumerate(batches[name], first):
            batch.envelope["sequence"], batch.content = n, 1_000 * first + n + 1
    for batch in batches["foreign"]:
        lab.feed(batch)
    lab.restart()
    for batch in batches["own"] + batches["own"][150:]:  # restarted meanwhile, it repeats its last ones
        lab.feed(batch)
    lab.silence()
    assert lab.table()["p", 0] == {"foreign": 197, "own": 200}
    assert (lab.stage.conflicts, lab.stage.duplicates, lab.stage.repeated_rows) == (197, 50, 0)


def test_rows_that_come_for_a_gap_that_is_forgotten_are_counted_as_dropped(monkeypatch):
    monkeypatch.setattr(batch_dedup, "MAX_RUNS", 2)
    lab = Lab()
    for sequence in (0, 2, 4, 1):  # the gap at 1 is forgotten once 4 has come
        batch = kernels([(sequence / 25, 1, "k")] * 3)
        batch.envelope["sequence"], batch.content = sequence, sequence + 1
        lab.feed(batch)
    dropped = STREAM_DROPPED.labels("forgotten-gap", "repeated")
    count_drops("forgotten-gap", lab.stage, Drops())
    assert (lab.stage.repeated_rows, dropped._value.get()) == (3, 3)
