"""The spool: one process writes, another reads, also when the writer fails or is killed."""

import json
import os
import resource  # noqa: F401 - for the children
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.labs.spool import KERNEL, PROCESS, Follower, body
from support.wait_limit import WAIT_S

from drumline.producers.spool import quota, writer_files
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.folder_layout import IDENTITY, SCRATCH, BadSpool
from drumline.producers.spool.location import make_root
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.root import folders
from drumline.producers.spool.segment_format import (
    DATA,
    LOSS,
    SEGMENT_MAGIC,
    Damage,
    Frame,
    add_losses,
    head,
    loss_frames,
    scan,
)
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.model import model
from drumline.schemas.topics import Topic


def only_folder(root: Path) -> SpoolDirectory:
    [folder] = folders(root)
    return folder


def test_what_is_written_is_read_while_the_writer_goes_on(tmp_path):
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(segment_bytes=4_000))
    follower = Follower(only_folder(tmp_path))
    for sequence in range(20):
        assert spool.append(KERNEL, "k", body(sequence), 10)
        frame = follower.read()[-1]
        assert isinstance(frame, Frame)
        assert (frame.body, frame.topic, frame.key, frame.rows) == (body(sequence), KERNEL, "k", 10)
    spool.close()
    assert len(follower.read()) == 20
    assert follower.folder.files()[".seg"] == []
    assert spool.rows == {KERNEL: 200}
    assert not spool.dropped
    identity = follower.folder.identity()
    assert identity.process == {"sequence": 0, **PROCESS}
    assert identity.schemas[KERNEL] == model(Topic.KERNEL).fingerprint


def test_beyond_its_bound_the_oldest_is_lost_and_counted_in_its_place(tmp_path):
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(max_bytes=65_536, segment_bytes=8_000))
    for sequence in range(400):
        assert spool.append(KERNEL, "ab"[sequence % 2], body(sequence // 2, dropped=sequence == 0), 10)
    assert sum(path.stat().st_size for path in tmp_path.glob("*/0*")) <= 65_536
    spool.close()
    follower = Follower(only_folder(tmp_path))
    frames = follower.read()
    lost = [frame for frame in frames if isinstance(frame, Frame) and frame.kind == LOSS]
    assert frames[: len(lost)] == lost, "what was lost came first"
    assert {frame.key for frame in lost} == {"a", "b"}
    assert follower.sum(DATA) + follower.sum(LOSS) == 4_000 + 1, "rows of the batches, and the row their producer lost"
    assert spool.dropped[KERNEL] == follower.sum(LOSS) - 1 > 1_000
    for key in "ab":
        kept = [f for f in frames if isinstance(f, Frame) and f.key == key and f.kind == DATA]
        [loss] = [frame for frame in lost if frame.key == key]
        assert loss.batches + len(kept) == 200
        assert loss.body == body(loss.batches - 1)[: len(loss.body)], "the envelope of the last one lost"


def test_what_the_agent_has_taken_is_not_evicted(tmp_path):
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(max_bytes=65_536, segment_bytes=8_000))
    follower = Follower(only_folder(tmp_path))
    spool.append(KERNEL, "k", body(0), 10)
    taken = follower.folder.take()
    assert taken is not None
    for sequence in range(1, 300):
        spool.append(KERNEL, "k", body(sequence), 10)
    spool.close()
    follower.read()
    assert isinstance(follower.frames[0], Frame)
    assert follower.frames[0].kind == DATA
    assert follower.sum(DATA) + follower.sum(LOSS) == 3_000
    assert follower.sum(LOSS) == spool.dropped[KERNEL]


def test_losses_of_an_outage_of_any_length_take_no_space(tmp_path):
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(max_bytes=65_536, segment_bytes=8_000))
    for sequence in range(2_000):
        assert spool.append(KERNEL, "k", body(sequence), 10)
    spool.close()
    follower = Follower(only_folder(tmp_path))
    lost = [frame for frame in follower.read() if isinstance(frame, Frame) and frame.kind == LOSS]
    assert len(lost) == 1
    assert follower.sum(DATA) + follower.sum(LOSS) == 20_000


#: What the code of a child may use.
NAMES = """
import os, resource, signal
from drumline.producers.spool.segment_format import DATA, head
from drumline.producers.spool.location import make_root
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter
from support.labs.spool import KERNEL, PROCESS, body
"""


