"""Progress of processes, from their rings: pure, and of real processes that hang, up to the rank that is named."""

import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest
from support.fake_nccl import COMPILER, FAKE, PROGRAMS
from support.fake_ring import MS, FakeRing
from support.tables import apply_batch
from support.wait_limit import WAIT_S

from drumline.producers.batching.live import BatchWriter, FeedProgress
from drumline.producers.identity import Identity
from drumline.producers.nccl_profiler import library
from drumline.producers.rings.host_rings import RingFolder
from drumline.producers.rings.peers import MOST_COUNTED
from drumline.producers.rings.progress import NO_ANSWER, RasAnswer, progress_table
from drumline.producers.rings.ring_file import COPY_ENGINES, FUNCTIONS, HeaderField
from drumline.producers.rings.ring_rows import RingDerivation
from drumline.producers.rings.state import RingState
from drumline.producers.rings.step_cuts import RingView
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.segment_format import SEGMENT_MAGIC, Frame, scan
from drumline.schemas.batch import decode
from drumline.schemas.bounds.check import check
from drumline.schemas.model import model
from drumline.schemas.topics import Topic
from drumline.streams.hangs.config import HangConfig
from drumline.streams.hangs.stage import HangStage

BEGIN, SECOND = 10**18, 10**9
LATER = BEGIN + 3_600 * SECOND
IDENTITY = Identity("job", "run", 0, 0, 2, "host", "GPU-0", "process", source="nccl")
ALL_REDUCE = FUNCTIONS.index("AllReduce") + 1


