"""Reads recorded processes: real ones, which do what makes a rank late."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from drumline.producers.host import counters, host_samples
from drumline.producers.host.cgroups import Cgroup, Pressure, cgroup_place, increase
from drumline.producers.host.host_samples import HostSamples
from drumline.producers.host.process_sampler import HostBatches
from drumline.producers.host.targets import (
    BootTimes,
    NotReadable,
    RecordedProcess,
    RingWriter,
    find_pid,
    recorded_process,
    start_ticks,
    stat_fields,
)
from drumline.schemas.batch import decode, encode
from drumline.schemas.keys import record_key
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

S = 1_000_000_000
BOOT_NS = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def start_ns(pid):
    ticks = int(stat_fields(Path(f"/proc/{pid}/stat").read_bytes())[19])
    return BOOT_NS + ticks * S // os.sysconf("SC_CLK_TCK")


def recorded(pid, rank=0, **more):
    record = {"job": "j", "run": "r", "rank": rank, "process_id": f"p{pid}", "start_ns": start_ns(pid), "pid": pid}
    record |= {"local_rank": rank, "world_size": 8, "host": "h", "gpu_uuid": "GPU-1"}
    return RecordedProcess({**record, **more}, pid, os.geteuid())


@pytest.fixture
def child():
    """Start a program in Python: child(code) -> it, ready when it has printed a line."""
    running = []

    def start(code, *arguments):
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
        running.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


def sampled(*processes, seconds=0.6, polls=12):
    """Rows of these processes over a time, by rank."""
    samples = HostSamples()
    samples.follow(processes)
    for _ in range(polls):
        time.sleep(seconds / polls)
        samples.poll()
    rows = {sample.process.record["rank"]: sample.row for sample in samples.read(time.time_ns())}
    samples.close()
    return rows


ON_ONE_CPU = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True)\n"
BURN = ON_ONE_CPU + "while True: pass"
IDLE = "import time; print(flush=True); time.sleep(60)"
THREAD = ON_ONE_CPU + "import threading\ndef burn():\n while True: pass\nthreading.Thread(target=burn).start()\nburn()"


def test_a_process_without_a_cpu_waits_in_the_run_queue(child):
    rows = sampled(*(recorded(child(BURN).pid, rank) for rank in range(3)), recorded(child(IDLE).pid, 3))
    for rank in range(3):
        assert rows[rank]["main_wait_ns"] > 0.3 * rows[rank]["interval_ns"]
    assert rows[3]["main_wait_ns"] < 0.2 * rows[3]["interval_ns"]
    assert rows[3]["main_cpu_ns"] < 50_000_000
    assert rows[0]["main_preempted"] > 0
    assert rows[3]["threads"] == 1
    assert rows[3]["rss_bytes"] > 1 << 20


def test_threads_beside_the_main_one_are_counted_apart(child):
    row = sampled(recorded(child(THREAD).pid))[0]
    assert row["threads"] == 2
    assert row["other_cpu_ns"] > 0
    assert row["most_wait_ns"] == row["other_wait_ns"] > 0


LOCKED = """
import ctypes, threading
def tokenize():
    while True: ctypes.PyDLL(None).usleep(100_000)
threading.Thread(target=tokenize, daemon=True).start()
print(flush=True)
while True: pass
"""


def test_a_thread_that_keeps_the_gil_makes_the_main_thread_wait_for_it(child):
    rows = sampled(recorded(child(LOCKED).pid, 0), recorded(child(BURN).pid, 1), recorded(child(IDLE).pid, 2))
    assert rows[0]["main_gil_ns"] > 0.5 * rows[0]["interval_ns"]
    assert rows[1]["main_gil_ns"] == rows[2]["main_gil_ns"] == 0


def test_a_program_that_is_no_python_waits_for_no_gil():
    with subprocess.Popen(["sleep", "60"]) as process:
        assert sampled(recorded(process.pid))[0]["main_gil_ns"] == -1
        process.kill()


FAULTS = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
print(flush=True)
while True:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(file, 0, prot=mmap.PROT_READ) as view:
        view.madvise(mmap.MADV_RANDOM)
        sum(view[at] for at in range(0, len(view), 4096))
"""


