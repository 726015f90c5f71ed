"""Quota of all spools of a host: /dev/shm is the training's too."""

import fcntl
import os
import random
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.labs.agent import Lab, process, write
from support.labs.spool import KERNEL, PROCESS, Follower, body

from drumline.producers.spool import quota
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.exited_eviction import evict_oldest_segments
from drumline.producers.spool.quota import HostSpools, SpoolLimits, share
from drumline.producers.spool.root import folders
from drumline.producers.spool.segment_format import DATA, LOSS
from drumline.producers.spool.writer import SpoolWriter

MB = 1 << 20


@pytest.fixture
def disk(monkeypatch, tmp_path):
    """A file system of 64 MB, of which other programs take `used` bytes."""
    about = SimpleNamespace(used=0)

    def statvfs(_path):
        free = 64 * MB - about.used - taken(tmp_path)
        return SimpleNamespace(f_blocks=16_384, f_bavail=free // 4_096, f_frsize=4_096)

    monkeypatch.setattr(quota.os, "statvfs", statvfs)
    return about


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def fill(spool, clock, batches, first=0):
    """Append batches as a job does without an agent, 0.1 s from batch to batch."""
    for sequence in range(first, first + batches):
        spool.append(KERNEL, "k", body(sequence, 1_000), 1_000)
        clock.now += 0.1


def spools(root, clock, names):
    return [SpoolWriter(root, {**PROCESS, "process_id": name}, clock=clock) for name in names]


def taken(root):
    return sum(folder.disk_bytes() for folder in folders(root))


def accounts(root):
    """Yield per folder the rows that are stored and the rows counted as lost."""
    for folder in folders(root):
        follower = Follower(folder)
        follower.read()
        yield follower.sum(DATA), follower.sum(LOSS)


def test_processes_that_come_one_after_the_other_never_have_more_than_an_eighth_and_all_is_counted(tmp_path, disk):
    clock = Clock()
    for generation in range(4):
        writers = spools(tmp_path, clock, [f"{generation}-{rank}" for rank in range(4)])
        for batch in range(60):
            for writer in writers:
                fill(writer, clock, 1, batch)
            assert taken(tmp_path) <= 64 * MB // 8
        for writer in writers:
            assert writer.rows[KERNEL] == 60 * 1_000, "what is new is never refused"
            writer.close()
    counted = list(accounts(tmp_path))
    assert [rows + lost for rows, lost in counted] == [60_000] * 16
    assert all(rows >= 15_000 for rows, _ in counted[-4:]), "the last ones have most of the space"
    assert sum(rows for rows, _ in counted[:8]) == 0, "the oldest were evicted first"


def test_living_processes_share_evenly_also_with_one_that_was_there_first(tmp_path, disk):
    clock = Clock()
    (first,) = spools(tmp_path, clock, ["first"])
    fill(first, clock, 300)
    assert first._files.used > 7 * MB
    later = spools(tmp_path, clock, ["second", "third"])
    for batch in range(100):
        for writer in (first, *later):
            fill(writer, clock, 1, batch)
    used = [writer._files.used for writer in (first, *later)]
    assert min(used) > 0.8 * max(used)
    assert taken(tmp_path) <= 8 * MB


def test_where_others_need_the_space_spools_free_it_those_of_exited_processes_first(tmp_path, disk):
    clock = Clock()
    exited, alive = spools(tmp_path, clock, ["exited", "alive"])
    fill(exited, clock, 30)
    exited.close()
    fill(alive, clock, 30)
    before = alive._files.used
    disk.used = 48 * MB - taken(tmp_path) + MB  # a data loader took some: 1 MB is missing
    clock.now += 2
    fill(alive, clock, 1, 30)
    assert only(tmp_path, "exited").disk_bytes() < 2 * MB
    assert alive._files.used >= before, "evicting the exited one is enough"
    disk.used = 48 * MB
    clock.now += 2
    for sequence in range(31, 40):
        fill(alive, clock, 1, sequence)
    assert taken(tmp_path) < 100_000
    assert "less than a quarter" in alive.problem
    disk.used = 0
    clock.now += 2
    fill(alive, clock, 1, 40)
    exited_account, alive_account = sorted(accounts(tmp_path), key=sum)
    assert (sum(exited_account), sum(alive_account)) == (30_000, 41_000)


def test_a_disk_that_is_too_full_for_the_next_segment_gets_back_what_older_ones_take(tmp_path, disk, monkeypatch):
    clock = Clock()
    (spool,) = spools(tmp_path, clock, ["p0"])
    fill(spool, clock, 20)
    full, write = taken(tmp_path), spool._files.write

    def written(parts):
        if taken(tmp_path) >= full:
            raise OSError(28, "No space left on device")
        write(parts)

    monkeypatch.setattr(spool._files, "write", written)
    disk.used = 64 * MB - full
    clock.now += 60  # the segment that is being written is old
    fill(spool, clock, 1, 20)
    assert taken(tmp_path) < full / 10
    disk.used = 0
    clock.now += 10
    fill(spool, clock, 1, 21)
    assert (spool.problem, [sum(account) for account in accounts(tmp_path)]) == ("", [22_000])


def seen(root):
    scanned = HostSpools(root)
    scanned.refresh()
    return scanned


def only_exited(root):
    (spool,) = seen(root).exited.values()
    return spool


def only(root, name):
    (path,) = root.glob(f"{name}-*")
    return SpoolDirectory(path)


def test_what_was_evicted_is_published_as_lost_in_the_exited_process_s_own_sequence(tmp_path):
    lab = Lab(tmp_path).start()
    exited = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=4_000))
    write(exited, range(30))
    exited.close()
    assert evict_oldest_segments(exited.folder, 6_000) > 6_000
    lab.tick()
    sequences, rows, lost = lab.account()
    assert sequences == list(range(30))
    assert (rows + lost, lost > 0, rows > 0) == (300, True, True)
    lab.cursor.close()


