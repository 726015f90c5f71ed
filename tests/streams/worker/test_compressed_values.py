"""Values that the changelog has are compressed in memory; whoever reads or writes them finds them as they were."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.streams.core.records import pack_text
from drumline.streams.core.state_budget import ChargedStore, StateBudget, StateLimits
from drumline.streams.worker.compressed_values import BLOCK_BYTES, LEAST_BYTES, CompressedValue, compress, plain
from drumline.streams.worker.partition_store import CheckpointOrder, PartitionStore

HEAD = pack_text(7, b'{"ranks":[]}')
VALUE = HEAD + bytes(range(7)) * LEAST_BYTES
OTHER = VALUE[:-7]
ORDER = CheckpointOrder("as", "", {"s": 7}, lambda key: tuple(key.split("|")[:2]))


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=4), st.sampled_from([b"", HEAD]), st.integers(1, 60))
def test_values_come_back_as_they_were(bodies, head, row_bytes):
    values = [head + body for body in bodies]
    kept = compress(values, row_bytes)
    assert [plain(value) for value in kept] == values
    assert [value.length for value in kept] == list(map(len, values))


class Sent:
    """A change that the broker has."""

    def __await__(self):
        return iter(())


@pytest.fixture
def parts():
    """A store, the table beside it, and what was written to the changelog."""
    table, written = {}, []

    def write(key, value):
        table[key] = value
        written.append((key, value))
        return Sent()

    return PartitionStore({}, write, ORDER, None, table.__setitem__), table, written


def checkpoint(store, meanwhile=None):
    async def run():
        changes = store.take_checkpoint()
        if meanwhile is not None:
            meanwhile()
        _, arriving = await store.write(changes)
        for arrived in arriving:
            await arrived

    asyncio.run(run())


def rest(store):
    """Write checkpoints of other changes, until what does not change is compressed."""
    for _ in range(5):
        checkpoint(store)
        store["a|other"] = b""


def test_large_values_that_rest_are_compressed_in_store_and_table(parts):
    store, table, written = parts
    store.update({"s|1": VALUE, "s|2": VALUE[: LEAST_BYTES - 1], "a|1": VALUE})
    rest(store)
    assert {key for key, value in table.items() if isinstance(value, CompressedValue)} == {"s|1"}
    assert len(table["s|1"].block.packed) < len(VALUE) / 10
    assert dict(written) == dict(store)
    assert store["s|1"] == VALUE
    assert store._data["s|1"] is table["s|1"]


def blocks_of(table):
    """Return the keys of each block."""
    keys = {}
    for key, value in table.items():
        if isinstance(value, CompressedValue):
            keys.setdefault(id(value.block), []).append(key)
    return sorted(map(sorted, keys.values()))


def test_small_values_that_come_and_go_together_are_one_block(parts):
    store, table, _ = parts
    small = {
        f"s|{of}": HEAD + bytes([i]) * (LEAST_BYTES // 3) for i, of in enumerate(["1|10", "1|2", "2|1", "1|9", "1|1"])
    }
    store.update(small)
    rest(store)
    assert blocks_of(table) == [["s|1|1", "s|1|10", "s|1|2", "s|1|9"]]
    assert [table[f"s|1|{part}"].number for part in (1, 2, 9, 10)] == [0, 1, 2, 3]
    assert {key: store[key] for key in small} == small


def test_a_block_is_no_larger_than_who_reads_one_value_unpacks(parts):
    store, table, _ = parts
    store.update({f"s|1|{part}": HEAD + bytes([part]) * (BLOCK_BYTES // 4) for part in range(12)})
    rest(store)
    assert list(map(len, blocks_of(table))) == [4, 4, 4]


def test_older_values_rest_as_soon_as_they_are_written(parts):
    store, table, written = parts
    for time in (9, 10):
        store.update({f"s|{time}|1": VALUE, f"s|{time}|2": VALUE})
    checkpoint(store, meanwhile=lambda: store.update({"s|9|2": OTHER}))
    assert {key for key, value in table.items() if isinstance(value, CompressedValue)} == {"s|9|1"}
    assert [type(value) for _, value in written] == [bytes] * 4
    assert (store["s|9|1"], store["s|9|2"]) == (VALUE, OTHER)
    store["a|1"] = b""
    checkpoint(store)
    assert {key for key, value in table.items() if type(value) is bytes} == {"s|9|2", "a|1"}


def test_what_is_recovered_is_compressed_too(parts):
    before, table, _ = parts
    table |= {"s|1": VALUE, "s|2": VALUE}
    store = PartitionStore(dict(table), before._write, ORDER, None, table.__setitem__)
    store["s|2"] = OTHER
    rest(store)
    assert {key for key in table if isinstance(table[key], CompressedValue)} == {"s|1", "s|2"}
    assert (store["s|1"], store["s|2"]) == (VALUE, OTHER)


def test_a_compressed_value_that_changes_is_written_plain(parts):
    store, table, written = parts
    store["s|1"] = VALUE
    rest(store)
    assert type(table["s|1"]) is CompressedValue
    store["s|1"] = store["s|1"] + b"more"
    checkpoint(store)
    store.write_again("s|1")
    of_value = [value for key, value in written if key == "s|1"]
    assert [type(value) for value in of_value] == [bytes] * 3
    assert of_value == [VALUE, VALUE + b"more", VALUE + b"more"]
    del store["s|1"]
    checkpoint(store)
    assert written[-1] == ("s|1", None)


def test_a_value_that_changes_again_before_it_rests_is_not_compressed(parts):
    store, table, _ = parts
    for number in range(6):
        store["s|1"] = VALUE + bytes([number])
        checkpoint(store)
    assert type(table["s|1"]) is bytes


def test_a_value_that_changes_while_it_is_written_stays_as_it_is_now(parts):
    store, _, written = parts
    store["s|1"] = VALUE
    checkpoint(store, lambda: store.update({"s|1": OTHER}))
    assert (written, store["s|1"]) == ([("s|1", VALUE)], OTHER)
    checkpoint(store)
    assert written[-1] == ("s|1", OTHER)


def test_values_of_a_table_are_read_after_partitions_moved(parts):
    store, table, _ = parts
    store["s|1"] = VALUE
    rest(store)
    assert type(table["s|1"]) is CompressedValue
    assert PartitionStore(dict(table), store._write, ORDER)["s|1"] == VALUE


def test_the_account_of_a_job_is_that_of_plain_values(parts):
    store, _, _ = parts
    budget = StateBudget(StateLimits(key_bytes=0))
    charged = ChargedStore(store, budget)
    charged["s|1"] = VALUE
    rest(store)
    charged["s|1"] = OTHER
    assert budget.total == len(OTHER) + 2 * len("s|1")
    rest(store)
    assert charged.pop("s|1", None) is None
    assert (budget.total, "s|1" in store) == (0, False)


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_table_of_a_partition_that_was_lost_during_a_checkpoint_stays_as_it_is(is_lost):
    table, losing = {}, []

    async def send(changes):
        table.update(changes)
        store.closed = bool(losing)
        return len(changes), Sent()

    store = PartitionStore({}, lambda key, value: Sent(), ORDER, send, table.__setitem__)
    store["s|1"] = VALUE
    checkpoint(store)
    store["a|other"] = b""
    losing += [True] * is_lost
    checkpoint(store)
    assert (type(table["s|1"]) is bytes) == is_lost
