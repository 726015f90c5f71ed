"""Samples are stored in half of their bytes only where that holds every number."""

from types import SimpleNamespace

import numpy as np
import pytest

from drumline.streams.stragglers.sample_state import DEVICE, HOST, SampleState

SECOND = 1_000_000_000
KINDS = pytest.mark.parametrize("kind", [DEVICE, HOST], ids=["device", "host"])


def rank_samples(rows):
    return SimpleNamespace(ranks=np.full(len(rows), 3), part_of=np.zeros(len(rows), np.int64))


def stored(kind, value: int, name: str, count: int = 1):
    """Return the size of what is kept of samples with a value in one column, and the samples as they are read."""
    rows = np.zeros(count, kind.dtype)
    rows["time_ns"] = SECOND * np.arange(1, count + 1)
    rows[name][-1] = value
    store: dict[str, bytes] = {}
    state = SampleState(store, "job", kind._replace(rows_of=lambda _: rows))
    state.apply(rank_samples(rows), np.array([7]))
    return sum(map(len, store.values())), rows, state.rows(3, 0, 9 * SECOND)


def edges(kind):
    """Return for each column but the time its last numbers that half of the bytes hold, and the first that need all."""
    for name in (kind.dtype.names or ())[1:]:
        limits = np.iinfo(kind.narrow[name])
        yield name, (limits.min, limits.max), (limits.min - 1, limits.max + 1)


@KINDS
@pytest.mark.parametrize("count", [1, 9])
def test_every_number_is_read_as_it_came_and_only_large_ones_take_all_bytes(kind, count):
    for name, held, too_large in edges(kind):
        small = stored(kind, 0, name, count)[0]
        for value in (*held, *too_large):
            size, sent, read = stored(kind, value, name, count)
            assert read.tolist() == sent.tolist()
            assert (size > small) == (value in too_large)


@KINDS
def test_a_batch_without_samples_stores_nothing(kind):
    rows = np.zeros(0, kind.dtype)
    store: dict[str, bytes] = {}
    state = SampleState(store, "job", kind._replace(rows_of=lambda _: rows))
    assert not len(state.apply(rank_samples(rows), np.array([7])).ranks)
    assert store == {}


@KINDS
def test_a_value_takes_each_batch_once_whatever_the_width_of_its_numbers(kind):
    wide = int(np.iinfo(kind.narrow[-1]).max) + 1
    store: dict[str, bytes] = {}
    state, sent = SampleState(store, "job", kind), []
    for second, value in enumerate((0, wide, 0), 1):
        rows = np.zeros(1, kind.dtype)
        rows["time_ns"], rows[kind.dtype.names[1]] = SECOND * second, value
        sent += rows.tolist()
        state.kind = kind._replace(rows_of=lambda _, rows=rows: rows)
        state.apply(rank_samples(rows), np.array([second]))
        before = dict(store)
        state.apply(rank_samples(rows), np.array([second]))
        assert store == before
        assert state.rows(3, 0, 9 * SECOND).tolist() == sent