@pytest.mark.parametrize(
    "reason", ["it runs", "a copy", "another release's", "another is at work", "no space for losses"]
)
def test_what_must_not_be_evicted_is_not(tmp_path, monkeypatch, reason):
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(segment_bytes=4_000))
    for sequence in range(100):
        spool.append(KERNEL, "k", body(sequence), 10)
    lock = spool.folder / "lock"
    if reason != "it runs":
        spool.close()
        assert only_exited(tmp_path).evictable_start_ns
    if reason == "a copy":
        lock.unlink()
        assert not only_exited(tmp_path).evictable_start_ns
        return
    if reason == "another release's":
        identity = spool.folder / "identity.json"
        identity.write_text(identity.read_text().replace('"gpu.kernel.v1": "', '"gpu.kernel.v1": "0'))
    if reason == "no space for losses":
        nothing = SimpleNamespace(f_blocks=100, f_bavail=1, f_frsize=4_096)
        monkeypatch.setattr(quota.os, "statvfs", lambda path: nothing)
    with lock.open("rb") as handle:
        if reason == "another is at work":
            fcntl.flock(handle, fcntl.LOCK_EX)
        assert evict_oldest_segments(spool.folder, MB) == 0
    follower = Follower(SpoolDirectory(spool.folder))
    spool.close()
    follower.read()
    assert (follower.sum(DATA), follower.sum(LOSS)) == (1_000, 0)


def test_an_agent_does_not_undo_what_another_process_is_doing(tmp_path):
    """It saw that the writer had exited; then another process began to evict."""
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(segment_bytes=4_000))
    for sequence in range(20):
        spool.append(KERNEL, "k", body(sequence), 10)
    spool.close()
    folder = SpoolDirectory(spool.folder)
    with folder.exclusive() as is_exclusive:
        assert is_exclusive
        first = folder.files()[".seg"][0]
        (spool.folder / f"{first:012d}.seg").rename(spool.folder / f"{first:012d}.old")
        assert folder.take(writer_exited=True) is None
        assert (spool.folder / f"{first:012d}.old").exists()
    assert folder.take(writer_exited=True) is not None, "the other one was killed: that is undone"


def test_other_users_processes_count_as_living_ones(tmp_path, monkeypatch):
    spool = SpoolWriter(tmp_path, PROCESS)
    spool.append(KERNEL, "k", body(0), 10)
    spool.close()

    def deny(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(SpoolDirectory, "disk_bytes", deny)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / ".agent").mkdir()
    scanned = seen(tmp_path)
    assert (scanned.alive, scanned.exited) == ({spool.folder.name: 0}, {})
    os.utime(spool.folder, (0, 0))  # long ago
    assert seen(tmp_path).alive == {}


