"""Attempts of a user who may write into the spool to harm the agent, or others through it."""

import json
import os
import shutil

import pytest
from structlog.testing import capture_logs
from support.labs.agent import Lab, process, write
from support.labs.sink import any_batch

from drumline.infra.telemetry import metrics
from drumline.producers.agent import discovery, inflight
from drumline.producers.spool import directory
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.root import folders
from drumline.producers.spool.segment_format import LOSS, SEGMENT_MAGIC, envelope_end, head
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import encode
from drumline.schemas.codec import Codec
from drumline.schemas.errors import BadSchema
from drumline.schemas.model import model
from drumline.schemas.topics import Topic


@pytest.fixture
def lab(tmp_path):
    started = Lab(tmp_path).start()
    yield started
    started.cursor.close()


def loss(topic, sequence, batches, rows=10):
    batch = encode(model(topic), any_batch(topic, 1, "p0", sequence))
    envelope = batch[: envelope_end(batch)[0]]
    return head(LOSS, str(topic), "p0", rows, batches, envelope) + envelope


def hostile(lab, *frames, schemas=None):
    """The folder of a process that ended, with one segment."""
    spool = SpoolWriter(lab.root, process("hostile"))
    spool.close()
    (spool.folder / "000000000000.seg").write_bytes(SEGMENT_MAGIC + b"".join(frames))
    if schemas:
        identity = json.loads((spool.folder / "identity.json").read_text())
        identity["schemas"] |= schemas
        (spool.folder / "identity.json").write_text(json.dumps(identity))
    return spool.folder


def test_nothing_in_the_spool_is_published_into_a_derived_topic(lab):
    topic = Topic.STRAGGLER
    frames = [head(0, str(topic), "job", 1, 1, b"verdict") + b"verdict", loss(Topic.KERNEL, 3, 1)]
    forged_loss = head(LOSS, str(topic), "job", 1, 1, frames[1][-60:]) + frames[1][-60:]
    folder = hostile(lab, *frames, forged_loss, schemas={str(topic): model(topic).fingerprint})
    lab.tick()
    assert {name for name, *_ in lab.kafka.log} == {Topic.PROCESS, Topic.KERNEL}
    assert not folder.exists(), "the rest of it is published, and it does not stay for ever"


def test_a_loss_of_more_batches_than_a_process_loses_is_one_record(lab, monkeypatch):
    monkeypatch.setattr(inflight, "MOST_LOST", 5)
    lengths = (2**32 - 1, 5_000, 4, 2)
    folder = hostile(lab, *(loss(Topic.KERNEL, (n + 1) * 5_000_000_000, length) for n, length in enumerate(lengths)))
    lab.tick()
    shorter = range(14_999_999_997, 15_000_000_001)
    assert lab.account() == ([5_000_000_000, 10_000_000_000, *shorter, 20_000_000_000], 0, 40), "no row is uncounted"
    assert not folder.exists()


def test_many_folders_of_long_losses_do_not_become_many_records(lab):
    for _ in range(3):
        hostile(lab, loss(Topic.KERNEL, 5_000_000_000, 1 << 20))
    lab.tick()
    assert lab.account() == ([5_000_000_000] * 3, 0, 30)


def test_a_loss_of_more_batches_than_its_sequence_allows_is_left_out_and_counted(lab):
    left_out = metrics.AGENT_DROPPED.labels(str(Topic.KERNEL), "left_out")
    before = left_out._value.get()
    folder = hostile(lab, loss(Topic.KERNEL, 7, 9))
    lab.tick()
    assert lab.account() == ([], 0, 0)
    assert left_out._value.get() - before == 10
    assert not folder.exists()


def test_a_folder_with_much_to_send_leaves_the_queue_of_the_client_to_others_too(lab, monkeypatch):
    monkeypatch.setattr(inflight, "MOST_SENT", 100)
    hostile(lab, loss(Topic.KERNEL, 4_000, 4_000))
    lab.kafka.capacity = 150
    spool = SpoolWriter(lab.root, process("p1"))
    write(spool, range(3), key="p1")
    for _ in range(3):
        lab.agent.tick()
        lab.sender.poll(0)
    assert sum(batch.rows > 0 for batch in lab.batches()) == 3
    spool.close()


def test_damage_is_counted_and_not_only_skipped(lab):
    folder = hostile(lab)
    os.truncate(folder / "000000000000.seg", 32 << 20)
    before = metrics.AGENT_DAMAGED._value.get()
    with capture_logs() as logs:
        lab.tick()
    assert metrics.AGENT_DAMAGED._value.get() - before == (32 << 20) - len(SEGMENT_MAGIC)
    assert sum(line["event"] == "damaged frames left out" for line in logs) <= 33, "a line a read, not one a frame"
    assert not folder.exists()


