"""Rings on their way into spools: of processes that end, of agents that are killed, and files that are no rings."""

import json
import os
import signal
import time
from collections import defaultdict

import numpy as np
import pytest
from support.fake_ring import MS, FakeRing

from drumline.producers.ipc.control import FILE
from drumline.producers.rings.host_rings import RingFolder
from drumline.producers.rings.ring_file import HEADER_BYTES, MOST_READ, HeaderField
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, Frame, scan
from drumline.schemas.batch import decode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

BEGIN = 10**18
LATER = BEGIN + 3_600 * 10**9
ENVIRONMENT = {"DRUMLINE_JOB": "train", "DRUMLINE_RUN": "r1", "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.01
        return self.now


@pytest.fixture
def root(tmp_path):
    return tmp_path / "spool"


@pytest.fixture
def reader(root):
    folder = RingFolder(root / ".rings", root, SpoolLimits(), Clock())
    yield folder
    folder.close()


def rounds(folder, count=2):
    for number in range(count):
        folder._due = float("-inf")
        folder.round(LATER + number)


def batches(root):
    """Every batch in the spools, in order, by topic, key and process; the same one twice counts once."""
    result = defaultdict(dict)
    for folder in sorted(path for path in root.iterdir() if not path.name.startswith(".")):
        for segment in sorted(folder.glob("*.seg")):
            for frame in scan(segment.read_bytes()[len(SEGMENT_MAGIC) :], complete=True):
                if isinstance(frame, Frame):
                    assert frame.kind == DATA
                    batch = decode(model(frame.topic), frame.body)
                    feed = result[frame.topic, frame.key, batch.envelope["process_id"]]
                    same = feed.setdefault(batch.envelope["sequence"], (frame.body, batch))
                    assert same[0] == frame.body
    return {key: [batch for _, batch in feed.values()] for key, feed in result.items()}


def rows(root, topic, *columns):
    parts = [batch for (name, *_), feed in batches(root).items() if name == topic for batch in feed if batch.rows]
    return list(zip(*(np.concatenate([b.columns[c] for b in parts]).tolist() for c in columns), strict=True))


def test_a_ring_is_published_and_deleted_once_its_process_has_ended(root, reader):
    ring = FakeRing(root / ".rings", environment=ENVIRONMENT)
    ring.communicator()
    ring.train(5, BEGIN)
    rounds(reader)
    assert int(ring.header[HeaderField.READ]) == int(ring.header[HeaderField.WRITTEN])
    ring.operations(BEGIN + 60 * MS, BEGIN + 61 * MS, BEGIN + 62 * MS)
    ring.header[HeaderField.UNTIMED_STEPS] = 120
    ring.end()
    rounds(reader)
    assert reader.is_empty
    assert list((root / ".rings").iterdir()) == list((root / ".agent" / "rings").iterdir()) == []
    assert len(rows(root, Topic.COLLECTIVE, "step")) == 5 * 4 + 1
    envelope = next(feed for (topic, *_), feed in batches(root).items() if topic == Topic.STEP)[0].envelope
    expected = {"job": "train", "run": "r1", "rank": 3, "local_rank": 1, "world_size": 8, "source": "nccl"}
    assert {name: envelope[name] for name in expected} == expected
    [path] = root.glob("[!.]*/identity.json")
    counts = json.loads(path.read_text())["process"]["collector"]
    assert (counts["operations"], counts["untimed_steps"]) == ("21", "120")


@pytest.mark.parametrize("has_ticks", [0, 1])
def test_times_are_scaled_where_the_ring_states_that_they_are_ticks(root, reader, has_ticks):
    ring = FakeRing(root / ".rings", capacity=4_096, environment=ENVIRONMENT)
    ring.communicator()
    ring.header[HeaderField.GPU_TICKS] = has_ticks
    ring.train(300, BEGIN)
    of_operations = ring.records["gpu_stop_ns"] > 0
    lengths = (ring.records["gpu_stop_ns"] - ring.records["gpu_start_ns"])[of_operations].astype(np.int64)
    for name in ("gpu_start_ns", "gpu_stop_ns") if has_ticks else ():
        ring.records[name][of_operations] = (ring.records[name][of_operations].astype(np.int64) - BEGIN) // 10 + 10**12
    ring.end()
    rounds(reader, 4)
    assert {duration_ns for (duration_ns,) in rows(root, Topic.COLLECTIVE, "duration_ns")} == set(lengths.tolist())


def test_what_the_agent_asks_of_a_process_that_measures_a_part_of_its_steps_reaches_its_ring(root, reader):
    ring = FakeRing(root / ".rings", environment=ENVIRONMENT)
    ring.communicator()
    ring.train(5, BEGIN)
    names = {"key": "times-1", "kind": "times", "policy": "always", "job": "train", "run": "", "host": "*", "ranks": []}
    until_ns = LATER + 60 * 10**9
    request = {**names, "last_step": -1, "start_ns": 0, "until_ns": until_ns, "requested_ns": 1}
    (root / FILE).write_text(json.dumps([request]))
    rounds(reader)
    assert (reader.jobs_in_part, int(ring.header[HeaderField.TIMES_REQUESTED])) == (frozenset(), 0), "it measures all"
    ring.header[HeaderField.UNTIMED_STEPS] = 120
    rounds(reader)
    assert reader.jobs_in_part == {"train"}
    assert int(ring.header[HeaderField.TIMES_REQUESTED]) == until_ns


def test_a_process_whose_transfers_are_recorded_in_part_can_be_asked_too(root, reader):
    ring = FakeRing(root / ".rings", environment=ENVIRONMENT)
    ring.communicator()
    ring.train(5, BEGIN)
    ring.transfer(BEGIN, peer=1)
    rounds(reader)
    assert reader.jobs_in_part == {"train"}
    assert rows(root, Topic.TRANSFER, "peer", "operations") == [(1, 1)]


def test_an_operation_that_never_ends_holds_back_no_ring_that_is_larger_than_a_read(root, reader):
    ring = FakeRing(root / ".rings", environment=ENVIRONMENT, capacity=4 * MOST_READ)
    ring.communicator()
    ring.communicator(hash_=0xBEEF)
    ring.train(1, BEGIN)
    ring.running(BEGIN + 11 * MS, comm=1)
    ring.train(2 * MOST_READ // 5 + 10, BEGIN + 20 * MS, first=1)
    rounds(reader, 6)
    assert int(ring.header[HeaderField.READ]) > MOST_READ


def test_a_process_without_a_launcher_has_the_rank_of_its_largest_communicator(root, reader):
    ring = FakeRing(root / ".rings")
    ring.communicator(hash_=1, rank=1, ranks=2)
    ring.communicator(hash_=2, rank=5, ranks=16)
    ring.train(1, BEGIN)
    rounds(reader)
    envelope = next(iter(batches(root).values()))[0].envelope
    assert (envelope["rank"], envelope["world_size"]) == (5, 16)
    reader.close()
    ring.communicator(hash_=3, rank=1, ranks=32)
    ring.train(1, BEGIN + 100 * MS, first=1)
    again = RingFolder(root / ".rings", root, SpoolLimits(), Clock())
    rounds(again)
    again.close()
    assert {batch.envelope["rank"] for feed in batches(root).values() for batch in feed} == {5}


def test_the_gpu_of_a_process_is_the_one_that_nvml_knows_it_on(root):
    ring = FakeRing(root / ".rings")
    ring.communicator()
    gpus = {}
    folder = RingFolder(root / ".rings", root, SpoolLimits(), Clock(), gpus)
    ring.train(1, BEGIN)
    rounds(folder)
    gpus[os.getpid()] = {"uuid": "GPU-7", "model": "H200"}  # this process holds the lock
    for part in range(1, 3):
        ring.train(1, BEGIN + part * 10**11, first=part)
        folder._due = float("-inf")
        folder.round(LATER + part * 10**11)
    folder.close()
    uuids = [b.envelope["gpu_uuid"] for (topic, *_), feed in batches(root).items() for b in feed if topic == Topic.STEP]
    assert (uuids[0], uuids[-1]) == ("", "GPU-7")


def bad_rings(folder):
    def patch(path, at, number):
        path.write_bytes(path.read_bytes()[:at] + number.to_bytes(8, "little") + path.read_bytes()[at + 8 :])

    for number, damage in enumerate((
        lambda path: path.write_bytes(path.read_bytes()[: HEADER_BYTES + 7]),
        lambda path: path.write_bytes(np.random.default_rng(1).bytes(200_000)),
        lambda path: path.write_bytes(b""),
        lambda path: patch(path, HeaderField.VERSION * 8, 9),
        lambda path: patch(path, HeaderField.CAPACITY * 8, 1 << 60),
        lambda path: patch(path, HeaderField.WRITTEN * 8, 9_999),
        lambda path: (path.rename(folder.parent / "elsewhere"), path.symlink_to(folder.parent / "elsewhere")),
        lambda path: os.link(path, folder.parent / "second-name"),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.unlink(), path.mkdir()),
    )):  # fmt: skip
        ring = FakeRing(folder, created_ns=BEGIN + 1 + number, capacity=64)
        ring.communicator()
        ring.train(1, BEGIN)
        damage(ring.path)
        if ring.path.is_file():
            os.utime(ring.path, (1, 1))
        yield ring


def test_files_that_are_no_rings_are_left_alone_and_the_others_go_on(root, reader, caplog):
    bad = list(bad_rings(root / ".rings"))
    good = FakeRing(root / ".rings")
    good.communicator()
    good.train(3, BEGIN)
    content = {ring.path: ring.path.read_bytes() for ring in bad if ring.path.is_file()}
    rounds(reader, 5)
    assert len(rows(root, Topic.STEP, "step")) == 3
    assert set(reader.blocked) == {ring.path.name for ring in bad}
    assert sum("delete it when its process has ended" in reason for reason in reader.blocked.values()) >= 7
    assert {path: path.read_bytes() for path in content} == content  # not even READ was written
    for ring in bad:
        ring.path.rmdir() if ring.path.is_dir() and not ring.path.is_symlink() else ring.path.unlink()
    rounds(reader)
    assert reader.blocked == {}


def test_a_ring_that_is_damaged_later_is_left_alone(root, reader):
    rings = [FakeRing(root / ".rings", created_ns=BEGIN + number, pid=number + 1) for number in range(3)]
    for ring in rings:
        ring.communicator()
        ring.train(1, BEGIN)
    rounds(reader)
    os.truncate(rings[0].path, 1_000)
    rings[1].header[HeaderField.WRITTEN] = 1 << 63
    rings[2].train(1, BEGIN + 100 * MS, first=1)
    rounds(reader)
    assert set(reader.blocked) == {rings[0].path.name, rings[1].path.name}
    assert len(rows(root, Topic.STEP, "step")) == 4


def test_a_ring_whose_state_is_lost_is_another_source(root):
    ring = FakeRing(root / ".rings", environment=ENVIRONMENT)
    ring.communicator()
    for part in range(2):
        folder = RingFolder(root / ".rings", root, SpoolLimits(), Clock())
        ring.train(3, BEGIN + part * 100 * MS, first=3 * part)
        rounds(folder)
        folder.close()
        for path in (root / ".agent" / "rings").iterdir():
            path.unlink()
    processes = {batch.envelope["process_id"] for feed in batches(root).values() for batch in feed}
    assert len(processes) == 2


def read_until_killed(root):
    """The part of an agent that reads rings, without Kafka, in a child of its own."""
    try:
        folder = RingFolder(root / ".rings", root, SpoolLimits(segment_s=0.05), Clock())
        while True:
            folder._due = float("-inf")
            folder.round(time.time_ns() + 10**12)
    finally:
        os._exit(1)


def test_no_row_is_lost_or_doubled_when_the_agent_is_killed_at_any_moment(root):
    """Steps are written while an agent reads them that is killed again and again."""
    random = np.random.default_rng(7)
    ring = FakeRing(root / ".rings", environment=ENVIRONMENT, capacity=1 << 14)
    for index in range(3):
        ring.communicator(hash_=index + 1)
    step = 0

    def write(steps):
        nonlocal step
        for _ in range(steps):
            if int(ring.header[HeaderField.WRITTEN] - ring.header[HeaderField.READ]) > ring.capacity // 4:
                return  # not faster than this host reads
            start = BEGIN + step * MS
            ring.mark(step, start)
            calls = start + np.arange(1, 6) * MS // 10
            ring.operations(calls, calls + 20_000, calls + 90_000, comm=step % 3)
            step += 1

    for _ in range(25):
        write(int(random.integers(1, 50)))
        if not (child := os.fork()):
            read_until_killed(root)
        until = time.monotonic() + random.random() * 0.15
        while time.monotonic() < until:
            write(int(random.integers(1, 20)))
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    ring.end()
    folder = RingFolder(root / ".rings", root, SpoolLimits(), Clock())
    rounds(folder, 5)
    folder.close()
    assert list((root / ".rings").iterdir()) == []
    dropped = int(ring.header[HeaderField.DROPPED])
    assert dropped == 0
    for feed in batches(root).values():
        assert [batch.envelope["sequence"] for batch in feed] == list(range(len(feed)))
    assert sorted(rows(root, Topic.COLLECTIVE, "step", "ordinal")) == [(s, i) for s in range(step) for i in range(5)]
    assert [number for (number,) in rows(root, Topic.STEP, "step")] == list(range(step - 1))
