"""Stored transfers of a run: each counts once, by offset; old ones go; a restart goes on with them."""

from __future__ import annotations

import numpy as np
from support.network_world import Network, job
from support.straggler_simulator import MS

from drumline.schemas.record_table import BatchTable
from drumline.schemas.topics import Topic
from drumline.streams.stragglers.links import transfer_state
from drumline.streams.stragglers.links.transfer_state import BUCKETS, TransferState

UNIT = "job|run"


def tables(seconds=3, **options):
    stream = job(Network(3, nics=2, **options), max(1, seconds * 1000 // 65), transfer_ns=MS)
    return [BatchTable.of([batch]) for _, batch in stream if batch.topic == Topic.TRANSFER]


def applied(state, parts, first=1):
    return [state.apply(table, np.array([first + at])) for at, table in enumerate(parts)]


def test_rows_keep_their_ranks_directions_and_names():
    state = TransferState({}, UNIT)
    applied(state, tables())
    stored = state.between(0, 2 * 10**18)
    assert stored.communicators == ["c0-1-2"]
    assert sorted(stored.nics) == ["mlx5_0", "mlx5_1"]
    rank_rows = stored.rows[stored.rows["rank"] == 1]
    assert {stored.nics[nic] for nic in rank_rows["nic"].tolist()} == {"mlx5_1"}
    assert {*zip(rank_rows["is_send"].tolist(), rank_rows["peer"].tolist(), strict=True)} == {(1, 2), (0, 0)}


def test_a_record_that_comes_again_changes_nothing():
    store = {}
    state, parts = TransferState(store, UNIT), tables()
    applied(state, parts)
    before = dict(store)
    assert not any(len(rows) for rows in applied(state, parts))
    assert store == before


def test_a_restart_goes_on_with_what_is_stored_and_forgetting_leaves_nothing():
    store, parts = {}, tables()
    applied(TransferState(store, UNIT), parts)
    state = TransferState(store, UNIT)
    for name in store:
        _, bucket, part, _ = name.split("|", 3)
        state.buckets.setdefault(int(part), set()).add(int(bucket))
    assert len(state.between(0, 2 * 10**18).rows) == sum(table.rows for table in parts)
    state.forget()
    assert store == {}


def test_time_bounds_what_is_kept():
    store = {}
    state, [table, *_] = TransferState(store, UNIT), tables()
    for number in range(BUCKETS + 5):
        table.columns["start_ns"] = table.columns["start_ns"] + 10 * 10**9
        state.apply(table, np.array([number + 1]))
    assert len(store) == BUCKETS
    newest = max(state.buckets[0])
    state.drop_before({0: newest * 10 * 10**9})
    assert state.buckets == {0: {newest}}


def test_of_more_rows_than_a_value_holds_those_with_most_bytes_are_kept(monkeypatch):
    monkeypatch.setattr(transfer_state, "MOST_ROWS", 5)
    state = TransferState({}, UNIT)
    rows = np.concatenate(applied(state, tables(seconds=1)))
    stored = [state._load(state._key(bucket, part))[0].rows for part, kept in state.buckets.items() for bucket in kept]
    assert all(len(kept) <= 5 for kept in stored)
    assert max(kept["bytes"].max() for kept in stored) == rows["bytes"].max()