def run_child(code: str, tmp_path: Path) -> str:
    """Python in a process of its own, with this module's names and `root`."""
    head = f"import sys; sys.path[:0] = {sys.path!r}\nfrom pathlib import Path\nroot = Path({str(tmp_path)!r})\n{NAMES}"
    done = subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.stdout


def test_a_full_disk_costs_counted_batches_and_losses_are_written_when_there_is_space_again(tmp_path):
    """The limit on a file's size stands in for a full disk: a write ends half way."""
    output = run_child(
        """
resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, resource.RLIM_INFINITY))
spool = SpoolWriter(root, PROCESS, SpoolLimits(segment_bytes=1 << 20))
for sequence in range(50):
    spool.append(KERNEL, "k", body(sequence), 10)
print(spool.rows[KERNEL], spool.dropped[KERNEL], bool(spool.problem))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.append(KERNEL, "k", body(50), 10)
print(spool.rows[KERNEL], spool.dropped[KERNEL], bool(spool.problem))
spool.close()
""",
        tmp_path,
    )
    full, after = (line.split() for line in output.splitlines())
    rows, dropped = int(full[0]), int(full[1])
    assert rows + dropped == 500
    assert rows > 0 < dropped
    assert full[2] == "True"
    assert after == [str(rows + 10), str(dropped), "False"]
    follower = Follower(only_folder(tmp_path))
    kinds = [frame.kind for frame in follower.read() if isinstance(frame, Frame)]
    assert kinds == [DATA] * (rows // 10) + [LOSS, DATA], "no half frame; the loss is where the batches were"
    assert follower.sum(LOSS) == dropped


def test_losses_on_a_disk_that_is_full_to_the_end_are_written_into_the_reserve(tmp_path):
    spool = SpoolWriter(tmp_path, PROCESS)
    spool.append(KERNEL, "k", body(0), 10)
    for name in ("write", "identify"):

        def full(content, real=getattr(spool._files, name)):
            if (spool.folder / "reserve").exists():
                raise OSError(28, "No space left on device")
            real(content)

        setattr(spool._files, name, full)
    spool.identify({"policy": "off: end of the process"})
    assert not any(spool.append(KERNEL, "k", body(sequence), 10) for sequence in range(1, 4))
    spool.close()
    follower = Follower(only_folder(tmp_path))
    follower.read()
    assert (follower.sum(DATA), follower.sum(LOSS)) == (10, 30)
    assert json.loads((spool.folder / "identity.json").read_text())["process"]["policy"] == "off: end of the process"


def test_a_disk_that_stays_full_gives_up_old_segments_for_new_ones(tmp_path, monkeypatch):
    full = SimpleNamespace(f_bavail=25_000, f_blocks=100_000, f_frsize=4_096)  # as much as is left to others
    now = [0.0]
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(segment_bytes=8_000), clock=lambda: now[0])
    for sequence in range(60):
        spool.append(KERNEL, "k", body(sequence), 10)
    now[0] = 2.0
    monkeypatch.setattr(quota.os, "statvfs", lambda path: full)
    for sequence in range(60, 120):
        assert spool.append(KERNEL, "k", body(sequence), 10)
    spool.close()
    follower = Follower(only_folder(tmp_path))
    follower.read()
    assert follower.sum(LOSS) == spool.dropped[KERNEL] > 0
    assert follower.sum(DATA) + follower.sum(LOSS) == 1_200


def test_a_file_system_that_does_not_report_its_size_is_used_up_to_the_spools_own_bound(tmp_path, monkeypatch):
    nothing = SimpleNamespace(f_bavail=0, f_blocks=0, f_frsize=4_096)  # tmpfs with size=0, ramfs
    monkeypatch.setattr(quota.os, "statvfs", lambda path: nothing)
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(segment_bytes=8_000, max_bytes=40_000))
    for sequence in range(60):
        assert spool.append(KERNEL, "k", body(sequence), 10)
    assert 20_000 < spool._files.used <= 40_000
    assert spool.dropped[KERNEL] > 0
    spool.close()


def test_a_killed_writer_leaves_a_torn_frame_that_is_counted(tmp_path):
    run_child(
        """
spool = SpoolWriter(root, PROCESS)
spool.append(KERNEL, "k", body(0), 10)
os.write(spool._files._descriptor, head(DATA, KERNEL, "k", 10, 1, body(1)) + body(1)[:100])
os.kill(os.getpid(), signal.SIGKILL)
""",
        tmp_path,
    )
    follower = Follower(only_folder(tmp_path))
    frame, damage = follower.read()
    assert isinstance(frame, Frame)
    assert frame.rows == 10
    assert isinstance(damage, Damage)
    assert damage.bytes > 100


