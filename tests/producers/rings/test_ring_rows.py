"""Rows from the records of a ring: of complete steps only, the same however often the ring is read."""

from itertools import pairwise

import numpy as np
import pytest
from support.fake_ring import MS, FakeRing
from support.ring_reader import BEGIN, IDENTITY, LATER, Reader

from drumline.producers.rings.identity_of_ring import ring_record
from drumline.producers.rings.ring_file import HeaderField, Kind, RingHeader
from drumline.schemas.batch import encode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic


@pytest.fixture
def ring(tmp_path):
    ring = FakeRing(tmp_path)
    ring.communicator()
    return ring


def test_steps_and_their_collectives_are_published_once_a_later_step_has_begun(ring):
    ring.train(3, BEGIN)
    reader = Reader(ring)
    state = reader.round()
    assert reader.rows(Topic.STEP, "step", "start_ns", "duration_ns", "collectives", "skipped") == [
        (number, BEGIN + number * 10 * MS, 10 * MS, 4, 0) for number in range(3)
    ]
    call = [BEGIN + step * 10 * MS + k * 2 * MS for step in range(3) for k in range(1, 5)]
    assert reader.rows(Topic.COLLECTIVE, "step", "ordinal", "start_ns", "duration_ns", "bytes") == [
        (i // 4, i % 4, time + MS // 2, MS // 2, 4_000) for i, time in enumerate(call)
    ]
    assert {batch.envelope["source"] for batch in reader.batches} == {"nccl"}
    assert {batch.envelope["communicator"] for batch in reader.batches if batch.topic == Topic.COLLECTIVE} == {
        f"{0xC0FFEE:016x}"
    }
    assert state.position == int(ring.header[HeaderField.WRITTEN])
    assert reader.batches[-1].envelope["complete_step"] == 2


@pytest.mark.parametrize("most", [7, 50])
def test_a_step_has_the_hosts_time_that_the_mark_behind_it_carries(ring, most):
    for number, name in enumerate((b"", b"2,0,0", b"64,c8,a,1", b"no sums", b"")):
        ring.mark(number, BEGIN + number * 10 * MS, name=name)
        call = BEGIN + number * 10 * MS + np.arange(1, 5) * MS
        ring.operations(call, call + 1_000, call + 2_000)
    reader = Reader(ring)
    for _ in range(30):
        reader.round(most=most)
    assert reader.rows(Topic.STEP, "step", "load_ns", "gc_ns", "checkpoint_ns", "sync_ns") == [
        (0, 20_000, 0, 0, -1),
        (1, MS, 2 * MS, 100_000, 10_000),
        (2, -1, -1, -1, -1),
        (3, -1, -1, -1, -1),
    ]


@pytest.mark.parametrize("most", [3, 50])
def test_rows_are_the_same_however_the_ring_is_read(tmp_path, most):
    results = []
    for part in (None, most):
        ring = FakeRing(tmp_path / str(part))
        ring.communicator()
        ring.communicator(hash_=0xBEEF)
        for step in range(12):
            ring.mark(step, BEGIN + step * 10 * MS)
            for k in range(3):
                call = BEGIN + step * 10 * MS + (2 + 2 * k) * MS
                ring.operations(call, call + MS, call + MS + step * 1_000, comm=k % 2)
        ring.mark(-1, BEGIN + 120 * MS)
        start = BEGIN + np.array([151, 152, 153]) * MS
        ring.operations(BEGIN + np.array([130, 140, 150]) * MS, start, start + MS)
        reader, end = Reader(ring), int(ring.header[HeaderField.WRITTEN])
        reader.round(most=part) if part is None else None
        for size in range(part or end, end + 200, part or end):  # a step that is not read whole stays
            reader.round(most=min(size, 60))
        reader.round(ended=True)
        results.append(
            (
                reader.rows(Topic.STEP, "step", "start_ns", "gpu_start_ns", "gpu_duration_ns", "comm_ns", "skipped"),
                sorted(reader.rows(Topic.COLLECTIVE, "step", "ordinal", "start_ns", "duration_ns")),
            )
        )
        for key in {(b.topic, b.envelope.get("communicator")) for b in reader.batches}:
            feed = [b for b in reader.batches if (b.topic, b.envelope.get("communicator")) == key]
            assert [b.envelope["sequence"] for b in feed] == list(range(len(feed)))
            assert [b.envelope["complete_step"] for b in feed] == sorted(b.envelope["complete_step"] for b in feed)
            for before, after in pairwise(feed):
                assert before.envelope["watermark_ns"] <= after.envelope["watermark_ns"]
                if after.rows:
                    assert int(after.columns["start_ns"].min()) >= before.envelope["watermark_ns"]
    assert results[0] == results[1]
    assert len(results[0][0]) == 12
    assert len(results[0][1]) == 12 * 3 + 3


def test_a_step_waits_for_its_operations(ring):
    ring.mark(0, BEGIN)
    ring.operations(BEGIN + MS, BEGIN + 2 * MS, BEGIN + 3 * MS)
    last = ring.running(BEGIN + 4 * MS)
    ring.mark(1, BEGIN + 5 * MS)
    reader = Reader(ring)
    assert reader.round().position == 1  # the mark of the step in progress need not stay
    assert not [batch for batch in reader.batches if batch.rows]
    ring.records["progress"][last] += 2 << 16 | 2
    ring.records["gpu_start_ns"][last] = BEGIN + 6 * MS - ring.offset_ns
    ring.records["gpu_stop_ns"][last] = BEGIN + 7 * MS - ring.offset_ns
    assert reader.round().position == int(ring.header[HeaderField.WRITTEN])
    assert reader.rows(Topic.STEP, "step", "collectives", "skipped") == [(0, 2, 0)]
    assert reader.rows(Topic.COLLECTIVE, "ordinal", "start_ns") == [(0, BEGIN + 2 * MS), (1, BEGIN + 6 * MS)]


def test_what_had_ended_when_the_process_was_killed_is_published(ring):
    ring.train(1, BEGIN)
    ring.operations(BEGIN + 11 * MS, BEGIN + 12 * MS, BEGIN + 13 * MS)
    ring.running(BEGIN + 14 * MS)
    ring.claim()  # a record that its thread never wrote
    ring.operations(BEGIN + 15 * MS, BEGIN + 16 * MS, BEGIN + 17 * MS)
    reader = Reader(ring)
    assert reader.round(ended=True).position == int(ring.header[HeaderField.WRITTEN])
    assert reader.rows(Topic.COLLECTIVE, "step", "ordinal") == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 2)]
    assert sum(batch.envelope["dropped_before"] for batch in reader.batches) == 1


