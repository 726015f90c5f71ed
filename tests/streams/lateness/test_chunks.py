"""Rows of a communicator's steps in few values: each counts once, and no value becomes too large for the changelog."""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np
import pytest
from support.labs.lateness import rows

from drumline.streams.core.records import Rows, stacked, unpack_rows
from drumline.streams.lateness import chunks as module
from drumline.streams.lateness.chunks import RANKS_OF_VALUE, Chunks
from drumline.streams.lateness.collective_join import merge
from drumline.streams.lateness.collective_rows import COLLECTIVE_ROW
from drumline.streams.lateness.state import CHECKPOINT_KINDS
from drumline.streams.worker.partition_store import CheckpointOrder, PartitionStore

NOTHING = np.zeros(0, COLLECTIVE_ROW)


def opened(store: MutableMapping[str, bytes]) -> Chunks:
    """Chunks over a store, with what it holds."""
    chunks = Chunks(store, "c", "3:job|run")
    for name, data in store.items():
        record = unpack_rows(data, COLLECTIVE_ROW)
        chunk, number = map(int, name.split("|")[1:3])
        chunks.restore(chunk, number, record, {int(rank): "1" for rank in record.head["ranks"]})
    return chunks


def collectives(rank: int, count: int = 3, step: int = 0, first: int = 0) -> Rows:
    part = rows([10 + rank] * count, step=step, ordinals=range(first, first + count))
    part["rank"] = rank
    return part


def kept(store: dict[str, bytes]) -> list[tuple[object, ...]]:
    """All rows, in their order."""
    return merge(NOTHING, stacked([NOTHING, *(unpack_rows(v, COLLECTIVE_ROW).rows for v in store.values())])).tolist()


def test_ranks_that_come_from_many_hosts_share_a_value():
    store: dict[str, bytes] = {}
    chunks = opened(store)
    for rank in range(2 * RANKS_OF_VALUE):
        assert chunks.add(0, {rank: collectives(rank)}, {rank: ("1", rank)}) == set()
    assert sorted(store) == [chunks.key_of(0, 0), chunks.key_of(0, 1)]
    assert kept(store) == stacked([collectives(rank) for rank in range(2 * RANKS_OF_VALUE)]).tolist()


def test_a_record_that_comes_again_changes_nothing_also_after_a_restart():
    store: dict[str, bytes] = {}
    chunks = opened(store)
    together = {0: collectives(0), 1: collectives(1)}
    chunks.add(0, together, {0: ("1", 7), 1: ("1", 8)})
    before = dict(store)
    for again in (chunks, opened(store)):
        assert again.add(0, together, {0: ("1", 7), 1: ("1", 8)}) == {0, 1}
        assert store == before
    assert chunks.add(0, {0: collectives(0), 1: collectives(1, first=3)}, {0: ("1", 7), 1: ("1", 9)}) == {0}
    assert kept(store) == stacked([collectives(0), collectives(1, 6)]).tolist()


def test_a_rank_whose_value_was_not_written_before_a_kill_is_not_taken_for_one_that_was():
    """A checkpoint was cut off behind the value of rank 0, whose offset is later than that of rank 1's record."""
    store: dict[str, bytes] = {}
    opened(store).add(0, {0: collectives(0)}, {0: ("1", 9)})
    assert opened(store).add(0, {1: collectives(1)}, {1: ("1", 5)}) == set()
    assert kept(store) == stacked([collectives(0), collectives(1)]).tolist()


def test_rows_that_come_again_and_again_do_not_add_up(monkeypatch):
    monkeypatch.setattr(module, "TIDY_BYTES", 1_000)
    store: dict[str, bytes] = {}
    chunks = Chunks(store, "c", "3:job|run")
    for offset in range(200):
        chunks.add(0, {0: collectives(0)}, {0: ("1", offset)})
    assert len(store[chunks.key_of(0, 0)]) < 1_200
    assert kept(store) == collectives(0).tolist()


