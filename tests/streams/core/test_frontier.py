"""Jobs of a thousand ranks: the last one is known without a look at all for every record; records fit into Kafka."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.straggler_simulator import batches, ddp, simulate
from support.tables import apply_batch

from drumline.streams.core.frontier import Frontier
from drumline.streams.core.records import stacked
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness import stage as communicator_stage
from drumline.streams.lateness.stage import CommunicatorStage


@dataclass
class Rank:
    complete: int = -1
    silent: bool = False


class CountedScans(list):
    """Ranks, and the number of times that all were looked at."""

    scans = 0

    def __iter__(self):
        self.scans += 1
        return super().__iter__()


MOVES = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["on", "on", "on", "silent"]), st.integers(0, 6)))


@given(MOVES)
def test_the_lowest_step_is_that_of_a_full_scan(moves):
    ranks: dict[int, Rank] = {}
    frontier = Frontier(ranks.values())
    for number, move, step in moves:
        rank = ranks.get(number)
        if move == "silent" and rank is not None:
            rank.silent = True
            frontier.invalidate()
        elif move == "on" and (rank is None or rank.silent):
            rank = ranks.setdefault(number, Rank())
            rank.silent, rank.complete = False, max(rank.complete, step)
            frontier.add(rank.complete)
        elif move == "on":
            before, rank.complete = rank.complete, max(rank.complete, step)
            frontier.advance(before, rank.complete)
        live = [rank.complete for rank in ranks.values() if not rank.silent]
        assert frontier.lowest() == (min(live) if live else None)


def test_ranks_that_come_one_after_another_cause_no_scan_each():
    ranks = CountedScans()
    frontier = Frontier(ranks)
    for number in range(100):
        ranks.append(Rank(3 + number % 2))
        frontier.add(ranks[-1].complete)
        assert frontier.lowest() == 3
    assert ranks.scans == 1


def test_a_step_scans_all_followers_about_once():
    followers = [Rank() for _ in range(100)]
    ranks = CountedScans(followers)
    frontier = Frontier(ranks)
    for step in range(10):
        for rank in followers:
            before, rank.complete = rank.complete, step
            frontier.advance(before, step)
            frontier.lowest()
    assert ranks.scans <= 12


def test_stacked_records_are_what_numpy_makes_of_them():
    parts = [np.array([(1, 2.5)], dtype=(kind := [("a", "<i4"), ("b", "<f8")])), np.zeros(0, kind), np.ones(3, kind)]
    assert stacked(parts).tobytes() == np.concatenate(parts).tobytes()


def test_steps_that_become_complete_at_once_go_out_in_records_that_kafka_takes(monkeypatch):
    held_up = sorted(
        (batch for _, batch in batches(simulate(ddp(4), 30)) if batch.topic == "gpu.collective.v1"),
        key=lambda batch: batch.envelope["rank"],  # the last rank's come last: until then no step is complete
    )

    def emitted(rows_at_most):
        monkeypatch.setattr(communicator_stage, "MAX_ROWS", rows_at_most)
        stage, out = CommunicatorStage({}, StragglerConfig()), []
        for offset, batch in enumerate(held_up):
            out += apply_batch(stage, batch, offset, 1 + offset)
        for batch in out:
            stage.mark_sent(batch)
        assert stage.open_windows == 0
        return out

    whole, cut = emitted(1_000_000), emitted(8)
    assert max(batch.rows for batch in cut) == 8 < max(batch.rows for batch in whole)
    for name in whole[0].columns:
        expected = np.concatenate([batch.columns[name] for batch in whole])
        np.testing.assert_array_equal(np.concatenate([batch.columns[name] for batch in cut]), expected)
    through = [batch.envelope["complete_step"] for batch in cut]
    assert through == sorted(through)
    assert through[-1] == whole[-1].envelope["complete_step"]
    assert all(b.columns["step"].max() <= b.envelope["complete_step"] for b in cut if b.rows)
