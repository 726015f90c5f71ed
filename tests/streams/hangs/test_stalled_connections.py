"""A link that is cut stalls a ring of several hosts: the pair whose data is not acknowledged is stated, and no rank."""

import pytest
from support.standing_job import SECOND, Job
from support.tables import apply_batch
from support.tcp_world import row

from drumline.producers.network.connection_sampler import ConnectionBatches
from drumline.streams.hangs import stalled_connections

RANKS = 6  # on three hosts
RING = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)]
#: Bytes that wait for a link that is cut, and of control messages.
DATA, CONTROL = 4_000_000, 120


class Ring(Job):
    """A job whose ranks send to the next one over TCP; `cut`: pairs whose links deliver nothing, with what waits."""

    def __init__(self, run="r1"):
        super().__init__({"c0": list(range(RANKS))}, run)
        self.cut, self.read, self.batches_of = {}, 0, ConnectionBatches("agent", "host")
        self.ahead_ns = {}  # rank -> how much the clock of its host is ahead

    def cut_links(self, cut):
        self.cut = cut
        for rank in self.ranks.values():
            rank.host_stalls = rank.gpu_stalls = True
        return self

    def publish(self, numbers=None):
        super().publish(numbers)
        rows = {}
        for pair in RING if not self.cut else ():
            ends = [f"10.0.0.{rank}:{5000 + place}" for place, rank in enumerate(pair)]
            sent = row(*ends, "send", 0, 1 << 20) | {"network_ns": SECOND // 4, "queued": 0}
            rows.setdefault(pair[0], []).append(sent)
            rows.setdefault(pair[1], []).append(row(*ends[::-1], "receive", 0, 1 << 20) | {"queued": -1})
        for (sender, receiver), queued in self.cut.items():
            is_ring = (sender, receiver) in RING
            ends = [f"10.0.0.{sender}:{5000 + (not is_ring)}", f"10.0.0.{receiver}:{5000 + is_ring}"]
            waiting = {"network_ns": SECOND, "busy_ns": SECOND, "queued": queued}
            rows.setdefault(sender, []).append(row(*ends, "send", 0, 0) | waiting)
        for rank, its_rows in rows.items():
            self.send(rank, its_rows)

    def send(self, rank, rows):
        record = {"job": "train", "run": self.run, "rank": rank, "world_size": RANKS, "host": "h", "gpu_uuid": ""}
        _, batch = self.batches_of.batch(record, [values | {"start_ns": self.now - SECOND} for values in rows])
        self.read += 1
        batch.envelope["sent_ns"] += self.ahead_ns.get(rank, 0)
        self.take(apply_batch(self.stage, batch, self.read, self.now))


def begun(job):
    """Let each rank call one more, and begin it, before nothing moves any more."""
    for rank in job.ranks.values():
        comm = rank.comms["c0"]
        comm.called.append(("AllReduce", "float32", 9))
        comm.begun = len(comm.called)
        rank.moved = job.now
    return job


def test_the_pair_whose_data_is_not_acknowledged_is_stated_of_more_than_two_hosts():
    job = begun(Ring().run_for(20)).cut_links({(1, 2): DATA})
    job.run_for(15)
    assert job.states == ["standing"]
    assert job.named == {}
    [whole] = job.rows[-1]
    assert whole["reason"] == "not_ended"
    link = "the link from host-0 (rank 1) to host-1 (rank 2) delivers nothing, since what was sent is not acknowledged."
    assert whole["note"].startswith("All ranks began AllReduce 21 of 9 float32")
    assert whole["note"].endswith(link)
    job.run_for(140)
    assert job.states == ["standing", "hung"]


@pytest.mark.parametrize(("back", "direction"), [(CONTROL, "from host-0 (rank 1) to host-1 (rank 2)"),
                                                 (DATA, "between host-0 (rank 1) and host-1 (rank 2)"),
                                                 (-1, "between host-0 (rank 1) and host-1 (rank 2)")])  # fmt: skip
def test_a_direction_that_waits_for_acknowledgements_only_is_not_stated(back, direction):
    job = begun(Ring().run_for(20)).cut_links({(1, 2): DATA, (2, 1): back})
    job.run_for(15)
    assert f"the link {direction} delivers" in job.rows[-1][0]["note"]


def test_a_job_without_an_open_operation_may_compute_and_does_not_stand_by_a_link():
    job = Ring()
    job.measured = False
    job.run_for(20).cut_links({(3, 4): DATA})
    job.run_for(15)
    assert job.states == []


@pytest.mark.parametrize("seconds", [1, 2])
def test_one_lossy_second_or_two_are_no_link(seconds):
    job = begun(Ring().run_for(20)).cut_links({(1, 2): DATA})
    job.run_for(seconds)
    [state] = job.stage.states.values()
    assert state.connections.pairs() == ()
    job.run_for(3 - seconds)
    assert state.connections.pairs() == ((1, 2),)
    job.cut = {(3, 9): DATA}
    job.run_for(5)
    assert state.connections.pairs() == ()
    assert len(state.connections._stalled) == 1, "old ones are forgotten"


def test_stalled_connections_are_bounded_and_counted(monkeypatch):
    monkeypatch.setattr(stalled_connections, "MOST_STALLED", 2)
    job = Ring().run_for(3).cut_links(dict.fromkeys(RING, DATA)).run_for(2)
    [state] = job.stage.states.values()
    assert len(state.connections._stalled) == 2
    before = state.connections.memory
    state.connections._stalled.clear()
    assert state.connections.memory < before


def test_a_rank_that_has_not_called_is_named_beside_a_link():
    job = Ring().run_for(20)
    job.ranks[4].host_stalls, job.cut = True, {(1, 2): DATA}
    job.run_for(15)
    assert list(job.named) == [4]
    assert "Besides, the link from host-0 (rank 1) to host-1 (rank 2) delivers nothing" in job.rows[-1][0]["note"]


def test_the_receiver_at_a_link_is_not_named_for_what_others_have_ended():
    job = begun(Ring().run_for(20))
    for number, rank in job.ranks.items():
        rank.comms["c0"].ended += number != 2  # their kernels have what they sent
    job.cut_links({(1, 2): DATA}).run_for(15)
    assert job.named == {}
    [whole] = job.rows[-1]
    assert (whole["reason"], whole["number"]) == ("not_ended", 21)
    assert "does not end: the link from host-0 (rank 1) to host-1 (rank 2)" in whole["note"]
    job.cut = {(3, 4): DATA}
    job.run_for(20)
    assert list(job.named) == [2], "another link does not explain it"


def test_several_links_are_stated_and_their_number():
    job = begun(Ring().run_for(20)).cut_links(dict.fromkeys(RING, DATA))
    job.run_for(15)
    note = job.rows[-1][0]["note"]
    assert note.count("rank") >= 8
    assert "the links from host-0 (rank 0) to host-0 (rank 1)" in note
    assert "and 2 more deliver nothing" in note


def test_a_connection_that_delivers_again_is_stated_no_more():
    job = begun(Ring().run_for(20)).cut_links({(1, 2): DATA})
    job.run_for(15)
    assert "delivers nothing" in job.rows[-1][0]["note"]
    job.cut = {}
    job.run_for(2)
    assert "delivers nothing" not in job.rows[-1][0]["note"]


@pytest.mark.parametrize("ahead_s", [8, 3_600])
def test_a_host_whose_clock_is_ahead_hides_no_link_of_others(ahead_s):
    job = begun(Ring().run_for(20)).cut_links({(1, 2): DATA})
    job.ahead_ns = {4: ahead_s * SECOND}
    for _ in range(15):
        job.run_for(1)
        job.send(4, [row("10.0.0.4:1", "10.0.9.9:2", "receive", 0, 1 << 20) | {"queued": -1}])
    assert "the link from host-0 (rank 1)" in job.rows[-1][0]["note"]


def test_connections_that_are_opened_after_clocks_were_set_back_are_known():
    job = Ring()
    job.ahead_ns = dict.fromkeys(range(RANKS), 3_600 * SECOND)
    job.run_for(2)
    [state] = job.stage.states.values()
    state.connections.ends.clear()
    job.ahead_ns = {}
    begun(job.run_for(20)).cut_links({(1, 2): DATA}).run_for(15)
    assert "the link from host-0 (rank 1)" in job.rows[-1][0]["note"]


def test_a_pair_is_known_after_a_restart_of_the_worker():
    job = begun(Ring().run_for(20)).cut_links({(1, 2): DATA})
    job.run_for(15)
    before = job.rows[-1][0]["note"]
    job.restart()
    job.run_for(20)
    assert job.rows[-1][0]["note"] == before


def test_connections_to_others_than_ranks_and_of_unknown_runs_are_no_links():
    job = begun(Ring().run_for(20)).cut_links({})
    job.cut = {(1, 9): DATA}
    job.run_for(15)
    assert "delivers nothing" not in job.rows[-1][0]["note"]
    other = Ring(run="r2")
    other.cut = {(1, 2): DATA}
    other.send(1, [row("10.0.0.1:5000", "10.0.0.2:5001", "send", 0, 0)])
    assert other.stage.states == {}


def test_ends_are_bounded(monkeypatch):
    monkeypatch.setattr(stalled_connections, "MOST_ENDS", 4)
    job = Ring().run_for(3)
    [state] = job.stage.states.values()
    assert len(state.connections.ends) == 4