class Reader:
    """Publishes the progress of a ring, then derives; keeps the state as JSON, as a killed agent does."""

    def __init__(self, ring):
        self.ring, self.state = ring, RingState()

    def round(self, now_ns=LATER, state="running", ras=NO_ANSWER):
        self.state = RingState.from_json(json.loads(json.dumps(self.state.to_json())))
        end, batches = int(self.ring.header[HeaderField.WRITTEN]), []
        records = self.ring.records[np.arange(self.state.position, end) % self.ring.capacity].copy()
        view = RingView(records, self.ring.comms.copy(), now_ns, int(self.ring.header[HeaderField.DROPPED]))
        writer = BatchWriter(IDENTITY, lambda topic, key, batch: batches.append(batch))
        if (table := progress_table(view, self.state, state, ras)).rows:
            writer.write(Topic.PROGRESS, table, FeedProgress(now_ns, 0))
        RingDerivation(writer, self.state).advance(view)
        self.ring.header[HeaderField.READ] = self.state.position
        [batch] = [batch for batch in batches if batch.topic == Topic.PROGRESS] or [None]
        if batch is None:
            return []
        check(batch, now_ns // 10**6)
        texts = {
            name: batch.strings(name, f"{name}s").tolist()
            for name in ("communicator", "operation", "datatype", "last_operation", "state")
        } | {"ras_json": batch.strings("ras_json", "ras_answers").tolist()}
        numbers = {name: values.tolist() for name, values in batch.columns.items() if name not in texts}
        rows = zip(*(texts | numbers).values(), strict=True)
        return sorted((dict(zip(texts | numbers, row, strict=True)) for row in rows), key=lambda row: row["peer"])


@pytest.fixture
def ring(tmp_path):
    ring = FakeRing(tmp_path)
    ring.communicator()
    return ring


def counts(row):
    return row["called"], row["begun"], row["ended"]


def described(rows):
    return {(row["peer"], row["operation"]): counts(row) for row in rows}


def test_collectives_are_counted_from_the_beginning_however_often_the_ring_is_read(ring):
    reader, whole = Reader(ring), 0
    for part in range(4):
        ring.train(3, BEGIN + part * 10**9, first=3 * part)
        whole += 12
        [row] = reader.round()
        assert counts(row) == (whole, whole, whole)
        assert (row["communicator"], row["operation"], row["exact"], row["closed"]) == (
            "0000000000c0ffee",
            "AllReduce",
            1,
            0,
        )
    assert reader.state.position > 0
    ring.running(BEGIN + 5 * 10**9, channels=2)
    ring.running(BEGIN + 6 * 10**9, channels=2, function="AllGather", count=77)
    [row] = reader.round()
    assert counts(row) == (whole + 2, whole, whole)
    assert (row["operation"], row["elements"], row["datatype"], row["bytes"]) == ("AllReduce", 1_000, "float32", 4_000)
    assert row["quiet_ns"] == LATER - (BEGIN + 6 * 10**9)
    assert row["step"] == 12


def test_an_operation_that_began_on_the_gpu_and_the_one_before_it_are_described(ring):
    ring.operations(BEGIN, BEGIN + MS, BEGIN + 2 * MS, function="AllGather", count=5)
    at = ring.running(BEGIN + 3 * MS)
    ring.records["progress"][at] += 1 << 16
    [row] = Reader(ring).round()
    assert counts(row) == (2, 2, 1)
    assert (row["operation"], row["last_operation"], row["last_elements"]) == ("AllReduce", "AllGather", 5)


def test_a_communicator_without_operations_is_published_and_a_closed_one_for_some_minutes(ring):
    ring.communicator(hash_=7, rank=1, ranks=4)
    ring.comms["created_ns"] = BEGIN
    reader = Reader(ring)
    rows = reader.round()
    assert {(row["communicator"][-1], row["comm_rank"], row["ranks"], row["operation"]) for row in rows} == {
        ("e", 0, 2, ""), ("7", 1, 4, ""),
    }  # fmt: skip
    assert {row["quiet_ns"] for row in rows} == {LATER - BEGIN}
    ring.comms["closed_ns"][1] = LATER - 60 * SECOND
    assert {row["communicator"][-1]: row["closed"] for row in reader.round()} == {"e": 0, "7": 1}
    assert [row["communicator"][-1] for row in reader.round(LATER + 3_600 * SECOND)] == ["e"]


def test_sends_and_receives_that_do_not_end_have_a_row_for_each_peer(ring):
    for peer in (1, 1, 0):  # 0 is the rank itself
        ring.running(BEGIN, function="Recv", peer=peer)
    for _ in range(5):
        ring.running(BEGIN, function="Send", peer=1)
    assert described(Reader(ring).round()) == {(-1, ""): (0, 0, 0), (1, "Recv"): (2, 0, 0), (1, "Send"): (5, 0, 0)}


def test_sends_and_receives_that_are_not_measured_are_counted_by_peer(ring):
    reader = Reader(ring)
    for step in range(4):  # steps 2 and 3 are not measured
        ring.untimed = step >= 2
        ring.mark(2, BEGIN + step * SECOND, step)
        for function, peer in (("Recv", 1), ("Send", 1), ("Send", 1), ("Send", 0)):
            at = BEGIN + step * SECOND + MS
            ring.running(at, function=function, peer=peer) if ring.untimed else ring.operations(
                at, at + MS, at + 2 * MS, function=function, peer=peer
            )
        rows = described(reader.round())
        assert rows == ({(-1, ""): (0, 0, 0)} if step < 2 else {
            (-1, ""): (0, 0, 0), (1, "Recv"): (step + 1, 2, step + 1), (1, "Send"): (2 * step + 2, 4, 2 * step + 2),
        })  # fmt: skip
    assert reader.state.position > 0


def test_more_peers_than_can_be_kept_make_their_counts_inexact(ring):
    reader = Reader(ring)
    ring.untimed = True
    ring.mark(2, BEGIN, 0)
    for peer in range(1, 2 * MOST_COUNTED):
        ring.running(BEGIN + MS, function="Send", peer=peer)
    ring.mark(2, BEGIN + SECOND, 1)
    reader.round()
    rows = reader.round()
    assert len(rows) == 1 + MOST_COUNTED
    assert {row["exact"] for row in rows if row["peer"] >= 0} == {0}


def test_communicators_that_were_closed_make_room_for_the_peers_of_others(ring):
    reader = Reader(ring)
    ring.untimed = True
    for index in range(3):  # of one entry of the table
        ring.comms["id"][0] = 0xC0FFEE + index
        ring.mark(2, BEGIN + 2 * index * SECOND, 2 * index)
        for peer in range(1, 1 + MOST_COUNTED // (1 if index else 2) + (index == 1)):
            ring.running(BEGIN + 2 * index * SECOND + MS, function="Send", peer=peer)
        ring.mark(2, BEGIN + (2 * index + 1) * SECOND, 2 * index + 1)
        reader.round()
        rows = reader.round()
        assert {row["exact"] for row in rows if row["peer"] >= 0} == {int(index != 1)}
        assert list(reader.state.peers) == [str(0xC0FFEE + index)]


def test_what_nccl_does_not_measure_counts_as_ended_and_not_as_begun(ring):
    reader = Reader(ring)
    ring.train(4, BEGIN, untimed=range(2, 9))
    assert counts(reader.round()[0]) == (16, 8, 16)
    ring.train(3, BEGIN + SECOND, first=4, untimed=range(2, 9))
    assert counts(reader.round()[0]) == (28, 8, 28)
    assert reader.state.position == int(ring.header[HeaderField.WRITTEN])
    ring.running(BEGIN + 2 * SECOND, function="AllGather", count=77)
    [row] = reader.round()
    assert counts(row) == (29, 8, 29)
    assert (row["operation"], row["elements"], row["last_operation"]) == ("AllGather", 77, "AllReduce")
    ring.untimed = False
    ring.train(2, BEGIN + 3 * SECOND, first=9)
    assert counts(reader.round()[0]) == (37, 37, 37)


@pytest.mark.parametrize("is_read", [False, True])
def test_an_operation_with_an_older_ones_times_counts_as_ended_and_not_as_begun(ring, is_read):
    """NCCL reports such times before the operation runs: they are no sign of its begin or end."""
    reader = Reader(ring)
    ring.train(1, BEGIN)
    at = ring.operations(BEGIN + 20 * MS, 0, BEGIN + 20 * MS)
    ring.records["progress"][at] = (at.astype(np.uint64) + 1) << 32 | np.uint64(2 << 24 | 2 << 8)
    if is_read:
        ring.mark(2, BEGIN + 30 * MS)
        reader.round()
        assert reader.state.position == int(ring.header[HeaderField.WRITTEN])
    assert counts(reader.round()[0]) == (5, 4, 5)


@pytest.mark.parametrize(("started", "expected"), [(0, (5, 4, 4)), (8, (5, 5, 4))])
def test_an_operation_of_which_some_channels_report_older_times_has_not_ended_before_its_own(ring, started, expected):
    """16 of 24 channels report at once; the others run, or have not begun."""
    reader = Reader(ring)
    ring.train(1, BEGIN)
    at = ring.running(BEGIN + 20 * MS, channels=24)
    ring.records["progress"][at] |= np.uint64(16 << 24 | started << 16 | 16 << 8)
    assert counts(reader.round()[0]) == expected


@pytest.mark.parametrize("is_read", [False, True])
def test_a_collective_by_copy_engines_counts_as_called_and_ended_and_keeps_no_step_from_its_rows(ring, is_read):
    reader = Reader(ring)
    ring.train(1, BEGIN)
    ring.running(BEGIN + 11 * MS, protocol=COPY_ENGINES)
    assert counts(reader.round()[0]) == (5, 4, 5)
    ring.train(1, BEGIN + 10 * MS, first=1)
    if is_read:
        reader.round()
        assert reader.state.position == int(ring.header[HeaderField.WRITTEN]), "no step waits for its end"
    assert counts(reader.round()[0]) == (9, 9, 9)


def test_what_was_not_measured_before_a_measured_step_is_known_by_the_mark_before_it(ring):
    reader = Reader(ring)
    ring.train(1, BEGIN, untimed={1})
    assert counts(reader.round()[0]) == (4, 4, 4)
    for call in range(4):
        ring.running(BEGIN + (11 + call) * MS)
    ring.untimed = False
    ring.mark(2, BEGIN + 20 * MS)
    reader.round()
    assert counts(reader.round()[0]) == (8, 4, 8)


@pytest.mark.parametrize("way", ["dropped", "paused", "lost state"])
def test_counts_are_not_exact_when_operations_were_not_recorded(ring, way):
    reader = Reader(ring)
    ring.train(1, BEGIN)
    if way == "dropped":
        ring.header[HeaderField.DROPPED] = 1
    elif way == "paused":
        ring.record(False, BEGIN + 60 * MS)
    else:
        reader.state.uncounted = True
    for _ in range(2):
        assert [row["exact"] for row in reader.round()] == [0]


def test_whatever_a_ring_holds_is_inside_the_contract(ring):
    random = np.random.default_rng(3)
    ring.comms[:].view(np.uint8)[:] = random.integers(0, 256, ring.comms.nbytes, np.uint8)
    at = ring.operations(np.full(64, BEGIN), BEGIN, BEGIN)
    kept = ring.records[at]
    ring.records[at] = np.frombuffer(random.bytes(kept.nbytes), kept.dtype)
    for name in ("number", "kind"):
        ring.records[name][at] = kept[name]
    ring.records["comm"][at] = np.arange(64)
    ring.records["generation"][at] = ring.comms["generation"][:64]
    assert len(Reader(ring).round()) > 0


def test_a_ring_without_communicators_has_no_progress(tmp_path):
    ring = FakeRing(tmp_path)
    ring.train(1, BEGIN)
    ring.header[HeaderField.COMMS] = 0
    assert Reader(ring).round() == []


WAYS = {
    "sleep": {1: "not_called"}, "stop": {1: "stopped"}, "kill": {1: "gone"}, "exit": {1: "gone"},
    "gpu": {1: "not_started"}, "operation": {0: "mismatch", 1: "mismatch"}, "size": {0: "mismatch", 1: "mismatch"},
    "order": {0: "deadlock", 1: "deadlock"},
}  # fmt: skip
STEPS = 6


class Agent:
    """The part of an agent that reads rings, and a hang stage that gets what it spools, in real time."""

    def __init__(self, root, config):
        self.root, self.stage = root, HangStage({}, config)
        self.folder = RingFolder(root / ".rings", root, SpoolLimits(), time.monotonic)
        self.seen, self.results = set(), {}

    def round(self):
        self.folder._due = float("-inf")
        self.folder.round(time.time_ns())
        for segment in self.root.glob("[!.]*/*.seg"):
            for frame in scan(segment.read_bytes()[len(SEGMENT_MAGIC) :], complete=True):
                if isinstance(frame, Frame) and frame.topic == Topic.PROGRESS:
                    batch = decode(model(frame.topic), frame.body)
                    place = batch.envelope["process_id"], batch.envelope["sequence"]
                    if place not in self.seen:
                        self.seen.add(place)
                        self._take(apply_batch(self.stage, batch, 0, time.time_ns()))
        self._take(self.stage.on_tick(time.time_ns(), True))

    def _take(self, batches):
        for batch in batches:
            reasons = batch.strings("reason", "reasons").tolist()
            named = dict(zip(batch.columns["rank"].tolist(), reasons, strict=True))
            operation = batch.strings("operation", "operations")[0], int(batch.columns["number"][0])
            self.results[batch.envelope["run"]] = batch.envelope["state"], named, operation
            self.stage.mark_sent(batch)


@pytest.fixture(scope="module")
def fake_nccl(tmp_path_factory):
    """Starts a rank of a fake NCCL's scenario with the real plugin."""
    if library.path() is None:
        pytest.skip("drumline was installed without a C compiler")
    program = tmp_path_factory.mktemp("fake") / "fake-nccl"
    subprocess.run([*COMPILER, "-o", program, PROGRAMS / "fake_nccl.c", *FAKE], check=True)

    def start(scenario, root, **variables):
        folder = {"DRUMLINE_RINGS__FOLDER": root / ".rings", "PATH": os.environ["PATH"]}
        environment = {name: str(value) for name, value in (variables | folder).items()}
        return subprocess.Popen([program, str(library.path()), "5", scenario], env=environment)

    return start


def test_a_stage_of_a_pipeline_that_hangs_while_nccl_does_not_measure_is_named(tmp_path, fake_nccl):
    agent, ranks = Agent(tmp_path, HangConfig(standing_ns=2 * SECOND, join_ns=SECOND)), range(3)
    names = {"DRUMLINE_JOB": "j", "DRUMLINE_RUN": "r", "WORLD_SIZE": 3, "STEPS": 130}
    processes = [fake_nccl("pipeline", tmp_path, RANK=rank, **names) for rank in ranks]
    try:
        until = time.monotonic() + WAIT_S
        while not agent.results and time.monotonic() < until:
            agent.round()
            time.sleep(0.3)
        _, named, (operation, _) = agent.results["r"]
        assert named == {-1: "not_called", 1: "not_called"}
        assert operation in ("Recv", "Send")  # one rank receives from it, another one sends to it
    finally:
        for process in processes:
            process.kill()
            process.wait()
        agent.folder.close()


def test_real_processes_that_hang_in_any_way_are_named(tmp_path, fake_nccl):
    root = tmp_path / "spool"
    root.mkdir()
    agent = Agent(root, HangConfig(standing_ns=2 * SECOND, join_ns=SECOND))
    begin_ms = time.time_ns() // MS + 500
    processes = {}
    expected = {how: {-1: next(iter(reasons.values())), **reasons} for how, reasons in WAYS.items()}
    try:
        for how in WAYS:
            for rank in range(2):
                variables = {"RANK": rank, "WORLD_SIZE": 2, "BEGIN_MS": begin_ms, "STEPS": STEPS, "HOW": how}
                variables |= {"DRUMLINE_JOB": how, "DRUMLINE_RUN": how}
                processes[how, rank] = fake_nccl("hang", root, **variables)
        until = time.monotonic() + WAIT_S
        while {how: named for how, (_, named, _) in agent.results.items()} != expected and time.monotonic() < until:
            agent.round()
            for process in processes.values():
                process.poll()
            time.sleep(0.3)
        assert {how: named for how, (_, named, _) in agent.results.items()} == expected
        assert {state for state, _, _ in agent.results.values()} == {"standing"}
        number = {how: operation for how, (_, _, operation) in agent.results.items()}
        assert set(number.values()) == {("AllReduce", STEPS + 1)}
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
        agent.folder.close()


def test_what_ras_stated_is_published_until_the_process_moves(ring):
    ring.communicator(hash_=7, rank=1, ranks=4)
    ring.running(BEGIN, function="Recv", peer=1)
    ras = RasAnswer(BEGIN + 20 * SECOND, {"0000000000c0ffee": "stated", "00000000000000ff": "of another"})
    rows = Reader(ring).round(BEGIN + 30 * SECOND, ras=ras)
    stated = {(row["communicator"][-1], row["peer"]): row["ras_json"] for row in rows}
    assert stated == {("e", -1): "stated", ("e", 1): "", ("7", -1): ""}
    ring.running(BEGIN + 25 * SECOND)
    assert {row["ras_json"] for row in Reader(ring).round(BEGIN + 40 * SECOND, ras=ras)} == {""}
