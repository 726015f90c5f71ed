"""The decoder's session, in this process: what it publishes of a buffer, also when the decoder dies."""

import ctypes
import json
import os
import shutil
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.fakes.cupti import SIZES, RawBuffer, record
from support.labs.collected import batches, rows, sequences_are_whole
from support.labs.spool import Follower

from drumline.producers.activity.table import Table
from drumline.producers.decoder import cupti_layout, string_cache
from drumline.producers.decoder.cupti_decode import UNFINISHED, Decoder, find_records
from drumline.producers.decoder.open_marks import MOST_OPEN
from drumline.producers.decoder.remote_memory import NotAllowed, RemoteMemory
from drumline.producers.decoder.session import Session
from drumline.producers.ipc.buffer_pool import DONE, FREE, HEADER_BYTES, KINDS, LENT, STATE, BufferPool, Header
from drumline.producers.ipc.events import MARK
from drumline.producers.live_matching.launch_rows import LaunchRows
from drumline.producers.rings.ring_file import HeaderField
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.envelope import read_envelope
from drumline.producers.spool.segment_format import DATA, KEPT
from drumline.schemas.topics import KEPT_TOPICS, Topic

RAW = RawBuffer("ddp_steps").relocate()
ALL_SIZES = [SIZES.get(kind, 0) for kind in range(KINDS)]
COPIES = 3
ONCE = {kind: sum(k == kind for k, _ in RAW.positions) for kind in (1, 2, 10)}


def add(pool, data):
    """More records behind those of the pool's buffer."""
    at = pool.header[STATE + 1]
    begin = HEADER_BYTES + at
    pool.memory[begin : begin + len(data)] = data.tobytes()
    pool.header[STATE + 1] = at + len(data)


class Killed(BaseException):
    """The end of a decoder, between two instructions."""