def test_memory_that_is_read_from_disk_is_a_major_fault(child, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(os.urandom(4 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            before = int(stat_fields(Path("/proc/self/stat").read_bytes())[9])
            sum(view[at] for at in range(0, len(view), 4096))
    if int(stat_fields(Path("/proc/self/stat").read_bytes())[9]) == before:
        pytest.skip("this file system keeps its pages in memory")
    rows = sampled(recorded(child(FAULTS, str(path)).pid, 0), recorded(child(IDLE).pid, 1))
    assert rows[0]["major_faults"] > 100
    assert rows[1]["major_faults"] == 0


def test_threads_beyond_the_files_that_stay_open_are_read_too(child, monkeypatch):
    monkeypatch.setattr(counters, "KEPT_FILES", 1)
    row = sampled(recorded(child(THREAD).pid))[0]
    assert row["main_cpu_ns"] > 0
    assert row["other_cpu_ns"] > 0


def test_a_user_with_too_many_processes_is_read_in_part(monkeypatch):
    monkeypatch.setattr(host_samples, "MOST_OF_USER", 2)
    samples = HostSamples()
    with capture_logs() as lines:
        for _ in range(2):
            samples.follow(recorded(os.getpid(), rank, process_id=f"p{rank}") for rank in range(4))
    assert samples.processes == 2
    assert len(lines) == 1
    assert "too many processes" in str(lines[0])
    samples.close()


def test_an_ended_process_has_no_row_and_its_files_are_closed(child):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    process, samples = child(IDLE), HostSamples()
    samples.follow([recorded(process.pid)])
    process.kill()
    process.wait()
    assert list(samples.read(1)) == []
    assert samples.processes == 0
    samples.close()
    process.stdout.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_process_with_two_records_is_read_once(child):
    pid, samples = child(IDLE).pid, HostSamples()
    samples.follow([recorded(pid), recorded(pid, process_id="other")])
    assert len(list(samples.read(1))) == 1
    samples.follow([])
    assert samples.processes == 0
    samples.close()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"pid": pid} for pid in ("1", True, -1)),
        *({"rank": rank} for rank in (1 << 40, None)),
        *({"job": job} for job in ("", ["j"], chr(0xD800))),
        *({"start_ns": "x"}, {"run": {}}, {"gpu_uuid": "x" * 5_000}, {"process_id": 7}),
    ],
)
def test_a_record_that_no_producer_writes_is_about_no_process(wrong):
    record = recorded(os.getpid()).record
    assert recorded_process(record, 5) == RecordedProcess(record, os.getpid(), 5)
    assert recorded_process(record, 0, RingWriter(77, 5, 9)) == RecordedProcess(record, 77, 5, 9)
    assert recorded_process({**record, **wrong}, 5) is None


def test_a_process_that_is_not_the_records_is_not_read(child):
    pid = child(IDLE).pid
    same = recorded(pid)
    assert find_pid(same, Path("/proc"), [BOOT_NS], os.geteuid()) == pid
    for wrong in (
        recorded(pid, start_ns=start_ns(pid) - 3 * S),
        RecordedProcess(same.record, 0, same.user),
        RecordedProcess(same.record, pid, same.user + 1),
        RecordedProcess(same.record, pid, same.user + 1, start_ticks(Path(f"/proc/{pid}"))),
    ):
        with pytest.raises(NotReadable):
            find_pid(wrong, Path("/proc"), [BOOT_NS], 0)


@pytest.mark.parametrize("step_s", [-3_600, 90])
def test_processes_from_before_and_after_a_step_of_the_clock_are_found(child, step_s):
    """A record has its process's start by the clock of then; the kernel's is compared by the clock of now."""
    now_ns = [BOOT_NS]
    boot_times = BootTimes(lambda: now_ns[0])
    before, after = (recorded(child(IDLE).pid) for _ in range(2))
    assert find_pid(before, Path("/proc"), boot_times.observed(), os.geteuid()) == before.pid
    now_ns[0] += step_s * S
    after = replace(after, record={**after.record, "start_ns": after.record["start_ns"] + step_s * S})
    for process in (before, after):
        assert find_pid(process, Path("/proc"), boot_times.observed(), os.geteuid()) == process.pid
    now_ns[0] += S // 10
    assert len(boot_times.observed()) == 2, "a clock that is slewed has not stepped"
    other = replace(before, record={**before.record, "start_ns": before.record["start_ns"] + 3 * S})
    with pytest.raises(NotReadable):
        find_pid(other, Path("/proc"), boot_times.observed(), 0)


def test_an_agent_that_is_not_root_reads_its_own_users_processes_only():
    me = recorded(os.getpid())
    assert find_pid(me, Path("/proc"), [BOOT_NS], me.user) == os.getpid()
    with pytest.raises(NotReadable, match="the agent runs as user 4711"):
        find_pid(me, Path("/proc"), [BOOT_NS], 4711)


def test_what_may_not_be_read_is_logged_once():
    samples = HostSamples()
    foreign = RecordedProcess(recorded(os.getpid()).record, os.getpid(), os.geteuid() + 1)
    with capture_logs() as lines:
        for _ in range(3):
            samples.follow([foreign])
    samples.close()
    assert [line["event"] for line in lines] == ["no samples of a process"]