def test_a_frame_that_is_not_all_there_waits_while_its_writer_lives():
    whole = head(DATA, KERNEL, "k", 10, 1, body(1)) + body(1)
    for size in range(len(whole)):
        assert list(scan(whole[:size])) == []
        assert size == 0 or [item.end for item in scan(whole[:size], complete=True)] == [size]


def test_a_damaged_frame_costs_itself_only():
    first, second, third = (head(DATA, KERNEL, "k", 10, 1, body(i)) + body(i) for i in range(3))
    data = bytearray(first + second + third)
    data[len(first) + 60] ^= 1
    items = list(scan(bytes(data)))
    assert [type(item) for item in items] == [Frame, Damage, Frame]
    assert items[1] == Damage(len(second), len(first + second))


@pytest.mark.parametrize("moment", ["moved", "both moved", "written", "replaced", "one deleted"])
def test_killed_during_an_eviction_nothing_is_counted_twice(tmp_path, moment):
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(max_bytes=65_536, segment_bytes=8_000))
    for sequence in range(200):
        spool.append(KERNEL, "k", body(sequence), 10)
    folder = only_folder(tmp_path)
    hollow, oldest = folder.files()[".seg"][:2]
    names = {n: {s: folder.path / f"{n:012d}{s}" for s in (".seg", ".old", ".tmp")} for n in (hollow, oldest)}
    first, other, *_ = spool._files.written
    merged = dict(first.held)
    add_losses(merged, other.held)
    steps = {
        "moved": lambda: names[oldest][".seg"].rename(names[oldest][".old"]),
        "both moved": lambda: names[hollow][".seg"].rename(names[hollow][".old"]),
        "written": lambda: names[oldest][".tmp"].write_bytes(SEGMENT_MAGIC + loss_frames(merged)),
        "replaced": lambda: names[oldest][".tmp"].rename(names[oldest][".seg"]),
        "one deleted": lambda: names[hollow][".old"].unlink(),
    }
    for name, step in steps.items():
        step()
        if name == moment:
            break
    assert folder.take(writer_exited=False) is None, "a writer that runs does it itself"
    spool.close()
    follower = Follower(folder)
    follower.read()
    assert follower.sum(DATA) + follower.sum(LOSS) == 2_000


def test_segments_are_bounded_in_number_too(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_files, "MOST_SEGMENTS", 5)
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(segment_bytes=1))
    for sequence in range(20):
        assert spool.append(KERNEL, "k", body(sequence), 10)
        assert len(list(spool.folder.glob("*.seg"))) <= 6
    spool.close()
    follower = Follower(only_folder(tmp_path))
    follower.read()
    assert follower.sum(DATA) + follower.sum(LOSS) == 200
    assert follower.sum(LOSS) == spool.dropped[KERNEL] > 0


def test_a_fork_does_not_write_into_its_parents_spool(tmp_path):
    spool = SpoolWriter(tmp_path, PROCESS)
    child = os.fork()
    if child == 0:
        os._exit(int(spool.append(KERNEL, "k", body(0), 10)))
    assert os.waitpid(child, 0)[1] == 0
    folder = only_folder(tmp_path)
    assert not folder.writer_exited(), "the child closed its copy of the lock; the parent still holds it"
    assert spool.append(KERNEL, "k", body(0), 10)
    spool.close()
    assert folder.writer_exited()
    assert len(Follower(folder).read()) == 1


def test_a_root_that_cannot_be_used_is_no_exception_and_works_once_it_can(tmp_path):
    (tmp_path / "root").write_text("a file where the folder should be")
    clock = [0.0]
    spool = SpoolWriter(tmp_path / "root", PROCESS, clock=lambda: clock[0])
    assert not spool.append(KERNEL, "k", body(0), 10)
    assert "FileExistsError" in spool.problem
    (tmp_path / "root").unlink()
    assert not spool.append(KERNEL, "k", body(1), 10), "not tried at every batch"
    clock[0] = 10.0
    assert spool.append(KERNEL, "k", body(2), 10)
    assert spool.problem == ""
    follower = Follower(only_folder(tmp_path / "root"))
    follower.read()
    assert (follower.sum(LOSS), follower.sum(DATA), spool.dropped[KERNEL]) == (20, 10, 20)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay a folder of another user")
