"""Rows that stay on the host: windows as the stream worker's, kept segments, and pulls of steps."""

import errno
import sqlite3
from collections import Counter
from contextlib import closing
from functools import cache

import pytest
from support.labs.agent import BEGIN_NS, Lab
from support.labs.agent import process as process_record

from drumline.cli.record.agent import _stages
from drumline.infra.config.settings import Settings
from drumline.infra.telemetry import metrics
from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.producers.agent.kept_rows import KeptRows, zstd
from drumline.producers.replay.recording import RecordedJob
from drumline.producers.rollup import kept_segments
from drumline.producers.rollup import pull as pulls
from drumline.producers.rollup.host_windows import HostWindows
from drumline.producers.rollup.kept_segments import SUFFIX
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import encode
from drumline.schemas.control import PULL, Control
from drumline.schemas.dead_letters import COUNTED
from drumline.schemas.model import model
from drumline.schemas.topics import KEPT_TOPICS, WINDOW_TOPICS, Topic
from drumline.streams.offline import results

TOPICS = {*KEPT_TOPICS, Topic.STEP}
S = 10**9
DAY_NS = 86_400 * S


@cache
def recorded():
    """(key, batch) of two ranks of the demo's job, moved by whole days, in order of time: the first part of it."""
    job = RecordedJob(DEMO_RECORDING, topics=TOPICS)
    batches = job.batches("run", (BEGIN_NS - job.last_ns) // DAY_NS * DAY_NS)
    chosen = [(out.key, out.batch) for out in batches if out.batch.envelope["rank"] < 2]
    return chosen[: len(chosen) * 2 // 5]


@pytest.fixture
def lab(tmp_path):
    settings = Settings()
    started = Lab(tmp_path, lambda config, clock: KeptRows(config, _stages(settings), clock)).start()
    yield started
    started.cursor.close()


class Host:
    """The spools of the recorded processes. `windows`: what the stream worker makes of the same batches."""

    def __init__(self, lab):
        self.lab, self.spools, self.at = lab, {}, 0

    def write(self, upto=None, keeps=True):
        batches = recorded()
        for key, batch in batches[self.at : upto]:
            process = batch.envelope["process_id"]
            if process not in self.spools:
                more = {name: batch.envelope[name] for name in ("job", "run", "rank", "host", "gpu_uuid")}
                limits = SpoolLimits(segment_bytes=20_000)
                self.spools[process] = SpoolWriter(
                    self.lab.root, process_record(process, process_id=process, **more), limits
                )
            assert self.spools[process].append_batch(key, batch, kept=keeps and batch.topic in KEPT_TOPICS)
        self.at = len(batches) if upto is None else upto

    def close(self):
        for spool in self.spools.values():
            spool.close()


def published(lab, *topics):
    return [(t, key, value) for t, key, value in lab.kafka.log if t in topics]


def window_rows(batches):
    """(topic, process, window) -> (first rows of the newest revision)."""
    return {
        (batch.topic, batch.envelope["process_id"], batch.envelope["window_start_ns"]): {
            **{name: values.tolist() for name, values in batch.columns.items()},
            "names": batch.envelope.get("names"),
            "late": batch.envelope["late_rows"],
        }
        for batch in batches
        if batch.rows
    }


def central_windows():
    stages = [({topic}, make({})) for topic, make in _stages(Settings()).items()]
    batches = [(batch.envelope["sent_ns"], batch) for _, batch in recorded() if batch.topic in KEPT_TOPICS]
    return window_rows(results(batches, stages, 5 * S))


def decoded(lab, *topics):
    return [lab.codec.decode(topic, value) for topic, _, value in published(lab, *topics)]


def test_the_host_publishes_the_windows_that_the_stream_worker_would_and_not_the_rows(lab):
    host = Host(lab)
    host.write()
    lab.tick()
    host.close()
    for _ in range(6):
        lab.tick()
    assert not published(lab, *KEPT_TOPICS), "they stay on the host"
    rows = Counter(batch.topic for _, batch in recorded())
    assert len(lab.batches(Topic.STEP)) == rows[Topic.STEP], "verdicts need them"
    assert window_rows(decoded(lab, *WINDOW_TOPICS)) == central_windows()
    assert lab.kept.windows.is_idle


@pytest.mark.parametrize("writes", [1, 3])
def test_agents_that_are_killed_publish_the_same_windows(lab, writes):
    host, batches = Host(lab), len(recorded())
    for number in range(1, 13):
        host.write(batches * number // 12)
        lab.tick()
        if number % writes == 0:
            lab.start()
    host.close()
    for _ in range(6):
        lab.tick()
    assert window_rows(decoded(lab, *WINDOW_TOPICS)) == central_windows()
    assert not published(lab, *KEPT_TOPICS)


def request(first, last, ranks=(), key="pull-1"):
    return Control(key, PULL, "", job="*", ranks=ranks, first_step=first, last_step=last, until_ns=1 << 62)


def answers(lab):
    """The answers in the newest process record of the windows."""
    records = [batch.envelope for batch in decoded(lab, Topic.PROCESS) if batch.envelope["source"] == "windows"]
    return records[-1]["collector"] if records else {}


def kept_bodies(steps, rank):
    """(topic, sequence) -> value of the batches with a row in steps of a rank, from the recording."""
    batches = [(key, batch) for key, batch in recorded() if batch.envelope["rank"] == rank]
    spans = []
    for _, batch in batches:
        if batch.topic == Topic.STEP and batch.rows:
            c = batch.columns
            ends = (c["start_ns"] + c["duration_ns"], c["gpu_start_ns"] + c["gpu_duration_ns"])
            rows = zip(c["step"], c["start_ns"], *ends, strict=True)
            spans += [(start, max(*end)) for step, start, *end in rows if step in steps]
    assert len(spans) == len(steps)
    return {
        (batch.topic, batch.envelope["sequence"]): encode(model(batch.topic), batch)
        for _, batch in batches
        if batch.topic in KEPT_TOPICS and batch.rows and any(meets(batch.columns, span) for span in spans)
    }


def meets(columns, span):
    ends = columns["start_ns"] + columns["duration_ns"].astype("i8")
    return bool(((columns["start_ns"] <= span[1]) & (ends >= span[0])).any())


def pulled(lab):
    return {
        (topic, lab.codec.decode(topic, value).envelope["sequence"]): value[5:]
        for topic, _, value in published(lab, *KEPT_TOPICS)
    }


@pytest.fixture
def kept(lab):
    """All rows of two processes that have exited are kept."""
    host = Host(lab)
    host.write()
    host.close()
    for _ in range(6):
        lab.tick()
    return lab


def steps_of(rank):
    return sorted({
        step
        for _, batch in recorded()
        if batch.topic == Topic.STEP and batch.rows and batch.envelope["rank"] == rank
        for step in batch.columns["step"].tolist()
    })  # fmt: skip


def test_a_pull_publishes_the_batches_of_its_steps_once_as_they_were_written(kept):
    steps = steps_of(1)[4:7]
    kept.kept.puller.add(request(steps[0], steps[-1], ranks=(1,)))
    kept.kept.puller.follow()
    kept.tick()
    assert pulled(kept) == kept_bodies(steps, rank=1)
    assert [list(headers) for headers in kept.kafka.headers.values()] == [list(COUNTED)] * len(pulled(kept))
    before = len(kept.kafka.log)
    [(name, text)] = answers(kept).items()
    rows = sum(batch.rows for batch in decoded(kept, *KEPT_TOPICS))
    assert (name, text) == ("pull-1 rank 1", f"done: steps {steps[0]} to {steps[-1]}, {rows:,} rows")
    kept.kept.puller.add(request(steps[0], steps[-1], ranks=(1,), key="pull-2"))
    kept.kept.puller.follow()
    kept.tick()
    assert len(published(kept, *KEPT_TOPICS)) == len(kept_bodies(steps, rank=1)), "nothing twice"
    assert answers(kept)["pull-2 rank 1"].endswith(f"0 rows; {rows:,} rows were published before")
    assert len(kept.kafka.log) > before, "the answer"
    windows = len(published(kept, *WINDOW_TOPICS))
    kept.start()
    for _ in range(4):
        kept.tick()
    assert len(published(kept, *WINDOW_TOPICS)) == windows, "pulled rows are not counted in windows again"


def test_a_pull_of_more_than_is_spooled_at_once_goes_on_behind_it(kept, monkeypatch):
    monkeypatch.setattr(pulls, "MOST_BYTES", 100_000)
    steps = steps_of(0)[:9]
    kept.kept.puller.add(request(steps[0], steps[-1], ranks=(0,)))
    rounds = 0
    while "done" not in answers(kept).get("pull-1 rank 0", ""):
        kept.kept.puller.follow()
        kept.kept.puller.follow()  # the first part is not in Kafka yet
        kept.tick()
        rounds += 1
        assert rounds < 1_000
    assert rounds > 1
    assert pulled(kept) == kept_bodies(steps, rank=0)
    assert len(published(kept, *KEPT_TOPICS)) == len(pulled(kept))


def test_steps_that_are_deleted_are_stated_with_those_that_are_left(kept):
    steps, segments = steps_of(0), kept.kept.segments
    [process] = [name for name in segments.processes() if segments.identity(name).process["rank"] == 0]
    identity, present = segments.identity(process), segments.segments(process)
    spans = {
        step: span
        for segment in present
        for step, span in pulls._steps(segments, identity, segments.read(process, segment))
    }
    for segment in present:
        if segment.first_ns <= spans[steps[1]][0]:
            segments._delete(segments.path(process) / segment.name)
    left = min(step for step, span in spans.items() if span[0] > segments.deleted_until_ns(process))
    assert steps[0] < left, "the row of the first step is left, but not its kernels"
    kept.kept.puller.add(request(steps[0], left, ranks=(0,)))
    kept.kept.puller.follow()
    kept.tick()
    answer = answers(kept)["pull-1 rank 0"]
    assert f"steps {steps[0]} to {left - 1} are not kept" in answer
    assert f"kept are {left} to {steps[-1]}" in answer
    kept.kept.puller.add(request(10**6, 10**6 + 9, ranks=(0,), key="later"))
    kept.kept.puller.follow()
    kept.tick()
    assert answers(kept)["later rank 0"].startswith("done: no steps; ")


def test_rows_of_steps_whose_segments_are_not_closed_are_pulled_when_they_are(lab):
    host, batches, steps = Host(lab), len(recorded()), steps_of(0)
    host.write(batches // 2)
    for _ in range(3):
        lab.tick()
    lab.kept.puller.add(request(steps[0], steps[-1], ranks=(0,)))
    lab.kept.puller.follow()
    lab.tick()
    assert answers(lab)["pull-1 rank 0"].startswith("running: ")
    host.write()
    host.close()
    for _ in range(6):
        lab.tick()
        lab.kept.puller.follow()
    lab.tick()
    assert answers(lab)["pull-1 rank 0"].startswith("done: ")
    assert pulled(lab) == kept_bodies(steps, rank=0)
    assert len(published(lab, *KEPT_TOPICS)) == len(pulled(lab))


def test_the_oldest_segments_are_deleted_beyond_the_bound(kept):
    segments = kept.kept.segments
    files = sorted(segments._folder.glob(f"*/*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) > 4
    segments._most_bytes = sum(path.stat().st_size for path in files[-3:])
    segments._evict()
    assert sorted(segments._folder.glob(f"*/*{SUFFIX}")) == sorted(files[-3:])


def test_without_a_place_to_keep_rows_they_are_published(tmp_path):
    lab = Lab(tmp_path).start()
    Host(lab).write(200)
    for _ in range(6):
        lab.tick()
    expected = Counter(batch.topic for _, batch in recorded()[:200] if batch.topic in KEPT_TOPICS)
    assert Counter(topic for topic, _, _ in published(lab, *KEPT_TOPICS)) == expected
    lab.cursor.close()


def test_a_process_that_the_windows_cannot_count_ends_nothing_else(lab, monkeypatch):
    stage = lab.kept.windows._stages[Topic.KERNEL]
    original, dropped = stage.apply, metrics.AGENT_DROPPED.labels(str(Topic.KERNEL), "left_out")
    first, before = recorded()[0][1].envelope["process_id"], dropped._value.get()

    def fails(table, *more):
        if table.envelopes[0]["process_id"] == first:
            raise RuntimeError("its state is broken")
        return original(table, *more)

    monkeypatch.setattr(stage, "apply", fails)
    host = Host(lab)
    host.write(200)
    host.close()
    for _ in range(6):
        lab.tick()
    rows = sum(b.rows for _, b in recorded()[:200] if (b.topic, b.envelope["process_id"]) == (Topic.KERNEL, first))
    assert dropped._value.get() - before == rows > 0
    assert not lab.agent.tails or not any(tail.problem for tail in lab.agent.tails.values())
    counted = {batch.envelope["process_id"] for batch in decoded(lab, Topic.KERNEL_FREQUENCY)}
    assert counted == {batch.envelope["process_id"] for _, batch in recorded()[:200]} - {first}


def test_an_error_in_one_folder_does_not_end_the_agent(lab, monkeypatch):
    host = Host(lab)
    host.write(200)
    lab.agent.tick()
    broken, *peers = lab.agent.tails.values()

    def fails(_send):
        raise RuntimeError("broken")

    monkeypatch.setattr(broken, "pump", fails)
    lab.tick()
    assert broken.problem == "RuntimeError: broken"
    assert peers
    assert not any(tail.problem for tail in peers)
    host.close()


def test_the_id_that_a_process_states_is_no_path(lab):
    host = Host(lab)
    host.write()
    for spool in host.spools.values():
        spool.identify({"process_id": "../../[*"})
    host.close()
    for _ in range(6):
        lab.tick()
    steps = steps_of(1)[4:7]
    lab.kept.puller.add(request(steps[0], steps[-1], ranks=(1,)))
    lab.kept.puller.follow()
    lab.tick()
    assert answers(lab)["pull-1 rank 1"].startswith("done: ")
    assert pulled(lab).keys() == kept_bodies(steps, rank=1).keys()


def test_an_identity_that_cannot_be_read_rejects_the_pull_of_its_process_only(kept):
    segments, steps = kept.kept.segments, steps_of(1)[4:7]
    [other] = [name for name in segments.processes() if segments.identity(name).process["rank"] == 0]
    (segments.path(other) / "identity.json").write_text(
        '{"format": 1, "process": {"rank": 1, "process_id": "x"}, "schemas": {"gpu.step.v1": []}}'
    )
    kept.kept.puller.add(request(steps[0], steps[-1], ranks=(1,)))
    kept.kept.puller.follow()
    kept.tick()
    assert pulled(kept) == kept_bodies(steps, rank=1)


def test_rows_that_cannot_be_kept_are_counted_and_their_steps_are_not_whole(lab, monkeypatch):
    monkeypatch.setattr(kept_segments, "MOST_SEGMENT", 10_000)
    not_kept = metrics.AGENT_DROPPED.labels(str(Topic.KERNEL), "not_kept")
    host, before = Host(lab), not_kept._value.get()
    host.write(200)
    host.close()
    for _ in range(6):
        lab.tick()
    rows = sum(batch.rows for _, batch in recorded()[:200] if batch.topic == Topic.KERNEL)
    assert 0 < not_kept._value.get() - before <= rows
    for process in lab.kept.segments.processes():
        assert lab.kept.segments.deleted_until_ns(process) > max(b.envelope["sent_ns"] for _, b in recorded())


def test_a_full_disk_keeps_a_segment_no_longer_and_the_note_is_written_later(kept, monkeypatch):
    segments = kept.kept.segments
    process = segments.processes()[0]
    newest = segments.segments(process)[-1]

    def full(_path, _content):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(kept_segments, "write_private", full)
        segments._delete(segments.path(process) / newest.name)
    assert newest not in segments.segments(process)
    assert segments.deleted_until_ns(process) == newest.last_ns
    segments.tick()
    assert int((segments.path(process) / "deleted").read_text()) == newest.last_ns


def test_rows_go_on_when_their_windows_cannot_be_saved_for_long(lab, monkeypatch):
    now, windows = 0.0, lab.kept.windows
    monkeypatch.setattr(windows, "_clock", lambda: now)
    released = []
    windows._released.append(lambda: released.append(True))

    def fails():
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(windows._file, "save", fails)
    windows.save()
    assert not released
    now = 31.0
    windows.save()
    assert released
    assert "full" in windows.problem


def test_rows_wait_in_the_spool_while_the_state_is_locked(lab):
    path = lab.kept.folder.path / "windows.db"
    lab.kept.windows._file.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        windows = lab.kept.windows = HostWindows(lab.kept.folder.path, _stages(Settings()), lambda: None)
        assert "cannot be opened now" in windows.problem
        windows._open = lambda: None  # each try waits 5 s for the lock
        Host(lab).write(200)
        lab.tick()
        assert all("rows wait" in tail.problem for tail in lab.agent.tails.values())
        assert not published(lab, *KEPT_TOPICS)
        del windows._open
    lab.tick()
    assert windows.is_ready
    assert not any(tail.problem for tail in lab.agent.tails.values())


def flipped(path, other):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def cut(path, other):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path, other):
    path.write_bytes(b"")


def exchanged(path, other):
    path.write_bytes(other.read_bytes())


def linked(path, other):
    path.unlink()
    path.symlink_to("/etc/passwd")


def made_a_folder(path, other):
    path.unlink()
    path.mkdir()


def unpacked_to_more_than_was_kept(path, other):
    path.write_bytes(zstd()[0](bytes(kept_segments.MOST_SEGMENT + (1 << 20))))


@pytest.mark.parametrize(
    "damage",
    [flipped, cut, emptied, exchanged, linked, made_a_folder, unpacked_to_more_than_was_kept],
    ids=lambda damage: damage.__name__,
)
def test_a_tampered_segment_is_answered_and_changes_no_row_of_another_process(kept, damage):
    """Whoever may write into the folder may damage it; the agent goes on, and states what it cannot pull."""
    segments, steps = kept.kept.segments, steps_of(1)
    of = {segments.identity(name).process["rank"]: name for name in segments.processes()}
    files = {rank: sorted(segments.path(name).glob("*.kept")) for rank, name in of.items()}
    for path, other in zip(files[0], files[1], strict=False):
        damage(path, other)
    kept.kept.puller.add(request(steps[0], steps[-1]))
    for _ in range(3):
        kept.kept.puller.follow()
        kept.tick()
    wanted = kept_bodies(steps, rank=1)
    assert {place: body for place, body in pulled(kept).items() if body in wanted.values()} == wanted
    written = {*wanted.values(), *kept_bodies(steps_of(0), rank=0).values()}
    assert {*pulled(kept).values()} <= written, "nothing that was not written is published"
    answer = answers(kept)
    assert answer["pull-1 rank 1"].startswith("done: ")
    assert not answer.get("pull-1 rank 0", "").startswith(f"done: {len(steps)} steps"), answer
    if damage is unpacked_to_more_than_was_kept:
        assert answer["pull-1 rank 0"] == "rejected: a kept segment is cut off, or has more than was ever kept"