def test_junk_in_the_spool_is_counted_but_the_agent_is_ready_all_the_same(lab):
    junk = [lab.root / "junk-00000000", hostile(lab)]
    (junk[0] / "lock").mkdir(parents=True)
    os.utime(junk[0], (0, 0))
    (junk[1] / "identity.json").write_text("{}")
    lab.tick()
    assert lab.health.ready() == {}
    assert metrics.AGENT_BLOCKED._value.get() == 2
    for folder in junk:
        shutil.rmtree(folder)
    lab.tick()
    assert metrics.AGENT_BLOCKED._value.get() == 0


def private(tmp_path_factory, identity):
    """A folder of another user, as far as the agent may do more: with files that a spool has too."""
    folder = tmp_path_factory.mktemp("private")
    for name in ("000000000007.seg", "000000000009.seg", "000000000000.taken", "000000000001.tmp", "lock", "keep"):
        (folder / name).write_bytes(SEGMENT_MAGIC + b"private")
    (folder / "identity.json").write_bytes(identity)
    return folder, {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("moment", [*range(1, 12), None])
def test_nothing_behind_a_link_in_place_of_a_folder_is_touched(lab, tmp_path_factory, monkeypatch, moment):
    """`moment`: number of the access at which it is exchanged; None: between two ticks."""
    spool = SpoolWriter(lab.root, process())
    write(spool, range(3))
    lab.tick()
    folder, content = private(tmp_path_factory, (spool.folder / "identity.json").read_bytes())
    accesses = 0

    def exchange():
        spool.folder.rename(lab.root / "moved-00000000")
        spool.folder.symlink_to(folder)

    def counted(call):
        def access(*arguments, **named):
            nonlocal accesses
            accesses += 1
            if accesses == moment:
                exchange()
            return call(*arguments, **named)

        return access

    if moment is None:
        exchange()
    spool.close()
    for name in ("listdir", "rename", "unlink", "stat", "rmdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    for _ in range(3):
        lab.tick()
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == content
    assert lab.health.ready() == {}


def test_a_file_of_another_user_is_not_read_though_it_lies_in_the_spool(lab, monkeypatch):
    """A hard link, where the system allows it."""
    spool = SpoolWriter(lab.root, process())
    write(spool, [0])
    spool.close()
    fstat = os.fstat

    def foreign(descriptor):
        about = list(fstat(descriptor)[:10])
        about[4] += os.readlink(f"/proc/self/fd/{descriptor}").endswith(".taken")
        return os.stat_result(about)

    monkeypatch.setattr(os, "fstat", foreign)
    lab.tick()
    assert lab.account()[0] == []
    assert "another user" in lab.agent.tails[spool.folder.name].problem


def test_a_folder_laid_over_the_agents_own_between_two_saves_is_not_written_into(lab, tmp_path_factory):
    spool = SpoolWriter(lab.root, process())
    write(spool, [0])
    lab.tick()
    folder = tmp_path_factory.mktemp("private")
    (lab.root / ".agent").rename(lab.root / ".moved")
    (lab.root / ".agent").symlink_to(folder)
    write(spool, [1])
    lab.tick()
    assert list(folder.iterdir()) == []
    spool.close()


def test_a_user_with_many_folders_leaves_file_descriptors_to_others(lab, monkeypatch):
    monkeypatch.setattr(discovery, "MOST_OF_USER", 3)
    spools = [SpoolWriter(lab.root, process(f"p{number}")) for number in range(6)]
    for number, spool in enumerate(spools):
        write(spool, [0], key=f"p{number}")
    users = dict(zip((spool.folder.name for spool in spools), (1, 1, 1, 1, 1, 2), strict=True))
    monkeypatch.setattr(discovery, "folders", lambda root: [
        SpoolDirectory(folder.path, users[folder.path.name]) for folder in folders(root)
    ])  # fmt: skip
    with capture_logs() as logs:
        lab.tick()
    assert len(lab.agent.tails) == 4
    assert spools[5].folder.name in lab.agent.tails
    assert metrics.AGENT_BLOCKED._value.get() == 2
    assert [line["user"] for line in logs if "too many folders" in line["event"]] == [1]
    for spool in spools:
        spool.close()
    for _ in range(3):
        lab.tick()
    assert len(lab.batches()) == 6, "the others of the user follow"
    assert not any(spool.folder.exists() for spool in spools)


def test_a_folder_with_more_files_than_a_writer_leaves_is_blocked_and_not_listed(lab, monkeypatch):
    monkeypatch.setattr(directory, "MOST_FILES", 10)
    folder = hostile(lab)
    for number in range(1, 12):
        (folder / f"{number:012d}.seg").write_bytes(SEGMENT_MAGIC)
    lab.tick()
    assert "more than 10 files" in lab.agent.tails[folder.name].problem
    assert lab.health.ready() == {}


def test_a_schema_that_the_registry_rejects_blocks_its_folder_only(lab):
    class Registry:
        def __getattr__(self, name):
            return getattr(Codec().registry, name)

        def id_of_version(self, topic, fingerprint):
            raise BadSchema(f"{topic}: the registry rejects it")

    lab.start(Codec(Registry()))
    folder = hostile(lab)
    lab.tick()
    assert "rejects it" in lab.agent.tails[folder.name].problem