def test_files_beside_the_spools_hide_none_of_them(tmp_path):
    for name in ("aa", "zz"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "identity.json").write_text("{}")
        (tmp_path / name / "lock").symlink_to(name)
    (spool,) = spools(tmp_path, Clock(), ["p0"])
    assert set(seen(tmp_path).alive) == {"aa", "zz", spool.folder.name}


def test_a_folder_that_no_process_makes_takes_no_share(tmp_path):
    (spool,) = spools(tmp_path, Clock(), ["p0"])
    (tmp_path / "results").mkdir()
    assert set(seen(tmp_path).alive) == {"results", spool.folder.name}, "it may be one that is being made"
    os.utime(tmp_path / "results", (0, 0))
    assert set(seen(tmp_path).alive) == {spool.folder.name}


def test_a_root_that_may_not_be_listed_is_written_all_the_same(tmp_path, monkeypatch):
    scandir = os.scandir

    def deny(path):
        if path == tmp_path:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(quota.os, "scandir", deny)
    spool = SpoolWriter(tmp_path, PROCESS)
    assert spool.append(KERNEL, "k", body(0), 10)


def test_folders_of_exited_processes_are_not_read_again_and_again(tmp_path, monkeypatch):
    for sequence, spool in enumerate(spools(tmp_path, Clock(), "abc")):
        spool.append(KERNEL, "k", body(sequence), 10)
        spool.close()
    scanned = seen(tmp_path)
    before = dict(scanned.exited)
    assert len(before) == 3
    read = []
    monkeypatch.setattr(SpoolDirectory, "disk_bytes", lambda self: read.append(self.path.name) or 0)
    scanned.refresh()
    assert (scanned.exited, read) == (before, [])
    changed = next(iter(before))
    os.utime(tmp_path / changed, ns=(1, 1))
    scanned.refresh()
    assert read == [changed]


EVICT = """
import random, sys, time
from pathlib import Path
from drumline.producers.spool.exited_eviction import evict_oldest_segments
folder = Path(sys.argv[1])
while folder.exists():
    evict_oldest_segments(folder, random.randrange(1, 6_000))
    time.sleep(random.random() * 0.002)
"""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_an_agent_and_two_that_evict_one_killed_again_and_again_count_each_batch_once(tmp_path, seed):
    dice, lab = random.Random(seed), Lab(tmp_path).start()
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=2_000))
    write(spool, range(60))
    spool.close()

    def child():
        return subprocess.Popen([sys.executable, "-c", EVICT, str(spool.folder)])

    children = [child(), child()]
    time.sleep(dice.random() * 0.5)
    until = time.monotonic() + 60
    while spool.folder.exists() and time.monotonic() < until:
        lab.kafka.capacity = dice.choice([0, 3, 10])
        lab.now += 0.4
        lab.agent.tick()
        if dice.random() < 0.5:
            lab.sender.poll(0)
        if dice.random() < 0.1 and children[0].poll() is None:
            children[0].kill()
            children[0].wait()
            children[0] = child()
        time.sleep(0.003)
    for process_ in children:
        assert process_.wait(10) == 0
    sequences, rows, lost = lab.account()
    assert (sorted(sequences), rows + lost) == (list(range(60)), 600)
    lab.cursor.close()


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(0, 50))
def test_in_whatever_order_writers_measure_once_all_have_no_more_is_used_than_fits(seed, writers, exited):
    """Each writer keeps to its last limit and evicts down to it."""
    dice, most, used = random.Random(seed), 1_000, [0] * writers
    limits = [0] * writers
    for _ in range(3):
        order = list(range(writers))
        dice.shuffle(order)
        for index in order:
            limits[index] = share(most, most, used[index], writers, sum(used) - used[index], exited)
            for other in dice.choices(range(writers), k=writers):
                used[other] = min(limits[other], used[other] + dice.randrange(500))
            used[index] = min(used[index], limits[index])
    used = [min(bytes_, limit) for bytes_, limit in zip(used, limits, strict=True)]
    assert sum(used) + exited <= most