def test_nothing_is_written_into_a_folder_that_another_user_has_laid_in_its_place(tmp_path, monkeypatch):
    """The owner of the root may exchange what a process has just created there."""
    mkdir = Path.mkdir

    def exchanged(path, *arguments, **named):
        mkdir(path, *arguments, **named)
        if path.parent == tmp_path:
            laid = path / f"{IDENTITY}{SCRATCH}"
            laid.write_text("")
            for place in (path, laid):
                os.chown(place, 4_301, 4_301)

    monkeypatch.setattr(Path, "mkdir", exchanged)
    spool = SpoolWriter(tmp_path, PROCESS)
    assert not spool.append(KERNEL, "k", body(0), 10)
    assert "another user's folder is in its place" in spool.problem
    assert [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()] in ([], [b""])


def test_a_root_keeps_the_group_that_the_folder_above_hands_down(tmp_path):
    tmp_path.chmod(0o3777)
    make_root(tmp_path / "root")
    assert (tmp_path / "root").stat().st_mode & 0o7777 == 0o3777


def test_a_folder_that_was_removed_is_created_again_and_its_rows_are_counted_as_lost(tmp_path):
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(segment_bytes=4_000))
    for sequence in range(20):
        spool.append(KERNEL, "k", body(sequence), 10)
    shutil.rmtree(spool.folder)
    for sequence in range(20, 40):
        spool.append(KERNEL, "k", body(sequence), 10)
    assert spool.problem == ""
    spool.close()
    follower = Follower(only_folder(tmp_path))
    follower.read()
    assert follower.sum(DATA) + follower.sum(LOSS) == 400
    assert follower.sum(LOSS) == spool.dropped[KERNEL] >= 200
    shutil.rmtree(follower.folder.path)
    last = SpoolWriter(tmp_path, PROCESS)
    last.append(KERNEL, "k", body(0), 10)
    shutil.rmtree(last.folder)
    last.close()
    assert last.dropped == {KERNEL: 10}
    follower = Follower(only_folder(tmp_path))
    follower.read()
    assert follower.sum(LOSS) == 10


@pytest.mark.parametrize("root", [False, True], ids=["folder", "root"])
def test_a_removed_folder_is_noticed_within_a_second_and_not_at_the_segments_end(tmp_path, root):
    now = [0.0]
    spool = SpoolWriter(tmp_path / "root", PROCESS, clock=lambda: now[0])
    spool.append(KERNEL, "k", body(0), 10)
    shutil.rmtree(tmp_path / "root" if root else spool.folder)
    for sequence in range(1, 11):
        now[0] += 0.25
        spool.append(KERNEL, "k", body(sequence), 10)
    assert spool.problem == ""
    spool.close()
    follower = Follower(only_folder(tmp_path / "root"))
    follower.read()
    assert follower.sum(DATA) == 70, "from a second after the start on"
    assert follower.sum(LOSS) == spool.dropped[KERNEL] == 40


def test_bytes_that_are_no_batch_are_refused(tmp_path):
    spool = SpoolWriter(tmp_path, PROCESS)
    assert not spool.append(KERNEL, "k", b"\xff", 3)
    assert spool.dropped[KERNEL] == 3
    assert spool.append(KERNEL, "k", body(0), 10)


def test_another_format_is_not_guessed_at(tmp_path):
    SpoolWriter(tmp_path, PROCESS).close()
    folder = only_folder(tmp_path)
    (folder.path / "identity.json").write_text('{"format": 99, "process": {}, "schemas": {}}')
    with pytest.raises(BadSpool, match="format 99"):
        folder.identity()
    (folder.path / "000000000000.seg").write_bytes(b"something else")
    assert Follower(folder).read() == [Damage(14, 14)]


@pytest.mark.parametrize("name", ["000000000000.seg", "identity.json", "lock"])
def test_only_plain_files_are_read(tmp_path, name):
    """A user who may write into the spool must not have the agent read other files for them, or wait for a pipe."""
    SpoolWriter(tmp_path / "spool", PROCESS).close()
    folder = only_folder(tmp_path / "spool")
    path = folder.path / name
    (tmp_path / "secret").write_text("secret")

    def read():
        if name == "identity.json":
            folder.identity()
        elif name == "lock":
            folder.writer_exited()
        else:
            taken = folder.take()
            assert taken is not None
            Segment(folder, taken)

    path.unlink()
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic"):
        read()
    for left in (path, path.with_suffix(".taken")):
        left.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(BadSpool, match="no plain file"):
        read()