@pytest.mark.parametrize("survive", [0, 1, 2, 3])
def test_a_large_value_is_divided_and_a_kill_in_between_loses_nothing(monkeypatch, survive):
    monkeypatch.setattr(module, "TIDY_BYTES", 400)
    monkeypatch.setattr(module, "LARGE_BYTES", 1_000)

    class Killed(Exception):
        pass

    class Store(dict[str, bytes]):
        left = 1_000

        def __setitem__(self, name, data):
            if not self.left:
                raise Killed
            self.left -= 1
            super().__setitem__(name, data)

    store, pieces = Store(), []
    chunks = opened(store)
    for offset, rank in enumerate([0, 1, 2, 3]):
        pieces.append((offset, rank, collectives(rank)))
        chunks.add(0, {rank: collectives(rank)}, {rank: ("1", offset)})
    pieces.append((4, 1, collectives(1, 9, first=3)))
    assert len(store) == 1
    store.left = survive
    try:
        chunks.add(0, {1: pieces[4][2]}, {1: ("1", 4)})
    except Killed:
        chunks = opened(store)
        store.left = 1_000
        for offset, rank, part in pieces:
            chunks.add(0, {rank: part}, {rank: ("1", offset)})
    assert len(store) > 1
    assert kept(store) == merge(NOTHING, stacked([part for *_, part in pieces])).tolist()
    assert max(len(unpack_rows(data, COLLECTIVE_ROW).rows.tobytes()) for data in store.values()) <= 1_400


@pytest.mark.parametrize("later", [[], [1], [3], [1, 3], [0, 1, 2, 3]], ids=str)
def test_a_checkpoint_that_is_cut_off_has_all_that_was_committed_before_a_value_was_divided(monkeypatch, later):
    """Whichever half changes again before the checkpoint."""
    monkeypatch.setattr(module, "TIDY_BYTES", 400)
    monkeypatch.setattr(module, "LARGE_BYTES", 1_000)
    store = PartitionStore({}, None, CheckpointOrder(CHECKPOINT_KINDS))
    chunks = opened(store)
    for offset, rank in enumerate([0, 1, 2, 3]):
        chunks.add(0, {rank: collectives(rank)}, {rank: ("1", offset)})
    changelog = dict(store.take_checkpoint())
    committed = set(kept(changelog))
    chunks.add(0, {1: collectives(1, 9, first=3)}, {1: ("1", 4)})
    assert len(store) > 1
    for offset, rank in enumerate(later, 5):
        chunks.add(0, {rank: collectives(rank, 1, step=1)}, {rank: ("1", offset)})
    for name, data in store.take_checkpoint():
        assert committed <= set(kept(changelog))
        changelog[name] = data
    assert kept(changelog) == kept(dict(store))


def test_a_rank_that_moved_before_a_kill_stays_in_the_half_that_has_its_rows(monkeypatch):
    """The half was written and the rest was not; the rest then goes on without being divided again."""
    monkeypatch.setattr(module, "TIDY_BYTES", 400)
    monkeypatch.setattr(module, "LARGE_BYTES", 1_000)
    store: dict[str, bytes] = {}
    chunks = opened(store)
    for offset, rank in enumerate([0, 1, 2, 3]):
        chunks.add(0, {rank: collectives(rank)}, {rank: ("1", offset)})
    before = dict(store)
    chunks.add(0, {1: collectives(1, 9, first=3)}, {1: ("1", 4)})
    killed = before | {name: data for name, data in store.items() if name not in before}
    chunks = opened(killed)
    monkeypatch.setattr(module, "LARGE_BYTES", 1 << 20)
    chunks.add(0, {1: collectives(1, 9, first=3)}, {1: ("1", 4)})
    half = dict(killed)
    chunks.add(0, {3: collectives(3, 1, step=1)}, {3: ("1", 5)})
    chunks.add(0, {0: collectives(0, 1, step=1)}, {0: ("1", 6)})
    [rest] = {name for name in killed if killed[name] != half[name]} & set(before)
    torn = half | {rest: killed[rest]}
    assert opened(torn).add(0, {3: collectives(3, 1, step=1)}, {3: ("1", 5)}) == set()
    assert kept(torn) == kept(killed)


def test_chunks_before_a_step_are_deleted():
    store: dict[str, bytes] = {}
    chunks = opened(store)
    for step in (0, 4, 8):
        chunks.add(step // 4, {0: collectives(0, step=step)}, {0: ("1", step)})
    chunks.drop_before(9)
    assert sorted(store) == [chunks.key_of(2, 0)]
    assert [unpack_rows(data, COLLECTIVE_ROW).rows["step"][0] for data in chunks.of_steps([0, 9])] == [8]
