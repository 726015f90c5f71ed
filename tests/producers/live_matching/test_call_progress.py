"""Progress from CUPTI's records: pure, and of some ranks together, up to the rank that is named."""

import numpy as np
import pytest
from support.tables import apply_batch

from drumline.producers.activity.table import Table
from drumline.producers.batching.live import BatchWriter, FeedProgress
from drumline.producers.identity import Identity
from drumline.producers.live_matching.call_progress import STILL_NS, CallProgress
from drumline.schemas.bounds.check import check
from drumline.schemas.topics import Topic
from drumline.streams.hangs.config import HangConfig
from drumline.streams.hangs.stage import HangStage

BEGIN, SECOND, MS = 10**18, 10**9, 10**6
COMM, OTHER = 0xC0FFEE, 0xBEEF
NAMES = ("", "ncclAllReduce", "ncclAllGather", "ncclSend", "step 1")
KERNELS = ("", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "gemm")
NOTHING = Table({})


class Rank:
    """A rank whose records a test makes up; `held_since`: CUPTI holds a buffer since then, 0 = none."""

    def __init__(self, number=0, is_whole=True):
        self.progress, self.batches, self.ids = CallProgress(), [], 0
        self.progress.recording(True, BEGIN, is_whole)
        identity = Identity("job", "run", number, number, 2, "host", "GPU-0", f"process-{number}", source="cupti")
        self.writer = BatchWriter(identity, lambda topic, key, batch: self.batches.append(batch))
        self.held_since, self.read_ns = 0, BEGIN + 3_600 * SECOND  # when buffers are read

    def call(self, *times, name="ncclAllReduce", comm=COMM, size=1_000, payload=True):
        ids = np.arange(self.ids, self.ids + len(times), dtype=np.uint32)
        self.ids += len(times)
        columns = {
            "id": ids, "time_ns": np.array(times, np.int64), "flags": np.full(len(times), 2, np.int32),
            "name": np.full(len(times), NAMES.index(name), np.uint32), "domain": np.ones(len(times), np.uint32),
        }  # fmt: skip
        sizes = {"communicator": np.full(len(times), comm, np.uint64), "bytes": np.full(len(times), size, np.uint64)}
        payloads = Table({"id": ids, **sizes}).take(slice(None if payload else 0))
        markers = Table(columns, {"names": NAMES, "domains": ("", "NCCL")})
        self.progress.add(NOTHING, NOTHING, markers, payloads, self.read_ns)

    def kernel(self, *times, name=1, lasts=MS):
        columns = {
            "name": np.full(len(times), name, np.uint32), "start_ns": np.array(times, np.int64),
            "duration_ns": np.full(len(times), lasts, np.uint64), "graph": np.zeros(len(times), np.uint32),
        }  # fmt: skip
        self.progress.add(Table(columns, {"names": KERNELS}), NOTHING, NOTHING, NOTHING, self.read_ns)

    def steps(self, count):
        """One AllReduce a second, each of which ends."""
        for step in range(1, count + 1):
            self.call(BEGIN + step * SECOND)
            self.kernel(BEGIN + step * SECOND + MS)
        return self

    def publish(self, now_ns, state="running"):
        table = self.progress.table(now_ns, (self.held_since or now_ns) - 100 * MS, -1, state)
        self.writer.write(Topic.PROGRESS, table, FeedProgress(now_ns, 0))
        batch = self.batches[-1]
        check(batch, now_ns // MS)
        return batch

    def rows(self, now_ns, state="running"):
        batch = self.publish(now_ns, state)
        texts = {"communicator": "communicators", "operation": "operations", "last_operation": "last_operations"}
        columns = {name: batch.columns[name].tolist() for name in batch.columns}
        columns |= {name: batch.strings(name, of).tolist() for name, of in texts.items()}
        return {row["communicator"]: row for row in ({k: v[i] for k, v in columns.items()} for i in range(batch.rows))}


def shown(row):
    return [row[name] for name in ("called", "begun", "ended", "exact", "operation", "bytes")]


NAME = f"{COMM:016x}"


def test_what_cupti_gave_back_has_ended_and_whether_it_began_is_not_known():
    rows = Rank().steps(5).rows(BEGIN + 6 * SECOND)
    assert shown(rows[NAME]) == [5, -1, 5, 1, "AllReduce", 1_000]
    assert (rows[NAME]["comm_rank"], rows[NAME]["ranks"], rows[NAME]["last_operation"]) == (-1, 0, "AllReduce")
    assert rows[NAME]["quiet_ns"] == SECOND - 2 * MS
    assert [rows[""][name] for name in ("called", "ended")] == [1, 1], "its GPU worked a second ago"


def test_a_call_whose_kernel_has_not_come_is_open_while_cupti_holds_its_buffer():
    rank = Rank().steps(5)
    rank.call(BEGIN + 6 * SECOND, name="ncclAllGather", size=64)
    rank.held_since = BEGIN + 6 * SECOND + MS
    rows = rank.rows(BEGIN + 20 * SECOND)
    assert shown(rows[NAME]) == [6, -1, 5, 1, "AllGather", 64]
    assert rows[NAME]["last_operation"] == "AllReduce"
    assert rows[NAME]["start_ns"] == BEGIN + 6 * SECOND
    assert [rows[""][name] for name in ("called", "ended")] == [1, 0]
    rank.kernel(BEGIN + 21 * SECOND)
    rank.held_since = 0
    assert shown(rank.rows(BEGIN + 22 * SECOND)[NAME]) == [6, -1, 6, 1, "AllGather", 64]


def test_what_lies_in_a_held_buffer_is_not_known_and_so_no_count_is_exact():
    rank = Rank().steps(5)
    rank.held_since = BEGIN + 6 * SECOND
    assert shown(rank.rows(BEGIN + 6 * SECOND + STILL_NS // 2)[NAME])[3] == 1, "buffers are out all the time"
    rows = rank.rows(BEGIN + 20 * SECOND)
    assert shown(rows[NAME]) == [5, -1, 5, 0, "AllReduce", 1_000]
    assert [rows[""][name] for name in ("called", "ended")] == [1, 0]


def test_a_gpu_has_nothing_to_do_only_after_a_while_without_any_kernel():
    rank = Rank().steps(5)
    assert rank.rows(BEGIN + 20 * SECOND)[""]["called"] == 0
    rank.kernel(BEGIN + 18 * SECOND, name=2)
    assert [rank.rows(BEGIN + 20 * SECOND)[""][name] for name in ("called", "ended")] == [1, 1]
    assert rank.rows(BEGIN + 20 * SECOND)[NAME]["quiet_ns"] > 14 * SECOND, "a rank that evaluates alone is quiet"


@pytest.mark.parametrize("way", ["off", "late", "lost", "no_payload"])
def test_counts_are_not_exact_when_calls_were_not_recorded(way):
    rank = Rank(is_whole=way != "late").steps(3)
    if way == "off":
        rank.progress.recording(False, BEGIN + 4 * SECOND, True)
        rank.progress.recording(True, BEGIN + 9 * SECOND, True)
    elif way == "lost":
        rank.progress.lost()
    elif way == "no_payload":
        rank.call(BEGIN + 4 * SECOND, payload=False)
    row = rank.rows(BEGIN + 10 * SECOND)[NAME]
    assert (row["called"], row["exact"]) == (3, 0)
    assert way != "off" or row["quiet_ns"] == SECOND, "what was not recorded is no standstill"


@pytest.mark.parametrize("kernel", [{"lasts": 1 << 61}, {"begin": BEGIN * 9}, {"begin": BEGIN * 9, "lasts": 1 << 61}])
def test_a_kernel_with_an_impossible_time_is_neither_movement_nor_work(kernel):
    rank = Rank().steps(5)
    rank.call(BEGIN + 6 * SECOND)
    rank.read_ns, rank.held_since = BEGIN + 7 * SECOND, BEGIN + 6 * SECOND + MS
    rank.kernel(kernel.get("begin", BEGIN + 6 * SECOND + MS), lasts=kernel.get("lasts", MS))
    row = rank.rows(BEGIN + 20 * SECOND)[NAME]
    assert shown(row) == [6, -1, 5, 1, "AllReduce", 1_000]
    assert row["quiet_ns"] == 14 * SECOND


def test_a_call_with_an_impossible_time_counts_and_is_made_when_it_is_read():
    rank = Rank().steps(5)
    rank.read_ns = BEGIN + 7 * SECOND
    rank.call(BEGIN * 9)
    row = rank.rows(BEGIN + 20 * SECOND)[NAME]
    assert (*shown(row)[:3], row["quiet_ns"]) == (6, -1, 6, 13 * SECOND)


def test_a_clock_that_is_set_back_hides_a_standstill_for_no_longer():
    rank = Rank().steps(50)
    assert rank.rows(BEGIN + 10 * SECOND)[NAME]["quiet_ns"] == 0
    assert rank.rows(BEGIN + 30 * SECOND)[NAME]["quiet_ns"] == 20 * SECOND


def test_sends_and_receives_are_no_collectives_but_movement():
    rank = Rank().steps(2)
    rank.call(BEGIN + 9 * SECOND, name="ncclSend")
    row = rank.rows(BEGIN + 10 * SECOND)[NAME]
    assert (row["called"], row["quiet_ns"]) == (2, SECOND)


def test_calls_without_payloads_have_no_communicator():
    rank = Rank()
    rank.call(BEGIN + SECOND, payload=False)
    assert rank.progress.is_known
    assert rank.rows(BEGIN + 2 * SECOND).keys() == {""}


def test_ranges_of_others_are_no_calls():
    rank = Rank()
    rank.call(BEGIN + SECOND, name="step 1")
    assert not rank.progress.is_known


class Ranks:
    """Ranks whose progress a hang stage evaluates, once a second."""

    def __init__(self, *ranks):
        self.ranks, self.stage, self.results, self.offset = ranks, HangStage({}, HangConfig()), [], 0

    def watch(self, seconds, state=lambda number: "running"):
        for second in seconds:
            now = BEGIN + second * SECOND
            for number, rank in enumerate(self.ranks):
                if rank.progress.is_on:
                    self.take(apply_batch(self.stage, rank.publish(now, state(number)), self.offset, now))
                    self.offset += 1
            self.take(self.stage.on_tick(now, True))
        return self

    def take(self, batches):
        for batch in batches:
            self.stage.mark_sent(batch)
            columns = zip(
                batch.columns["rank"].tolist(), batch.strings("reason", "reasons").tolist(),
                batch.strings("operation", "operations").tolist(), batch.columns["number"].tolist(), strict=True,
            )  # fmt: skip
            self.results.append((batch.envelope["state"], {rank: rest for rank, *rest in columns}))
            self.notes = batch.strings("note", "notes").tolist()


@pytest.mark.parametrize("is_visible", [True, False])
@pytest.mark.parametrize("older_s", [0, 3])
def test_the_rank_that_has_not_called_what_the_others_wait_in_is_named_and_no_rank_that_waits(is_visible, older_s):
    """CUPTI gave the call back before its kernel was launched, or holds it too, and some that have ended."""
    ranks = [Rank(number).steps(5 if number == 1 else 5 - older_s) for number in range(3)]
    for rank in (ranks[0], ranks[2]):
        rank.held_since = BEGIN + (6 - older_s) * SECOND
    if is_visible:
        ranks[0].call(BEGIN + 6 * SECOND)
    job = Ranks(*ranks).watch(range(6, 18))
    [(state, named)] = job.results
    reason = ["not_called", "AllReduce" if is_visible else "", 0]
    assert (state, named) == ("standing", {-1: reason, 1: reason})
    note = "not called AllReduce" if is_visible else "given its GPU nothing to do; the GPUs of 2 ranks do not end"
    assert f"Rank 1 has {note}" in job.notes[0]


def test_of_one_busy_gpu_and_more_that_are_idle_either_may_wait_so_none_is_named_and_it_pages_all_the_same():
    """They wait on their hosts for a kernel of minutes, or it waits for them in an operation that is not known."""
    ranks = [Rank(number).steps(5) for number in range(3)]
    ranks[1].held_since = BEGIN + 6 * SECOND
    job = Ranks(*ranks).watch(range(6, 140))
    assert job.results == [(state, {-1: ["insufficient_data", "", 0]}) for state in ("standing", "hung")]
    running = "The GPU of 1 rank does not end what it runs, and more have nothing to do"
    assert job.notes == [f"{running}: either may wait for the others."]


@pytest.mark.parametrize(("state", "reason"), [("stopped", "stopped"), ("killed", "gone")])
def test_of_many_idle_gpus_the_one_whose_process_does_not_run_is_named(state, reason):
    ranks = [Rank(number).steps(5) for number in range(4)]
    ranks[1].held_since = BEGIN + 6 * SECOND
    job = Ranks(*ranks).watch(range(6, 18), lambda number: state if number == 3 else "running")
    assert {rank: named for rank, (named, *_) in job.results[-1][1].items()} == {-1: reason, 3: reason}


def test_an_operation_that_all_know_has_its_number():
    ranks = [Rank(number).steps(5) for number in range(2)]
    ranks[0].held_since = BEGIN + 6 * SECOND + MS
    ranks[0].call(BEGIN + 6 * SECOND)
    job = Ranks(*ranks).watch(range(6, 18))
    assert job.results == [("standing", {-1: ["not_called", "AllReduce", 6], 1: ["not_called", "AllReduce", 6]})]


def test_another_operation_under_the_same_number_is_a_mismatch():
    ranks = [Rank(number).steps(5) for number in range(2)]
    for rank, name in zip(ranks, ("ncclAllReduce", "ncclAllGather"), strict=True):
        rank.held_since = BEGIN + 6 * SECOND + MS
        rank.call(BEGIN + 6 * SECOND, name=name)
    [(_, named)] = Ranks(*ranks).watch(range(6, 18)).results
    assert {rank: reason for rank, (reason, *_) in named.items()} == {-1: "mismatch", 0: "mismatch", 1: "mismatch"}


def test_an_operation_that_all_called_and_none_ends_is_neither_link_nor_peer():
    ranks = [Rank(number).steps(5) for number in range(2)]
    for rank in ranks:
        rank.held_since = BEGIN + 6 * SECOND + MS
        rank.call(BEGIN + 6 * SECOND)
    job = Ranks(*ranks).watch(range(6, 18))
    assert job.results == [("standing", {-1: ["insufficient_data", "AllReduce", 6]})]
    assert "CUPTI shows neither" in job.notes[0]


@pytest.mark.parametrize("is_visible", [True, False])
def test_two_communicators_called_in_another_order_are_a_deadlock_where_both_calls_are_known(is_visible):
    ranks = [Rank(number).steps(5) for number in range(2)]
    for rank, comm in zip(ranks, (COMM, OTHER), strict=True):
        rank.call(BEGIN + 5 * SECOND + 100 * MS, comm=OTHER)
        rank.kernel(BEGIN + 5 * SECOND + 101 * MS)
        rank.held_since = BEGIN + 6 * SECOND + MS
        if is_visible or comm == COMM:
            rank.call(BEGIN + 6 * SECOND, comm=comm)
    [(_, named)] = Ranks(*ranks).watch(range(6, 18)).results
    expected = dict.fromkeys((-1, 0, 1), "deadlock") if is_visible else {-1: "insufficient_data"}
    assert {rank: reason for rank, (reason, *_) in named.items()} == expected


@pytest.mark.parametrize("state", ["stopped", "killed"])
def test_a_rank_that_is_stopped_or_gone_is_named_so(state):
    ranks = [Rank(number).steps(5) for number in range(2)]
    for rank in ranks:
        rank.held_since = BEGIN + 6 * SECOND + MS
    ranks[0].call(BEGIN + 6 * SECOND)
    job = Ranks(*ranks).watch(range(6, 18), lambda number: state if number else "running")
    assert job.results[-1][1][1][0] == {"stopped": "stopped", "killed": "gone"}[state]


def test_a_job_all_of_whose_buffers_are_held_does_not_stand():
    """GPUs that are busy without a pause may keep buffers for long; nothing is known then."""
    ranks = [Rank(number).steps(5) for number in range(2)]
    for rank in ranks:
        rank.held_since = BEGIN + 6 * SECOND
    assert Ranks(*ranks).watch(range(6, 200)).results == []


def test_a_job_whose_gpus_work_without_nccl_or_by_cuda_graphs_does_not_stand():
    ranks = [Rank(number).steps(5) for number in range(2)]
    job = Ranks(*ranks)
    for second in range(6, 300):
        for rank, name in zip(ranks, (1, 2), strict=True):  # NCCL's kernels of a graph have no call
            rank.kernel(BEGIN + second * SECOND, name=name if second < 150 else 2)
        job.watch([second + 1])
    assert job.results == []
    for second in range(301, 440):
        job.watch([second])
    assert [state for state, _ in job.results] == ["standing"], "nothing runs any more"


def test_a_healthy_job_and_one_whose_window_has_closed_do_not_stand():
    ranks = [Rank(number) for number in range(2)]
    job = Ranks(*ranks)
    for second in range(1, 40):
        for rank in ranks:
            rank.call(BEGIN + second * SECOND)
            rank.kernel(BEGIN + second * SECOND + MS)
            rank.held_since = BEGIN + max(1, second - 3) * SECOND
        job.watch([second])
    ranks[0].progress.recording(False, BEGIN + 40 * SECOND, True)  # not all at the same moment
    job.watch([40])
    ranks[1].progress.recording(False, BEGIN + 41 * SECOND, True)
    job.watch(range(41, 300))
    for rank in ranks:
        rank.progress.recording(True, BEGIN + 300 * SECOND, True)
        rank.held_since = 0
    assert job.watch(range(300, 309)).results == []


def test_a_window_that_closes_over_a_standing_job_ends_what_is_known():
    ranks = [Rank(number).steps(5) for number in range(2)]
    ranks[0].held_since = BEGIN + 6 * SECOND
    job = Ranks(*ranks).watch(range(6, 20))
    for rank in ranks:
        rank.progress.recording(False, BEGIN + 20 * SECOND, True)
    job.watch(range(20, 200))
    assert [state for state, _ in job.results] == ["standing", "over"]