def test_operations_of_one_kernel_are_one_row(ring):
    ring.mark(0, BEGIN)
    times = BEGIN + np.array([2, 2]) * MS
    ring.operations(BEGIN + MS, times, times + MS, function="Send", plan=7, peer=2)
    ring.operations(BEGIN + MS, times + MS // 2, times + 2 * MS, function="Send", plan=7, peer=1)
    ring.operations(BEGIN + 4 * MS, BEGIN + 5 * MS, BEGIN + 6 * MS, function="Send", plan=8, peer=1)
    ring.operations(BEGIN + 7 * MS, 0, 0, function="Send", plan=9, peer=0, stopped=0)  # to itself
    ring.mark(1, BEGIN + 10 * MS)
    reader = Reader(ring)
    reader.round()
    rows = [b for b in reader.batches if b.topic == Topic.COLLECTIVE and b.rows]
    assert [text for b in rows for text in b.strings("operation", "operations").tolist()] == ["Send", "Send"]
    assert reader.rows(Topic.COLLECTIVE, "bytes", "start_ns", "duration_ns") == [
        (16_000, BEGIN + 2 * MS, 2 * MS), (4_000, BEGIN + 5 * MS, MS),
    ]  # fmt: skip
    assert sum(b.envelope["dropped_before"] for b in reader.batches) == 0


def exchange(ring, peers, plan, begin_ns):
    """A kernel of a send to each peer and a receive from it, which ends when all is sent."""
    for peer in peers:
        for function in ("Send", "Recv"):
            ring.operations(begin_ns, begin_ns + MS, begin_ns + 2 * MS, function=function, plan=plan, peer=peer)


def test_a_kernel_that_sends_to_all_ranks_and_receives_from_them_is_an_all_to_all(ring):
    ring.mark(0, BEGIN)
    exchange(ring, (1, 3), 7, BEGIN + MS)
    exchange(ring, (0, 1, 2, 3), 8, BEGIN + 4 * MS)
    ring.mark(1, BEGIN + 10 * MS)
    reader = Reader(ring)
    reader.round()
    [batch] = [b for b in reader.batches if b.topic == Topic.COLLECTIVE and b.rows]
    assert batch.strings("operation", "operations").tolist() == ["SendRecv", "AllToAll"]
    assert reader.rows(Topic.COLLECTIVE, "ordinal", "start_ns", "bytes") == [
        (0, BEGIN + 2 * MS, 16_000), (1, BEGIN + 5 * MS, 32_000),
    ]  # fmt: skip


def test_an_operation_that_reports_early_closes_none_that_still_runs(ring):
    """An AllReduce waits for its peer; the one behind it, on channels that drifted, was reported at its call."""
    ring.mark(0, BEGIN)
    ring.operations(BEGIN + MS, BEGIN + 2 * MS, BEGIN + 3 * MS)
    waiting = ring.running(BEGIN + 4 * MS, channels=24)
    ring.records["progress"][waiting] |= np.uint64(16 << 24 | 16 << 8)  # of 24 channels, none began
    at = ring.operations(BEGIN + 5 * MS, 0, BEGIN + 5 * MS)
    drifted(ring, at)
    ring.mark(1, BEGIN + 10 * MS)
    reader = Reader(ring)
    reader.round(BEGIN + 60_000 * MS)
    assert not [batch for batch in reader.batches if batch.rows]
    ring.records["progress"][waiting] += np.uint64(8 << 16 | 8)
    ring.records["gpu_start_ns"][waiting] = BEGIN + 5 * MS - ring.offset_ns
    ring.records["gpu_stop_ns"][waiting] = BEGIN + 59_000 * MS - ring.offset_ns
    reader.round(BEGIN + 62_000 * MS)
    assert reader.rows(Topic.COLLECTIVE, "ordinal", "start_ns") == [(0, BEGIN + 2 * MS), (1, BEGIN + 5 * MS)]


def test_an_operation_whose_stop_nccl_lost_is_over_once_a_later_one_of_its_communicator_is(ring):
    ring.train(3, BEGIN)
    half = ring.running(BEGIN + 31 * MS, channels=2)
    ring.records["progress"][half] += np.uint64(2 << 16 | 1)  # of two channels one stopped
    reader = Reader(ring)
    reader.round(BEGIN + 60_000 * MS)
    assert [step for (step,) in reader.rows(Topic.STEP, "step")] == [0, 1, 2]
    ring.train(3, BEGIN + 61_000 * MS, first=3)
    reader.round(BEGIN + 63_000 * MS)
    assert [step for (step,) in reader.rows(Topic.STEP, "step")] == [0, 1, 2, 3, 4, 5]
    assert reader.state["counts"]["unknown_operations"] == 1
    assert sum(batch.envelope["dropped_before"] for batch in reader.batches) == 1


def test_an_operation_is_not_over_because_another_one_of_its_kernel_is(ring):
    ring.train(1, BEGIN)
    at = ring.running(BEGIN + 11 * MS, channels=1, plan=7)
    ring.records["progress"][at] += np.uint64(1 << 16)  # began; its peer never comes
    ring.operations(BEGIN + 11 * MS + 1_000, BEGIN + 12 * MS, BEGIN + 13 * MS, channels=1, plan=7)
    ring.mark(2, BEGIN + 20 * MS)
    reader = Reader(ring)
    reader.round(BEGIN + 60_000 * MS)
    assert [step for (step,) in reader.rows(Topic.STEP, "step")] == [0]
    ring.operations(BEGIN + 60_001 * MS, BEGIN + 60_002 * MS, BEGIN + 60_003 * MS, plan=8)
    ring.mark(3, BEGIN + 60_010 * MS)
    reader.round(BEGIN + 63_000 * MS)
    assert [step for (step,) in reader.rows(Topic.STEP, "step")] == [0, 1, 2]


def test_dropped_operations_are_counted_and_their_steps_not_compared(tmp_path):
    ring = FakeRing(tmp_path, capacity=64)
    ring.communicator()
    ring.train(10, BEGIN)
    reader = Reader(ring)
    reader.round()
    ring.train(20, BEGIN + 100 * MS, first=10)  # 64 of 100 records fit
    reader.round(tight=True)
    lost = int(ring.header[HeaderField.DROPPED])
    assert lost == 36
    ring.train(10, BEGIN + 300 * MS, first=30)
    reader.round()
    assert sum(batch.envelope["dropped_before"] for batch in reader.batches) == lost
    steps = dict(reader.rows(Topic.STEP, "step", "skipped"))
    assert [step for step, skip in steps.items() if not skip] == [*range(10), *range(32, 40)]
    collectives = reader.rows(Topic.COLLECTIVE, "step", "ordinal")
    assert all(ordinal < 4 for step, ordinal in collectives if step >= 0)
    outside = [ordinal for step, ordinal in collectives if step < 0]
    assert outside == list(range(len(outside)))


@pytest.mark.parametrize("most", [None, 1, 3])
def test_steps_in_which_the_job_paused_the_recording_are_skipped_and_nothing_is_lost(ring, most):
    ring.train(3, BEGIN)
    ring.record(False, BEGIN + 31 * MS)  # in step 3
    for step in (4, 5):
        ring.mark(step, BEGIN + step * 10 * MS)
    ring.record(True, BEGIN + 55 * MS)
    ring.train(3, BEGIN + 60 * MS, first=6)
    reader = Reader(ring)
    for most_now in range(most, 40, most) if most else [None]:
        reader.round(most=most_now)
    steps = dict(reader.rows(Topic.STEP, "step", "skipped"))
    assert steps == {step: step in (3, 4, 5) for step in range(9)}
    assert len(reader.rows(Topic.COLLECTIVE, "step")) == 6 * 4
    assert sum(batch.envelope["dropped_before"] for batch in reader.batches) == 0


@pytest.mark.parametrize("most", [None, 1, 3])
def test_steps_that_nccl_did_not_measure_are_left_out_and_nothing_is_lost(ring, most):
    ring.train(12, BEGIN, untimed=range(3, 8))
    reader = Reader(ring)
    for most_now in range(most, 80, most) if most else [None]:
        reader.round(most=most_now)
    steps = dict(reader.rows(Topic.STEP, "step", "skipped"))
    assert steps == {0: 0, 1: 0, 2: 0, 8: 1, 9: 0, 10: 0, 11: 0}  # when the GPU came to step 8 is not known
    assert [step for (step,) in reader.rows(Topic.COLLECTIVE, "step")] == [step for step in steps for _ in range(4)]
    assert sum(batch.envelope["dropped_before"] for batch in reader.batches) == 0
    assert reader.state["counts"].get("unknown_operations", 0) == 0
    assert reader.batches[-1].envelope["complete_step"] == 11


def test_a_step_that_nccl_does_not_measure_waits_for_no_operation(ring):
    ring.train(5, BEGIN, untimed=range(3, 8))
    assert Reader(ring).round().position == int(ring.header[HeaderField.WRITTEN])


def test_numbers_of_steps_that_start_again_are_counted_on(ring):
    ring.train(3, BEGIN)
    reader = Reader(ring)
    reader.round()
    ring.train(3, BEGIN + 100 * MS)
    reader.round()
    assert [step for (step,) in reader.rows(Topic.STEP, "step")] == [0, 1, 2, 3, 4, 5, 6]


def test_a_long_step_is_published_in_parts_when_the_ring_is_filling_up(tmp_path):
    ring = FakeRing(tmp_path, capacity=64)
    ring.communicator()
    ring.mark(0, BEGIN)
    reader = Reader(ring)
    for part in range(4):
        call = BEGIN + (part * 40 + np.arange(40)) * MS
        ring.operations(call, call + MS // 2, call + MS)
        reader.round(tight=True)
    ring.mark(1, BEGIN + 200 * MS)
    reader.round()
    assert reader.rows(Topic.COLLECTIVE, "step", "ordinal") == [(0, i) for i in range(160)]
    assert reader.rows(Topic.STEP, "step", "start_ns", "duration_ns", "skipped") == [(0, BEGIN, 200 * MS, 1)]


def test_garbage_costs_a_bounded_time_and_fails_on_nothing(tmp_path):
    ring = FakeRing(tmp_path, capacity=4_096)
    ring.communicator()
    random = np.random.default_rng(1)
    reader = Reader(ring)
    for _ in range(20):
        at = ring.claim(1_000)
        ring.records.view(np.uint8)[:] = random.integers(0, 256, ring.records.nbytes, np.uint8)
        ring.comms.view(np.uint8)[:] = random.integers(0, 256, ring.comms.nbytes, np.uint8)
        ring.records["number"][at % ring.capacity] = at + 1
        ring.records["kind"] = random.integers(0, 6, len(ring.records))
        ring.records["comm"] %= 1_024
        ring.records["generation"] = ring.comms["generation"][ring.records["comm"]]
        reader.round(LATER, tight=True)
    reader.round(ended=True)
    assert reader.state["position"] == 20_000


def test_a_collective_takes_at_most_96_bytes_of_the_spool_its_step_included(tmp_path):
    ring, random = FakeRing(tmp_path, capacity=1 << 13), np.random.default_rng(18)
    ring.communicator()
    calls = BEGIN + np.sort(random.integers(0, 10**9, 2_000))
    starts = np.maximum.accumulate(calls + random.integers(1_000, 100_000, 2_000))
    took = np.minimum(random.integers(1_000, 100_000, 2_000), np.diff(starts, append=starts[-1] + 100_000))
    parts = zip(*(np.split(values, 100) for values in (calls, starts, starts + took)), strict=True)
    for step, (part, start, stop) in enumerate(parts):  # 20 operations each
        ring.mark(step, int(part[0]))
        ring.operations(part, start, stop)
    ring.mark(100, BEGIN + 10**9)
    reader = Reader(ring)
    reader.round()
    assert len(reader.rows(Topic.COLLECTIVE, "step")) == 2_000
    assert sum(len(encode(model(batch.topic), batch)) for batch in reader.batches) <= 96 * 2_000


def drifted(ring, at, channels=2):
    """NCCL reported an older operation's times for all channels of these operations."""
    ring.records["progress"][at] = (at.astype(np.uint64) + 1) << 32 | np.uint64(channels << 24 | channels << 8)
    ring.records["gpu_start_ns"][at], ring.records["gpu_stop_ns"][at] = np.uint64(2**64 - 1), 0


def test_an_operation_with_an_older_ones_times_has_no_row_and_its_step_a_budget_where_it_can_only_be_short(ring):
    """Steps 0 and 2: it ran in the 20 us between its neighbours. In step 1 it may have run for 2 ms."""
    for step, gap_ns in enumerate((20_000, 2 * MS, 20_000)):
        begin = BEGIN + step * 10 * MS
        ring.mark(step, begin)
        ring.operations(begin + MS, begin + 2 * MS, begin + 3 * MS)
        drifted(ring, ring.operations(begin + MS, 0, 0))
        ring.operations(begin + MS, begin + 3 * MS + gap_ns, begin + 8 * MS)
    ring.mark(3, BEGIN + 30 * MS)
    reader = Reader(ring)
    state = reader.round()
    assert reader.rows(Topic.COLLECTIVE, "step", "ordinal") == [(step, at) for step in range(3) for at in (0, 2)]
    assert reader.rows(Topic.STEP, "step", "skipped", "collectives") == [(0, 0, 2), (1, 1, 2), (2, 0, 2)]
    assert (state.counts["untrusted_times"], state.counts["unknown_operations"]) == (3, 0)
    assert sum(batch.envelope["dropped_before"] for batch in reader.batches) == 0


def test_times_that_cannot_be_an_operations_own_are_not_published_but_counted(ring):
    ring.mark(0, BEGIN)
    ring.operations(BEGIN + MS, BEGIN + 2 * MS, BEGIN + 3 * MS)
    ring.operations(BEGIN + 4 * MS, BEGIN + 3 * MS, BEGIN + 5 * MS)  # begins before its call
    ring.operations(BEGIN + 4 * MS, BEGIN + 6 * MS, BEGIN + 8 * MS)
    ring.operations(BEGIN + 4 * MS, BEGIN + 7 * MS, BEGIN + 9 * MS)  # begins while the one before it runs
    ring.operations(BEGIN + 4 * MS, BEGIN + 9 * MS, BEGIN + 9 * MS + MS // 2)
    ring.mark(1, BEGIN + 10 * MS)
    reader = Reader(ring)
    state = reader.round()
    assert reader.rows(Topic.COLLECTIVE, "ordinal", "start_ns") == [(0, BEGIN + 2 * MS), (4, BEGIN + 9 * MS)]
    assert state.counts["untrusted_times"] == 3


@pytest.mark.parametrize(("untrusted", "is_problem"), [(5, False), (6, True)])
def test_a_process_states_as_a_problem_that_more_than_5_percent_of_its_operations_have_no_times(
    tmp_path, untrusted, is_problem
):
    ring = FakeRing(tmp_path)
    ring.communicator()
    at = ring.operations(BEGIN + np.arange(100) * MS, BEGIN + np.arange(100) * MS, BEGIN + np.arange(100) * MS + 1_000)
    drifted(ring, at[:untrusted])
    reader = Reader(ring)
    state = reader.round(ended=True)
    header = RingHeader(tuple(ring.header.tolist()), {})
    collector = ring_record(IDENTITY, header, state)["collector"]
    assert collector["untrusted_times"] == str(untrusted)
    assert ("problem: times" in collector) is is_problem


def test_a_clock_of_the_host_that_was_set_forward_leaves_all_operations_their_times(ring):
    ring.train(3, BEGIN)
    reader = Reader(ring)
    reader.round(BEGIN + 40 * MS, clock_base_ns=MS)
    ring.offset_ns += 500 * MS  # of the GPU's clock
    ring.train(3, BEGIN + 600 * MS, first=3)
    state = reader.round(BEGIN + 700 * MS, clock_base_ns=501 * MS)
    assert len(reader.rows(Topic.COLLECTIVE, "step")) == 24
    assert state.counts["untrusted_times"] == 0
    starts = [start for step, start in reader.rows(Topic.COLLECTIVE, "step", "start_ns") if step == 3]
    assert starts == [BEGIN + 600 * MS + k * 2 * MS + MS // 2 for k in range(1, 5)]


def launch(ring, number, first, last):
    ring.mark(7, BEGIN + number * 10 * MS + MS, count=first << 32 | last, kind=Kind.GRAPH_REPLAY)


def replay(ring, number, captured, begin_ns, comm=0):
    """The operations of a launch, as the GPU comes to them: later than the host."""
    for order, capture in enumerate(captured):
        start = begin_ns + order * MS
        ring.operations(start, start, start + MS // 2, comm=comm, captured=capture)


@pytest.mark.parametrize("most", [9, 500])
@pytest.mark.parametrize("late", [0, 3])
def test_operations_in_graphs_have_the_step_in_which_their_graph_was_launched(tmp_path, late, most):
    """Two graphs of 2 and 3 operations, launched in each step, and a collective outside of them."""
    ring, steps = FakeRing(tmp_path, capacity=4_096), 12
    ring.communicator()
    for step in range(steps + late):
        begin = BEGIN + step * 10 * MS
        if step < steps:
            ring.mark(step, begin)
            launch(ring, step, 0, 2)
            launch(ring, step, 4, 7)
        if step >= late:
            replay(ring, step - late, (2, 1), begin + 2 * MS)
        if step < steps:
            ring.operations(begin + 4 * MS, begin + 4 * MS, begin + 5 * MS, count=7)
        if step >= late:
            replay(ring, step - late, (5, 6, 7), begin + 6 * MS)
    ring.mark(steps, BEGIN + (steps + late) * 10 * MS)
    reader, size = Reader(ring), most
    while size < 500 + most:
        before = reader.state["position"]
        size = most if reader.round(most=size).position > before else size + most  # a step that is not read whole stays
    reader.round(ended=True)
    rows = sorted(reader.rows(Topic.COLLECTIVE, "step", "ordinal", "start_ns"))
    assert [row[:2] for row in rows] == [(step, ordinal) for step in range(steps) for ordinal in range(6)]
    for step, ordinal, start in rows:
        ran = step + (late if ordinal < 5 else 0)
        offset = (2, 3, 6, 7, 8, 4)[ordinal]
        assert start == BEGIN + ran * 10 * MS + offset * MS
    assert reader.rows(Topic.STEP, "collectives", "skipped") == [(6, 0)] * steps
    assert reader.state["replays"] == []


def test_a_step_waits_for_its_graph(ring):
    ring.mark(0, BEGIN)
    launch(ring, 0, 0, 2)
    ring.mark(1, BEGIN + 10 * MS)
    launch(ring, 1, 0, 2)
    ring.mark(2, BEGIN + 20 * MS)
    reader = Reader(ring)
    reader.round()
    replay(ring, 0, (1,), BEGIN + 21 * MS)
    reader.round()
    assert not [batch for batch in reader.batches if batch.rows]
    replay(ring, 0, (2,), BEGIN + 22 * MS)
    reader.round()
    assert reader.rows(Topic.STEP, "step", "collectives") == [(0, 2)]
    replay(ring, 1, (1, 2), BEGIN + 24 * MS)
    reader.round()
    assert reader.rows(Topic.STEP, "step", "collectives") == [(0, 2), (1, 2)]
    assert reader.rows(Topic.COLLECTIVE, "step", "ordinal") == [(0, 0), (0, 1), (1, 0), (1, 1)]


def unmarked(ring, kinds, begin_ns):
    """A call for each kind: ends with a collective when it is even."""
    for number, kind in enumerate(kinds):
        call = begin_ns + number * MS
        function = "AllReduce" if kind % 2 == 0 else "Broadcast"
        ring.operations(call, call + MS // 4, call + MS // 2, function=function, count=1_000 + kind)


def test_steps_of_a_job_that_marks_none_are_inferred(tmp_path):
    """Seven calls before the first step, 100 steps of three calls, an evaluation of 12 calls, 60 steps."""
    kinds = [1, 3, 5, 7, 9, 11, 13, *[0, 2, 4] * 100, *[20, 22] * 6, *[0, 2, 4] * 60, 0]
    results = []
    for parts in ((len(kinds),), (200, 1, 1, 1, 2, 3, 80, 20, 50, 10, 200)):
        ring = FakeRing(tmp_path / str(len(parts)), capacity=1_024)
        ring.communicator()
        reader, at = Reader(ring), 0
        for part in parts:
            unmarked(ring, kinds[at : at + part], BEGIN + at * MS)
            at += part
            reader.round()
            reader.round()
        reader.round(ended=True)
        steps = reader.rows(Topic.STEP, "step", "start_ns", "duration_ns", "collectives", "skipped")
        results.append((steps, sorted(reader.rows(Topic.COLLECTIVE, "start_ns", "step", "ordinal"))))
        assert {b.envelope["steps_from"] for b in reader.batches if b.topic == Topic.STEP} == {"inferred"}
        collectives = results[-1][1]
        assert len(collectives) == len(kinds)
        in_step = [(step, ordinal) for _, step, ordinal in collectives if step >= 0]
        numbers = [*range(2, 102), *range(106, 166)]
        assert in_step == [(number, ordinal) for number in numbers for ordinal in range(3)]
        assert [step for step, *_ in steps] == numbers
    assert [row[:2] for row in results[0][0]] == [row[:2] for row in results[1][0]]
    assert results[0][1] == results[1][1]


def test_calls_wait_for_the_first_mark_and_a_period_of_steps(ring):
    now_ns = BEGIN + 1_000 * MS
    unmarked(ring, [0, 2, 4, 6], BEGIN)
    reader = Reader(ring)
    assert reader.round(now_ns).position == 0  # the first step may be marked soon
    ring.train(2, BEGIN + 10 * MS)
    reader.round(now_ns)
    assert reader.rows(Topic.COLLECTIVE, "step")[:5] == [(-1,)] * 4 + [(0,)]
    assert reader.rows(Topic.STEP, "step") == [(0,), (1,)]