@pytest.fixture
def pool():
    """A completed buffer of more kernels than a batch takes."""
    created = BufferPool(2, 2 << 20)
    created.header[Header.MODE] = 1
    for kind, size in SIZES.items():
        created.sizes[kind] = size
    now = time.time_ns() - RAW.span()[1]
    data = np.concatenate([RAW.shifted(now, i * 100_000) for i in range(COPIES)])
    created.memory[HEADER_BYTES : HEADER_BYTES + len(data)] = data.tobytes()
    created.header[Header.CUPTI_DROPPED] = 7
    created.header[STATE] = DONE
    created.header[STATE + 1] = len(data)
    return created


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_decoder_killed_in_the_middle_of_a_buffer_leaves_the_rest_of_it_to_the_next(tmp_path, pool, after):
    environment = {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"), "DRUMLINE_RUN": "r"}
    first = Session(pool, os.getpid(), environment, time.time_ns())
    count = pool.count_sent

    def killed(number):
        count(number)
        if pool.sent(number) == after:
            raise Killed

    pool.count_sent = killed
    if after:
        with pytest.raises(Killed):
            first.tick(time.time_ns())
        first._output.spool.close()
    pool.count_sent = count
    second = Session(pool, os.getpid(), environment, time.time_ns())
    second.tick(time.time_ns())
    assert pool.done() == []
    assert pool.sent(0) == FREE - DONE
    second.finish(time.time_ns())
    parts = [batches(tmp_path, folder)[0] for folder in (tmp_path / "spool").iterdir()]
    total = rows([batch for published in parts for batch in published])
    assert sum(batch.envelope["dropped_before"] for published in parts for _, _, batch in published) == 7, (
        "reported once"
    )
    assert total["gpu.kernel.v1"] == COPIES * ONCE[10] > 4_096
    assert total["gpu.memcpy.v1"] == COPIES * (ONCE[1] + ONCE[2])
    for published in parts:
        sequences_are_whole(published)


@pytest.mark.parametrize(("policy", "kind"), [("rollup", KEPT), ("always", DATA)])
def test_rows_of_policy_rollup_are_marked_and_counted_as_kept(tmp_path, pool, policy, kind):
    root = tmp_path / "spool"
    session = Session(pool, os.getpid(), {"DRUMLINE_SPOOL__ROOT": str(root), "DRUMLINE_RUN": "r"}, time.time_ns())
    session.event(b"J" + json.dumps({"event": "attached", "pid": os.getpid(), "policy": policy}).encode())
    session.event(MARK.pack(b"M", 2, 1 << 31, time.time_ns()) + b"step 1")
    session.event(MARK.pack(b"M", 4, 1 << 31, time.time_ns() + 1) + b"")
    session.tick(time.time_ns())
    session._output.report_losses(Counter({Topic.KERNEL: 5}), time.time_ns())
    session.finish(time.time_ns())
    [folder] = map(SpoolDirectory, root.iterdir())
    collector = folder.identity().process["collector"]
    frames = Follower(folder).read()
    losses = [f for f in frames if read_envelope(f.topic, f.body)["dropped_before"]]
    assert {(frame.kind, frame.rows) for frame in losses} == {(DATA, 0)}, "they leave the host"
    frames = [frame for frame in frames if frame not in losses]
    assert {frame.kind for frame in frames if frame.topic in KEPT_TOPICS} == {kind}
    assert {frame.kind for frame in frames if frame.topic not in KEPT_TOPICS} <= {DATA}
    kept = {"gpu.kernel.v1": COPIES * ONCE[10], "gpu.memcpy.v1": COPIES * (ONCE[1] + ONCE[2])}
    names = {"gpu.kernel.v1": "kept_kernels", "gpu.memcpy.v1": "kept_copies"}
    counted = {topic: int(collector[name]) for topic, name in names.items() if name in collector}
    assert counted == (kept if policy == "rollup" else {})


def test_the_gpu_that_kernels_ran_on_counts_more_than_what_was_known_before_them(tmp_path, pool):
    environment = {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"), "DRUMLINE_RUN": "r", "LOCAL_RANK": "1"}
    session = Session(pool, os.getpid(), environment, time.time_ns())
    gpus = [{"uuid": "GPU-used", "model": "a"}, {"uuid": "GPU-of-the-local-rank", "model": "a"}]
    session.event(b"J" + json.dumps({"event": "attached", "pid": os.getpid(), "gpus": gpus}).encode())
    session.event(MARK.pack(b"M", 2, 1 << 31, time.time_ns()) + b"step 1")  # a step of the API, before any kernel
    session.tick(time.time_ns())
    session.finish(time.time_ns())
    published, process = batches(tmp_path)
    assert {batch.envelope["gpu_uuid"] for _, _, batch in published} == {process["gpu_uuid"]} == {"GPU-used"}


def test_names_of_weeks_of_steps_are_not_kept_and_none_is_mistaken_for_another(tmp_path, pool, monkeypatch):
    monkeypatch.setattr(string_cache, "_MAX", 10)
    environment = {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"), "DRUMLINE_RUN": "r"}
    begin = time.time_ns()
    session = Session(pool, os.getpid(), environment, begin)
    for step in range(60):
        now = begin + step * 100_000_000
        for flags, at, name in ((2, now, b"step %d" % step), (4, now + 90_000_000, b"")):
            session.event(MARK.pack(b"M", flags, (1 << 31) + step, at) + name)
        session.tick(now)
        assert len(session._reader._decoder.labels.strings) <= 12
    session.finish(now + 1_000_000_000)
    published, _ = batches(tmp_path)
    emitted = [
        (name, step)
        for topic, _, batch in published
        if topic == "gpu.range.v1" and batch.rows
        for name, step in zip(batch.strings("name", "names"), batch.columns["step"].tolist(), strict=True)
        if name.startswith("step")
    ]
    assert emitted == [(f"step {step}", step) for step in range(60)]


def test_a_process_that_may_not_be_read_is_in_the_data_with_what_it_lost_and_warns_once(
    tmp_path, pool, monkeypatch, capsys
):
    def forbidden(self, addresses, sizes):
        raise NotAllowed(1, "process_vm_readv of 77: Operation not permitted")

    monkeypatch.setattr(RemoteMemory, "read", forbidden)
    environment = {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"), "DRUMLINE_RUN": "r"}
    session = Session(pool, os.getpid(), environment, time.time_ns())
    state = [pool.header[STATE + i] for i in range(2)]
    for _ in range(2):  # two buffers
        pool.header[STATE], pool.header[STATE + 1] = state
        session.tick(time.time_ns())
    session.finish(time.time_ns())
    assert capsys.readouterr().err.count("Operation not permitted") == 1
    published, process = batches(tmp_path)
    lost = dict.fromkeys(("gpu.kernel.v1", "gpu.memcpy.v1"), 0)
    for topic, _, batch in published:
        assert not batch.rows
        lost[topic] = lost.get(topic, 0) + batch.envelope["dropped_before"]
    assert lost == {"gpu.kernel.v1": 7 + 2 * COPIES * ONCE[10], "gpu.memcpy.v1": 2 * COPIES * (ONCE[1] + ONCE[2])}
    assert "not permitted" in process["collector"]["problem: decode"]


def test_kernels_as_long_as_no_cupti_known_writes_them_are_counted_and_reported_once(
    tmp_path, pool, monkeypatch, capsys
):
    longer = replace(cupti_layout.LAYOUTS[cupti_layout.KERNEL], sizes=())
    monkeypatch.setitem(cupti_layout.LAYOUTS, cupti_layout.KERNEL, longer)
    environment = {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"), "DRUMLINE_RUN": "r"}
    session = Session(pool, os.getpid(), environment, time.time_ns())
    session.tick(time.time_ns())
    session.finish(time.time_ns())
    assert capsys.readouterr().err.count("this CUPTI is newer than drumline") == 1
    published, _ = batches(tmp_path)
    kernels = [batch for topic, _, batch in published if topic == "gpu.kernel.v1"]
    assert sum(batch.envelope["dropped_before"] for batch in kernels) == 7 + COPIES * ONCE[10]
    assert not rows(published)["gpu.kernel.v1"]
    assert rows(published)["gpu.memcpy.v1"] == COPIES * (ONCE[1] + ONCE[2])


def test_a_spool_that_becomes_unwritable_while_the_job_runs_is_reported_once(tmp_path, pool, capsys):
    environment = {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"), "DRUMLINE_RUN": "r"}
    session = Session(pool, os.getpid(), environment, time.time_ns())
    session.tick(time.time_ns())
    assert capsys.readouterr().err == ""
    shutil.rmtree(tmp_path / "spool")
    (tmp_path / "spool").write_text("")
    session.finish(time.time_ns())  # its rows are to be counted as lost, and cannot be
    [warning] = capsys.readouterr().err.splitlines()
    assert f"nothing is recorded in {tmp_path / 'spool'}" in warning


@pytest.fixture
def stepped_session(tmp_path):
    """A session to which a job reports steps of 100 ms, each once it is over, with a kernel in it (`ran`: of which
    kind a record is in it; `marks`: whether steps are reported); and its spool."""
    environment = {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"), "DRUMLINE_RUN": "r"}
    pool, begin = BufferPool(2, 2 << 20), time.time_ns()
    session = Session(pool, os.getpid(), environment, begin)

    def recording(on, after_ms, reason="as asked"):
        event = {"event": "recording", "on": on, "time_ns": begin + after_ms * 1_000_000, "why": reason}
        session.event(b"J" + json.dumps(event).encode())

    name, decode = ctypes.create_string_buffer(b"gemm"), Decoder(RemoteMemory(os.getpid())).decode

    def on_gpu(kind, start_ns):
        named = {"name": ctypes.addressof(name)} if kind == cupti_layout.KERNEL else {}
        data = record(kind, start=start_ns, end=start_ns + 20_000_000, **named)
        decoded = decode(find_records(data, ALL_SIZES), ALL_SIZES)
        return decoded.kernels, decoded.copies

    def steps(numbers, ran=cupti_layout.KERNEL, marks=True):
        for number in numbers:
            if ran:
                now = begin + (number * 100 + 10) * 1_000_000
                session._begin(now).live.add(*on_gpu(ran, now), Table({}), Table({}))
            for flags, at in ((2, number * 100), (4, number * 100 + 99)) if marks else ():
                mark = MARK.pack(b"M", flags, number + 1, begin + at * 1_000_000)
                session.event(mark + (f"step {number}".encode() if flags == 2 else b""))
            for ms in (50, 100):
                session.tick(begin + (number * 100 + ms) * 1_000_000)

    def published_steps(finish=True):
        if finish:
            session.finish(begin + 70_000_000_000)
        published, _ = batches(tmp_path)
        steps = [batch.columns for topic, _, batch in published if topic == "gpu.step.v1" and batch.rows]
        return {n: s for c in steps for n, s in zip(c["step"].tolist(), c["skipped"].tolist(), strict=True)}

    return pool, begin, recording, steps, published_steps


@pytest.mark.parametrize("gap_ms", [10, 60, 300])
def test_a_short_break_in_recording_costs_no_step_before_it(stepped_session, gap_ms):
    _, _, recording, steps, published_steps = stepped_session
    recording(True, 0)
    steps(range(50))
    recording(False, 5_000)
    recording(True, 5_000 + gap_ms)
    steps(range(55, 80))
    published = published_steps()
    assert {*range(50), *range(55, 80)} == set(published)
    assert not any(published.values())


@pytest.mark.parametrize("first", [None, 0, 2_500])
def test_steps_before_anything_was_recorded_are_not_published(stepped_session, first):
    """Of policy off, or while another profiler has CUPTI from the start."""
    _, _, recording, steps, published_steps = stepped_session
    if first is not None:
        recording(False, first, "another profiler holds CUPTI")
    steps(range(50), ran=0)
    recording(True, 5_000)
    steps(range(50, 80))
    assert published_steps() == dict.fromkeys(range(50, 80), False)


def test_copies_between_gpus_are_counted_and_nothing_else(tmp_path, pool):
    for _ in range(2):
        add(pool, record(cupti_layout.PEER_COPY))
    session = Session(pool, os.getpid(), {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool")}, time.time_ns())
    session.tick(time.time_ns())
    session.finish(time.time_ns())
    published, process = batches(tmp_path)
    assert rows(published)["gpu.kernel.v1"] == COPIES * ONCE[10]
    assert process["collector"]["peer_copies"] == "2"
    assert not [name for name in process["collector"] if name.startswith("problem")]
    assert sum(batch.envelope["dropped_before"] for _, _, batch in published) == 7


def test_copies_between_gpus_do_not_show_that_it_is_recorded(stepped_session):
    pool, _, _, steps, published_steps = stepped_session
    steps(range(10), ran=0)
    size = SIZES[cupti_layout.PEER_COPY]
    pool.sizes[cupti_layout.PEER_COPY] = size
    pool.memory[HEADER_BYTES] = cupti_layout.PEER_COPY
    pool.header[STATE + 1], pool.header[STATE] = size, DONE
    steps(range(10, 60), ran=0)
    assert published_steps() == {}


@pytest.mark.parametrize("kind", [cupti_layout.MEMCPY, cupti_layout.MEMSET])
def test_steps_of_copies_alone_are_skipped(stepped_session, kind):
    """CUPTI may have no kernel of a process any more, though its copies come."""
    _, _, recording, steps, published_steps = stepped_session
    recording(True, 0)
    steps(range(30))
    steps(range(30, 120), ran=kind)
    steps(range(120, 150))
    published = published_steps()
    skipped = {step for step in published if published[step]}
    assert set(range(30, 120)) <= skipped <= set(range(29, 121)), "and those beside them"


def test_steps_before_the_first_kernel_since_recording_began_are_skipped(stepped_session):
    """CUPTI may have none of a process, ever, though its copies and markers come."""
    _, _, recording, steps, published_steps = stepped_session
    recording(True, 0)
    steps(range(20))
    recording(False, 2_000)
    recording(True, 2_500)
    steps(range(25, 45), ran=cupti_layout.MEMCPY)
    steps(range(45, 60))
    published = published_steps()
    assert [step for step in published if published[step]] == [*range(25, 45), 45], "the first may have begun before"


def test_the_header_has_the_time_since_which_steps_have_no_kernels(stepped_session):
    pool, begin, recording, steps, _ = stepped_session

    def no_kernels_ms():
        since = pool.header[Header.NO_KERNELS_SINCE_NS]
        return (since - begin) // 1_000_000 if since else 0

    recording(True, 0)
    steps(range(30))
    assert no_kernels_ms() == 0
    steps(range(30, 80), ran=cupti_layout.MEMCPY)
    assert no_kernels_ms() == 3_000
    steps(range(80, 110))
    assert no_kernels_ms() == 0
    steps(range(110, 140), ran=cupti_layout.MEMCPY)
    assert no_kernels_ms() == 11_000
    recording(False, 14_000)
    recording(True, 14_010)
    steps(range(141, 150))
    assert no_kernels_ms() == 0


def test_a_decoder_that_follows_another_forgets_what_that_one_knew_of_kernels(pool):
    pool.header[Header.NO_KERNELS_SINCE_NS] = 1
    Session(pool, os.getpid(), {}, time.time_ns())
    assert pool.header[Header.NO_KERNELS_SINCE_NS] == 0


def test_kernels_of_no_step_show_that_there_are_some(stepped_session):
    pool, _, recording, steps, _ = stepped_session
    recording(True, 0)
    steps(range(10))
    steps(range(10, 15), ran=cupti_layout.MEMCPY)
    steps(range(15, 32), marks=False)
    assert pool.header[Header.NO_KERNELS_SINCE_NS] == 0


def test_steps_whose_kernels_may_still_come_are_not_counted_as_without(stepped_session):
    pool, begin, recording, steps, _ = stepped_session
    recording(True, 0)
    steps(range(10))
    pool.header[STATE] = LENT  # a kernel runs
    pool.header[STATE + 1] = begin + 1_000_000_000
    for second in range(1, 60):
        steps(range(second * 10, second * 10 + 10), ran=0)
        assert pool.header[Header.NO_KERNELS_SINCE_NS] == 0


def test_copies_whose_times_cannot_be_are_counted_and_cost_no_step(stepped_session, tmp_path):
    pool, _, recording, steps, published_steps = stepped_session
    recording(True, 0)
    pool.sizes[cupti_layout.MEMCPY] = SIZES[cupti_layout.MEMCPY]
    add(pool, record(cupti_layout.MEMCPY))
    for step in range(60):
        pool.header[STATE] = DONE
        steps([step])
    assert not any(published_steps().values())
    assert sum(batch.envelope["dropped_before"] for _, _, batch in batches(tmp_path)[0]) == 60


def test_records_show_that_it_is_recorded_where_the_event_was_lost(stepped_session):
    pool, _, _, steps, published_steps = stepped_session
    steps(range(20), ran=0)
    pool.header[STATE] = DONE
    steps(range(20, 80))
    published = published_steps()
    assert set(published) == set(range(21, 80))
    assert not any(published.values())


def test_a_buffer_that_does_not_come_back_costs_the_steps_since_it_was_asked_for(stepped_session):
    pool, begin, recording, steps, published_steps = stepped_session
    recording(True, 0)
    steps(range(10))
    pool.header[STATE] = LENT
    pool.header[STATE + 1] = begin + 1_000_000_000
    steps(range(10, 80))
    for second in range(8, 60):
        recording(False, second * 1_000, "CUPTI refused")
        steps([second * 10])
    published = published_steps(finish=False)
    assert set(published) == set(range(80)), "steps after the end of recording are none of its"
    assert [step for step in published if not published[step]] == list(range(9))


def test_steps_whose_records_came_in_another_profilers_buffer_are_skipped_once(stepped_session):
    pool, begin, recording, steps, published_steps = stepped_session
    recording(True, 0)
    steps(range(30))
    pool.header[Header.REGAINED_NS] = begin + 3_000_000_000  # it has ended, and CUPTI goes on with its buffer
    steps(range(30, 33))
    pool.header[Header.FOREIGN] += 1
    steps(range(33, 60))
    published = published_steps()
    skipped = {step for step in published if published[step]}
    assert {30, 31, 32} <= skipped <= set(range(28, 39)), "it was noticed within half a second"


def test_a_decoder_that_follows_another_does_not_skip_steps_for_what_that_one_knew(stepped_session):
    pool, _, recording, steps, published_steps = stepped_session
    pool.header[Header.FOREIGN] = pool.header[Header.FOREIGN_SEEN] = 1
    recording(True, 0)
    steps(range(30))
    assert not any(published_steps().values())


def test_steps_during_which_a_buffer_could_not_be_read_are_skipped(stepped_session, monkeypatch):
    pool, _, recording, steps, published_steps = stepped_session
    recording(True, 0)
    steps(range(30))
    monkeypatch.setattr("drumline.producers.decoder.cupti_decode.Decoder.decode", lambda *_: 1 / 0)
    pool.memory[HEADER_BYTES], pool.sizes[10] = 10, 4096  # a kernel
    pool.header[STATE + 1], pool.header[STATE] = 4096, DONE
    steps(range(30, 60))
    published = published_steps()
    skipped = {step for step in published if published[step]}
    assert 30 in skipped
    assert len(skipped) <= 4


def of_kind(kind):
    data = record(cupti_layout.KERNEL)
    data.view("<u4")[0] = kind
    return data


@pytest.mark.parametrize("kind", [cupti_layout.KERNEL | UNFINISHED, 77], ids=["unfinished", "no such kind"])
@pytest.mark.parametrize("readable", [True, False])
def test_what_lies_before_a_record_that_cannot_be_read_is_not_lost(tmp_path, pool, monkeypatch, kind, readable):
    def forbidden(self, addresses, sizes):
        raise NotAllowed(1, "no")

    if not readable:
        monkeypatch.setattr(RemoteMemory, "read", forbidden)
    add(pool, of_kind(kind))
    session = Session(pool, os.getpid(), {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool")}, time.time_ns())
    session.tick(time.time_ns())
    assert pool.done() == []
    assert pool.header[Header.WANTED_KIND] == 0
    session.finish(time.time_ns())
    published, _ = batches(tmp_path)
    kernels = COPIES * ONCE[10] if readable else 0
    assert rows(published)["gpu.kernel.v1"] == kernels
    lost = sum(batch.envelope["dropped_before"] for topic, _, batch in published if topic == "gpu.kernel.v1")
    assert kernels + lost == COPIES * ONCE[10] + 1 + 7


def test_an_unfinished_record_of_a_size_that_is_not_known_yet_waits_for_it(tmp_path, pool):
    add(pool, of_kind(cupti_layout.KERNEL | UNFINISHED))
    pool.sizes[cupti_layout.KERNEL] = 0
    session = Session(pool, os.getpid(), {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool")}, time.time_ns())
    session.tick(time.time_ns())
    assert (pool.done(), pool.header[Header.WANTED_KIND]) == ([0], cupti_layout.KERNEL)
    pool.sizes[cupti_layout.KERNEL] = SIZES[cupti_layout.KERNEL]
    session.tick(time.time_ns())
    assert pool.done() == []


@pytest.mark.parametrize("kind", [cupti_layout.KERNEL | UNFINISHED, 77], ids=["unfinished", "no such kind"])
def test_a_record_that_is_unfinished_or_of_no_known_kind_costs_its_steps(stepped_session, kind, tmp_path):
    pool, _, recording, steps, published_steps = stepped_session
    recording(True, 0)
    steps(range(30))
    pool.sizes[cupti_layout.KERNEL] = SIZES[cupti_layout.KERNEL]
    add(pool, of_kind(kind))
    pool.header[STATE] = DONE
    steps(range(30, 60))
    published = published_steps()
    skipped = {step for step in published if published[step]}
    assert 30 in skipped
    assert len(skipped) <= 4
    assert sum(batch.envelope["dropped_before"] for _, _, batch in batches(tmp_path)[0]) == 1


@pytest.mark.parametrize(("interface", "policy", "published"), [
    (5, "auto", {"gpu.kernel.v1", "gpu.memcpy.v1", "gpu.range.v1"}),
    (3, "auto", None),  # without times of the GPU: CUPTI stays the source
    (5, "always", None),  # such a process has no ring; this one is another's
])  # fmt: skip
def test_collectives_steps_and_progress_of_a_process_with_a_ring_are_not_published_twice(
    tmp_path, pool, interface, policy, published
):
    rings = tmp_path / "rings"
    rings.mkdir()
    header = np.zeros(512, "<u8")
    header[HeaderField.INTERFACE] = interface
    (rings / f"{os.getpid()}-1.ring").write_bytes(header.tobytes())
    environment = {
        "DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"),
        "DRUMLINE_COLLECT__POLICY": policy,
        "DRUMLINE_RINGS__FOLDER": str(rings),
    }
    session = Session(pool, os.getpid(), environment, time.time_ns())
    recording = {"event": "recording", "on": True, "time_ns": time.time_ns() - 60_000_000_000, "why": policy}
    session.event(b"J" + json.dumps(recording).encode())
    session.tick(time.time_ns())
    session.finish(time.time_ns())
    topics = {topic for topic, _, batch in batches(tmp_path)[0] if batch.rows}
    assert topics == (published or {*topics, "gpu.step.v1", "gpu.progress.v1"})


@pytest.mark.parametrize(("policy", "is_silent"), [("auto", True), ("always", False)])
def test_a_process_is_silent_between_its_deep_windows(tmp_path, pool, policy, is_silent):
    """Ranks by thousands that were recorded once would send a heartbeat a second for as long as they run."""
    environment = {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"), "DRUMLINE_COLLECT__POLICY": policy}
    begin, at_s = time.time_ns(), 0.0
    session = Session(pool, os.getpid(), environment, begin)

    def heartbeats(seconds):
        nonlocal at_s
        before = len(batches(tmp_path)[0])
        for _ in range(2 * seconds):
            at_s += 0.5
            session.tick(begin + round(at_s * 1e9))
        return len([batch for _, _, batch in batches(tmp_path)[0][before:] if not batch.rows])

    def record_it(on):
        event = {"event": "recording", "on": on, "time_ns": begin + round(at_s * 1e9), "why": policy}
        session.event(b"J" + json.dumps(event).encode())

    record_it(True)
    session.tick(begin)
    assert heartbeats(4) > 0
    record_it(False)
    heartbeats(4)  # what may still come
    assert (heartbeats(4) == 0) is is_silent
    record_it(True)
    assert heartbeats(4) > 0
    session.finish(begin + round((at_s + 1) * 1e9))
    sequences_are_whole(batches(tmp_path)[0])


def test_of_marks_between_deep_windows_those_that_are_open_when_one_begins_count(tmp_path):
    environment = {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool"), "DRUMLINE_COLLECT__POLICY": "auto"}
    begin = time.time_ns()
    session = Session(BufferPool(2, 2 << 20), os.getpid(), environment, begin)

    def mark(flags, number, at_s, name=""):
        session.event(MARK.pack(b"M", flags, number, begin + round(at_s * 1e9)) + name.encode())
        session.tick(begin + round(at_s * 1e9))

    def record_it(on, at_s):
        event = {"event": "recording", "on": on, "time_ns": begin + round(at_s * 1e9), "why": "auto"}
        session.event(b"J" + json.dumps(event).encode())
        session.tick(begin + round(at_s * 1e9))

    def names():
        published = [batch for topic, _, batch in batches(tmp_path)[0] if topic == Topic.RANGE and batch.rows]
        return sorted(name for batch in published for name in batch.strings("name", "names").tolist())

    mark(2, 1, 0.0, "epoch")
    for step in range(100):
        mark(2, 10 + step, 0.1 + step / 10, f"step {step}")
        mark(4, 10 + step, 0.15 + step / 10)
    record_it(True, 11.0)
    mark(2, 2, 11.1, "forward")
    mark(4, 2, 11.2)
    mark(4, 1, 11.3)
    mark(2, 3, 11.4, "backward")
    record_it(False, 12.0)
    for tick in range(20):
        session.tick(begin + round((12 + tick / 4) * 1e9))
    assert names() == ["epoch", "forward"]
    mark(4, 3, 18.0)
    for number in range(200, 400):
        mark(2, number, 19.0, "left open")
    assert len(session._open_marks) == MOST_OPEN
    session.finish(begin + 30 * 1_000_000_000)
    assert names() == ["epoch", "forward"]


def test_a_collector_that_failed_ends_what_is_known_of_progress(tmp_path, pool, capsys):
    begin = time.time_ns()
    session = Session(pool, os.getpid(), {"DRUMLINE_SPOOL__ROOT": str(tmp_path / "spool")}, begin)

    def report(event, **more):
        session.event(b"J" + json.dumps({"event": event, "time_ns": begin, "why": "broken"} | more).encode())

    def progress():
        return [batch for topic, _, batch in batches(tmp_path)[0] if topic == Topic.PROGRESS and batch.rows]

    report("recording", on=True)
    for seconds in (0, 2):
        session.tick(begin + seconds * 1_000_000_000)
    assert len(progress()) == 2
    report("failed")
    for seconds in (4, 6):
        session.tick(begin + seconds * 1_000_000_000)
    assert len(progress()) == 2
    session.finish(begin + 7_000_000_000)
    assert progress()[-1].strings("state", "states")[0] == "killed"
    assert "broken: nothing is recorded any more" in capsys.readouterr().err


def test_the_first_buffer_of_a_process_may_have_launches_of_a_window(tmp_path, pool, monkeypatch):
    taken = []
    monkeypatch.setattr(LaunchRows, "add", lambda self, *of_buffer: taken.append(of_buffer))
    session = Session(pool, os.getpid(), {"DRUMLINE_SPOOL__ROOT": str(tmp_path)}, time.time_ns())
    session._policy_file.launches, session._control_at = True, 1 << 62  # read before there was any data
    session.tick(time.time_ns())
    assert taken