def test_a_process_in_a_container_is_found_by_its_start_and_its_own_number(tmp_path):
    stat = "{} (python x) S " + " ".join(["0"] * 18) + " 700 " + "0 " * 30
    for pid, inner in ((900, 7), (901, 8)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(stat.format(pid))
        (folder / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t{inner}\n")
    record = {"start_ns": 700 * S // os.sysconf("SC_CLK_TCK")}
    assert find_pid(RecordedProcess(record, 8, os.geteuid()), tmp_path, [0], 0) == 901


def test_counters_of_a_cgroup_and_of_those_above_it(tmp_path):
    inner = tmp_path / "pod" / "main"
    inner.mkdir(parents=True)
    (tmp_path / "pod" / "cpu.stat").write_text("usage_usec 9\nnr_throttled 2\nthrottled_usec 1500\n")
    (inner / "cpu.stat").write_text("usage_usec 9\nthrottled_usec 500\n")
    (inner / "io.pressure").write_text("some avg10=0.00 total=70\nfull avg10=0.00 total=30\n")
    cgroup = Cgroup(cgroup_place("4:memory:/x\n0::/pod/main\n", tmp_path, tmp_path / "root"))
    expected = {"throttled_ns": 2_000_000, "io_pressure_ns": 70_000, "cpu_pressure_ns": -1, "memory_pressure_ns": -1}
    assert cgroup.read() == expected
    cgroup.close()
    assert Cgroup(cgroup_place("", tmp_path, tmp_path / "root")).read()["throttled_ns"] == -1
    host = Pressure(Path("/proc/pressure"), ("cpu", "io", "memory"), "host_")
    assert set(host.read()) == {"host_cpu_pressure_ns", "host_io_pressure_ns", "host_memory_pressure_ns"}


@pytest.mark.parametrize(
    ("path", "files", "throttled_ns"),
    [
        ("0::/", {"cgroup/cpu.stat": 7}, 7_000),  # the agent is in the same container
        ("0::/../pod/main", {"root/{}/cpu.stat": 7, "root/{}/cgroup.events": 0, "pod/main/cpu.stat": 1}, 7_000),
        ("0::/../pod/main", {"root/{}/cpu.stat": 7}, -1),  # of all cgroups
        ("0::/../../slice/job", {"root/{}/slice/job/cpu.stat": 5, "root/{}/slice/cpu.stat": 2}, 7_000),  # of the host
        ("0::/../pod/main", {"cgroup/pod/main/cpu.stat": 1, "pod/main/cpu.stat": 1}, -1),
        ("0::/pod/gone", {"cgroup/pod/cpu.stat": 1}, -1),
    ],
)
def test_a_cgroup_outside_of_the_agents_is_read_where_the_process_has_it(tmp_path, path, files, throttled_ns):
    mounted = tmp_path / "cgroup"
    mounted.mkdir()
    for name, throttled_us in files.items():
        file = tmp_path / name.format(str(mounted)[1:])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"usage_usec 9\nthrottled_usec {throttled_us}\n")
    cgroup = Cgroup(cgroup_place(path, mounted, tmp_path / "root"))
    assert cgroup.read()["throttled_ns"] == throttled_ns
    cgroup.close()


def test_quotas_of_version_1_lie_in_its_own_hierarchy_and_pressure_in_the_joint_one(tmp_path):
    for folder, name, text in (
        ("cpu,cpuacct/user/1", "cpu.stat", "nr_periods 3\nnr_throttled 1\nthrottled_time 900\n"),
        ("cpu,cpuacct/user", "cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 50\n"),
        ("unified/user/1", "cpu.stat", "usage_usec 5\n"), ("unified/user/1", "cpu.pressure", "some total=4\n"),
    ):  # fmt: skip
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    place = cgroup_place("3:cpuset:/\n2:cpu,cpuacct:/user/1\n0::/user/1\n", tmp_path, tmp_path / "root")
    assert {"throttled_ns": 950, "cpu_pressure_ns": 4_000}.items() <= Cgroup(place).read().items()


def test_a_quota_that_is_not_seen_is_logged_once(child, tmp_path):
    samples = HostSamples(cgroups=tmp_path / "none")
    with capture_logs() as lines:
        samples.follow([recorded(child(IDLE).pid, rank) for rank in range(2)])
    assert [sample.row["throttled_ns"] for sample in samples.read(time.time_ns())] == [-1, -1]
    samples.close()
    assert [line["event"] for line in lines] == ["CPU throttling is not seen"]
    assert "CAP_SYS_PTRACE" in lines[0]["why"]


def test_a_difference_of_unknown_or_fallen_counters_is_unknown():
    assert increase({"a": 1, "b": -1, "c": 5}, {"a": 4, "b": 2, "c": 3, "d": 1}) == {"a": 3, "b": -1, "c": -1, "d": -1}


def test_a_sample_is_a_record_under_its_job_with_one_row():
    samples = HostSamples()
    samples.follow([recorded(os.getpid(), rank=3)])
    samples.poll()
    batches = HostBatches("agent", "h")
    for sequence in range(2):
        [sample] = samples.read(time.time_ns())
        key, batch = batches.batch(sample)
        batch = decode(model(Topic.HOST), encode(model(Topic.HOST), batch))
        assert key == record_key(batch) == "j"
        envelope = batch.envelope
        assert (envelope["rank"], envelope["sequence"], envelope["process_id"]) == (3, sequence, "agent")
        assert envelope["pid"] == os.getpid()
        assert batch.columns["interval_ns"][0] > 0
        assert batch.columns["main_cpu_ns"][0] >= 0
        assert batch.columns["main_switches"][0] >= 0
    samples.close()
