"""Rows of gpu.transfer.v1 from the records of proxy operations in a ring."""

import numpy as np
import pytest
from support.fake_ring import FakeRing
from support.ring_reader import BEGIN, Reader

from drumline.producers.rings.ring_file import RECEIVED, RECORD, SENT, TRANSFERS, HeaderField, Kind
from drumline.producers.rings.transfers import transfer_rows
from drumline.schemas.topics import Topic

S, MS = 10**9, 10**6
PAIR = ("start_ns", "peer", "direction", "channels", "operations", "transfers", "bytes")


@pytest.fixture
def ring(tmp_path):
    ring = FakeRing(tmp_path)
    ring.communicator(rank=1, ranks=4)
    return ring


def rows(ring):
    return transfer_rows(ring.records[: int(ring.header[HeaderField.WRITTEN])], ring.comms, 0)


def test_a_row_holds_a_second_of_one_communicator_peer_and_direction(ring):
    for end_ns, peer, direction, channel in (
        (BEGIN, 2, SENT, 0), (BEGIN + 999 * MS, 2, SENT, 1), (BEGIN + 1, 2, RECEIVED, 0), (BEGIN + 2, 3, SENT, 0),
        (BEGIN + S, 2, SENT, 0),
    ):  # fmt: skip
        ring.transfer(end_ns, peer, direction, channel)
    table = rows(ring)
    assert sorted(zip(*(table[name].tolist() for name in PAIR), strict=True)) == [
        (BEGIN, 2, 0, 2, 2, 2, 2_000),
        (BEGIN, 2, 1, 1, 1, 1, 1_000),
        (BEGIN, 3, 0, 1, 1, 1, 1_000),
        (BEGIN + S, 2, 0, 1, 1, 1, 1_000),
    ]
    assert table.dictionaries["communicators"] == [f"{0xC0FFEE:016x}"]
    assert (set(table["comm_rank"].tolist()), set(table["ranks"].tolist())) == ({1}, {4})


def test_the_busy_time_of_a_row_is_the_union_over_its_channels(ring):
    far = 10**9  # the link was busy for days
    for channel, busy in enumerate(((far, far + 10), (far + 5, far + 12), (far + 6, far + 7), (far + 20, far + 21))):
        ring.transfer(BEGIN, channel=channel, busy=busy)
    ring.transfer(BEGIN, peer=3, busy=(0, 4))
    assert rows(ring)["busy_ns"].tolist() == [13 * MS, 4 * MS]


def test_the_slowest_channel_has_the_lowest_rate_and_receives_have_none(ring):
    for channel, (size, network_ms) in enumerate(((1_000, 1), (9_000, 10), (3_000, 2), (500, 1), (500, 0))):
        ring.transfer(BEGIN, channel=channel, network_ms=network_ms, bytes=size)
    ring.transfer(BEGIN, direction=RECEIVED, network_ms=0)
    table = rows(ring)
    names = ("slowest_channel", "slowest_bytes", "slowest_network_ns")
    assert [tuple(int(table[name][i]) for name in names) for i in range(2)] == [(3, 500, MS), (-1, 0, 0)]


def test_steps_are_those_of_the_calls(ring):
    for step in (7, 9, 8):
        ring.transfer(BEGIN, step=step)
    ring.transfer(BEGIN, peer=3)
    table = rows(ring)
    assert (table["first_step"].tolist(), table["last_step"].tolist()) == ([7, -1], [9, -1])


def test_what_no_plugin_writes_makes_no_row(ring):
    for fields in ({"direction": 3}, {"peer": 4}, {"peer": -1}, {"comm": 9}, {"generation": 2}):
        ring.transfer(BEGIN, **fields)
    assert rows(ring).rows == 0


def test_any_numbers_make_rows_that_the_contract_allows_or_none(ring):
    generator = np.random.default_rng(1)
    noise = generator.integers(0, 256, 200 * RECORD.itemsize, np.uint8).view(RECORD)
    matched = noise.view(TRANSFERS)
    matched["kind"], matched["comm"], matched["generation"], matched["direction"], matched["peer"] = (
        Kind.TRANSFERS,
        0,
        1,
        SENT,
        2,
    )
    table = transfer_rows(noise, ring.comms, 5)
    assert table.rows > 0
    assert all(np.isfinite(table[name]).all() for name in table.columns)
    assert min(int(table[name].min()) for name in ("bytes", "transfers", "busy_ns", "network_ns", "gpu_wait_ns")) >= 0


def test_rows_do_not_wait_for_their_step_and_come_once_however_the_ring_is_read(ring):
    ring.mark(0, BEGIN)
    reader = Reader(ring)
    for i in range(4):  # the step goes on
        ring.transfer(BEGIN + i * S)
        reader.round(BEGIN + i * S + MS)
    assert reader.rows(Topic.TRANSFER, "start_ns", "operations") == [(BEGIN + i * S, 1) for i in range(4)]
    assert int(ring.header[HeaderField.READ]) == 1, "the open step holds its records"
    ring.train(1, BEGIN + 10 * S)
    for _ in range(2):
        reader.round()
    assert len(reader.rows(Topic.TRANSFER, "start_ns")) == 4
    assert {row[0] for row in reader.rows(Topic.TRANSFER, "start_ns")} == {BEGIN + i * S for i in range(4)}
    transfers = [batch for batch in reader.batches if batch.topic == Topic.TRANSFER and batch.rows]
    watermarks = [batch.envelope["watermark_ns"] for batch in transfers]
    assert all(
        later[0] >= mark for later, mark in zip(reader.rows(Topic.TRANSFER, "start_ns")[1:], watermarks, strict=False)
    )


def test_transfers_have_the_numbers_of_the_steps_of_a_job_whose_steps_start_again(ring):
    ring.train(3, BEGIN)
    reader = Reader(ring)
    reader.round()
    ring.mark(0, BEGIN + S)
    ring.transfer(BEGIN + S, step=0)
    ring.transfer(BEGIN + S, peer=3, step=3)  # called before
    reader.round(BEGIN + S + MS)
    assert sorted(reader.rows(Topic.TRANSFER, "peer", "first_step", "last_step")) == [(2, 4, 4), (3, 3, 3)]


def test_a_record_that_was_never_finished_is_no_transfer_of_an_earlier_lap(tmp_path):
    ring = FakeRing(tmp_path, capacity=64)
    ring.communicator(rank=1, ranks=4)
    reader = Reader(ring)
    ring.mark(0, BEGIN)
    for _ in range(62):
        ring.transfer(BEGIN)
    ring.mark(1, BEGIN)
    reader.round()
    ring.claim(2)  # the places of a mark and a transfer
    assert reader.round(ended=True).position == 66
    assert reader.rows(Topic.TRANSFER, "operations") == [(62,)]


def test_a_shorter_look_at_the_ring_publishes_no_transfer_again(ring):
    ring.mark(0, BEGIN)
    for _ in range(3):
        ring.transfer(BEGIN)
    reader = Reader(ring)
    for most in (None, 1, None):
        reader.round(BEGIN + MS, most=most)
    assert reader.rows(Topic.TRANSFER, "operations") == [(3,)]
