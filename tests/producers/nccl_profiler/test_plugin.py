"""The plugin under a fake NCCL: every version of the interface, with and without sanitizers."""

import json
import os
import resource
import stat
import statistics
import subprocess
import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from support.fake_nccl import COMPILER, PROGRAMS, SOURCES, Programs, Ring, only
from support.ring_reader import Reader

from drumline.infra.config.settings import RingSettings
from drumline.producers.identity import Identity
from drumline.producers.ipc.control import FILE, ControlRequest
from drumline.producers.rings.control_answer import control_answer
from drumline.producers.rings.host_rings import RingFolder
from drumline.producers.rings.ring_file import COPY_ENGINES, FUNCTIONS, MARK_UNTIMED, Kind, RingFile
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.segment_format import SEGMENT_MAGIC, scan
from drumline.schemas.batch import decode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

VERSIONS = range(1, 8)
UNSEEN = 2**64 - 1


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    return Programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def ring(programs, tmp_path):
    """Runs a scenario and returns its ring."""

    def run(scenario: str, version: int = 5, kind: str = "plain", returns: int = 0, **more: str) -> Ring:
        done = programs.run(scenario, version, tmp_path / "rings", kind, **more)
        assert (done.returncode, done.stderr) == (returns, "")
        return only(tmp_path / "rings")

    return run


def test_each_member_is_read_where_nccls_headers_have_it():
    command = [*COMPILER, "-fsyntax-only", f"-I{SOURCES}", PROGRAMS / "interface_match.c"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def values(record: np.void, names: str) -> list[int]:
    return [int(record[name]) for name in names.split()]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_operation_is_recorded_with_all_that_its_version_carries(ring, version):
    result = ring("one", version, rank="5", drumline_job="pretraining")
    mark, collective, p2p = result.records
    comm = result.comms[0]
    assert result.header["interface"] == version
    assert b"DRUMLINE_JOB=pretraining\0RANK=5\0\0" in result.data[512:4096]
    assert (comm["id"], comm["rank"], comm["generation"]) == (42, 5, 1)
    assert (comm["ranks"], comm["nodes"], comm["name"]) == ((8, 2, b"world") if version >= 4 else (0, 0, b""))
    assert 0 < comm["created_ns"] <= collective["host_ns"] <= comm["closed_ns"]
    assert values(mark, "kind step sequence count comm") == [Kind.STEP_MARK, 7, 7, 1, 0xFFFF]
    names = "kind function datatype algorithm protocol sequence count peer step comm plan"
    assert FUNCTIONS[collective["function"] - 1] == "AllReduce"
    assert values(collective, names) == [Kind.OPERATION, 5, 8, 2, 3, 1, 101, 0, 7, 0, 1]
    assert values(p2p, names) == [Kind.OPERATION, 7, 8, 0, 0, 0, 101, 6, 7, 0, 2]
    if version >= 4:  # the GPU's times: least start and greatest stop of two channels
        assert [(int(r["gpu_start_ns"]), int(r["gpu_stop_ns"])) for r in (collective, p2p)] == [(1000, 1501)] * 2
        assert result.started.tolist() == result.stopped.tolist() == [0, 2, 2]
        assert (collective["seen_ns"] >= collective["host_ns"]) & (p2p["seen_ns"] >= p2p["host_ns"])
        # A plugin of version 4 gets no number of channels with point-to-point operations from NCCL 2.28 on.
        assert (collective["channels"], p2p["channels"]) == (2, 0 if version == 4 else 2)
    else:
        assert [int(r["gpu_start_ns"]) for r in (collective, p2p)] == [UNSEEN] * 2
        assert {int(r[name]) for r in (collective, p2p) for name in ("gpu_stop_ns", "seen_ns", "channels")} == {0}


def test_a_window_is_rejected_by_a_process_whose_policy_is_light(ring, tmp_path):
    result, now = ring("one", drumline_collect__policy="light"), time.time_ns()
    folder = os.open(result.path.parent, os.O_RDONLY)
    file = RingFile(result.path.name, folder)
    environment = file.header().environment
    file.close()
    os.close(folder)
    window = ControlRequest("w", "window", "always", "*", "", "*", (), -1, now - 1, now + 10**11, 1)
    (tmp_path / FILE).write_text(json.dumps([vars(window)]))
    process = Identity("job", "run", 0, 0, 2, "host", "GPU-0", "process", source="nccl")
    assert control_answer(tmp_path, process, environment).startswith("rejected w: its policy is light")
    assert control_answer(tmp_path, process, {}) == "accepted w"


@pytest.mark.parametrize(
    ("kind", "version"), [("plain", 5), *(("address", v) for v in VERSIONS), *(("thread", v) for v in (1, 4, 6, 7))]
)
def test_threads_write_every_operation_once(ring, kind, version):
    result = ring("threads", version, kind)
    operations = result.operations
    assert (result.header["dropped"], result.header["unknown"], result.header["ended"]) == (0, 0, 1)
    assert (result.records["number"] == np.arange(1, len(result.records) + 1)).all()
    assert len(operations) == 4 * 300 + 50
    for thread in range(4):
        [index] = np.flatnonzero(result.comms["id"] == 10 + thread)
        of_comm = operations[operations["comm"] == index]
        collectives = of_comm[of_comm["function"] == 5]
        assert collectives["sequence"].tolist() == list(range(1, 201))  # in the order of the calls
        assert len(of_comm) == 300
    if version >= 4:
        is_operation = result.records["kind"] == Kind.OPERATION
        channels = result.operations["count"] - 100 & 0xFF
        assert (result.stopped[is_operation] == 1 + channels % 24).all()
        assert (result.stopped == result.started).all()
        assert (operations["gpu_stop_ns"] - operations["gpu_start_ns"] == 500 + result.stopped[is_operation] - 1).all()


@pytest.mark.parametrize(
    ("kind", "version"), [("address", 2), ("address", 5), ("thread", 3), ("thread", 4), ("thread", 6), ("address", 7)]
)
def test_the_end_of_communicators_races_with_their_operations(ring, kind, version):
    result = ring("race", version, kind, RECORDS="128")
    # How many operations are recorded before their communicator ends is a matter of luck, and 128 have room.
    assert result.records["number"].tolist() == list(range(1, result.header["written"] + 1))
    assert 0 < result.header["written"] <= 128
    assert result.header["dropped"] + result.header["unknown"] > 0


@pytest.mark.parametrize("kind", ["address", "thread"])
@pytest.mark.parametrize(
    "scenario", ["full", "unknown", "forked", "churn", "many", "marks", "paused", "pace", "graph", "drift"]
)
def test_sanitizers_find_nothing(programs, tmp_path, scenario, kind):
    done = programs.run(scenario, 5, tmp_path, kind, RECORDS="64")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_ring_has_the_records_of_the_setting(ring):
    assert ring("one").header["capacity"] == RingSettings().records


@pytest.mark.parametrize("version", [1, 5])
def test_a_full_ring_drops_and_counts_and_goes_on_when_it_was_read(ring, version):
    result = ring("full", version, RECORDS="50")
    assert (result.header["capacity"], result.header["written"], result.header["dropped"]) == (64, 67, 36)
    assert result.header["unknown"] == 0  # channels of dropped operations are not counted again
    assert result.records["sequence"].tolist() == [*range(4, 65), 101, 102, 103]


def test_nothing_is_written_while_the_agents_position_makes_no_sense(ring):
    result = ring("damaged", 5)
    assert (len(result.operations), result.header["written"], result.header["dropped"]) == (1, 1, 1)


def test_events_without_a_known_parent_touch_nothing_and_are_counted(ring):
    result = ring("unknown", 5, RECORDS="64")
    assert (result.header["unknown"], result.header["dropped"]) == (8, 0)
    assert result.operations["sequence"].tolist() == [1, *range(2, 65)]  # the first is of the closed communicator
    assert result.started.tolist() == result.stopped.tolist() == [0, *result.operations["channels"][1:]]
    assert result.operations["gpu_start_ns"].tolist() == [UNSEEN, *range(2_000, 65_000, 1_000)]


def test_a_forked_child_writes_into_a_file_of_its_own(programs, tmp_path):
    assert programs.run("forked", 5, tmp_path).returncode == 0
    parent, child = sorted((Ring(path) for path in tmp_path.glob("*.ring")), key=lambda r: r.header["created_ns"])
    assert [parent.operations["sequence"].tolist(), child.operations["sequence"].tolist()] == [[1, 2], [1]]
    assert (parent.operations["gpu_stop_ns"] < 9_000_000).all()
    assert (parent.comms["id"].max(), child.comms["id"].max()) == (42, 77)
    assert parent.header["pid"] != child.header["pid"]


def test_a_killed_process_leaves_every_record(ring):
    result = ring("killed", 5, returns=-9)
    assert result.operations["sequence"].tolist() == list(range(1, 21))
    assert (result.stopped == result.operations["channels"]).all()
    assert result.header["ended"] == 0


def test_entries_of_ended_communicators_are_used_again_once_their_records_were_read(ring):
    result = ring("churn", 5)
    assert (result.header["comms"], result.header["comms_denied"], result.header["denied"]) == (1024, 0, 0)
    last = result.operations[-1]
    entry = result.comms[last["comm"]]
    assert (entry["id"], entry["generation"], entry["closed_ns"]) == (2500, last["generation"], 0)
    assert result.comms["generation"].min() == 1
    recent = result.operations[-40:]  # not read yet: their entries are still theirs
    assert result.comms["id"][recent["comm"]].tolist() == list(range(2461, 2501))


def test_the_ring_goes_on_after_nccl_has_closed_the_library_and_opened_it_again(ring):
    result = ring("reopened", 5)
    assert result.operations["sequence"].tolist() == [1, 1]
    assert result.comms["id"][:2].tolist() == [1, 2]


def test_communicators_beyond_the_table_are_counted_and_their_operations_too(ring):
    result = ring("many", 5)
    assert (result.header["comms"], result.header["comms_denied"]) == (1024, 6)
    assert (len(result.operations), result.header["denied"], result.header["unknown"]) == (4, 6, 0)


def test_marks_stamp_the_step_on_the_operations_that_follow(ring):
    result = ring("marks", 4)
    step = [Kind.STEP_MARK, Kind.OPERATION, Kind.OPERATION]
    kinds = [Kind.OPERATION, *step * 3, Kind.RANGE_BEGIN, Kind.RANGE_END, Kind.STEP_MARK, Kind.OPERATION]
    assert result.records["kind"].tolist() == kinds
    assert result.records["step"].tolist() == [-1, 3, 3, 3, 4, 4, 4, 5, 5, 5, 5, 5, -1, -1]
    assert [result.name(10), result.name(11)] == ["validation of the whole test set", ""]
    assert result.records["sequence"][[10, 11]].tolist() == [11, 11]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_job_switches_off_is_not_recorded_and_lies_between_marks(ring, version):
    result = ring("paused", version)
    step, operation, switch = Kind.STEP_MARK, Kind.OPERATION, Kind.RECORD
    kinds = [switch, step, switch, step, operation, operation, switch, step, switch, operation]
    assert result.records["kind"].tolist() == kinds
    marks = result.records[result.records["kind"] != operation]
    assert marks["sequence"].tolist() == [0, 1, 1, 2, 0, 3, 1]
    assert marks["function"].tolist() == [0, 1, 0, 0, 0, 1, 0]  # off at the begin of steps 1 and 3
    names = "unknown dropped denied paused"
    assert [result.header[name] for name in names.split()] == [0, 0, 0, 0]
    assert result.operations["sequence"].tolist() == [2, 4, 6]
    assert result.stopped[result.records["kind"] == operation].tolist() == ([3, 5, 7] if version >= 4 else [0] * 3)


def test_what_the_job_switches_off_still_goes_to_a_chained_plugin(ring, programs, tmp_path):
    log = tmp_path / "calls"
    result = ring("paused", 5, CHAIN=str(programs.chained("5")), chained_log=str(log), chained_mask="66")
    assert (len(result.operations), result.header["unknown"]) == (3, 0)
    assert [sum(line.startswith(f"start {kind} ") for line in calls(log)) for kind in (2, 64)] == [6, sum(range(2, 8))]


def is_measured(result):
    """Return which operations have the GPU's times, and which marks of steps state so."""
    operation, mark = (result.records["kind"] == kind for kind in (Kind.OPERATION, Kind.STEP_MARK))
    return (result.stopped[operation] > 0).tolist(), (result.records["function"][mark] & MARK_UNTIMED == 0).tolist()


def test_where_calls_are_dense_each_fourth_span_of_steps_is_measured(ring):
    result = ring("pace", all_from="250", all_to="260")
    has_times, is_stated = is_measured(result)
    assert has_times == is_stated
    measured = [step for step, known in enumerate(has_times) if known]
    assert measured == [*range(80), *range(160, 200), *range(250, 260), *range(320, 360), 370]  # 370: in no step
    assert (len(has_times), result.header["dropped"], result.header["unknown"]) == (401, 0, 0)


def test_while_the_agent_asks_all_steps_are_measured(ring):
    steps = {"slow_from": "100", "slow_ms": "10", "calls": "40"}
    _, is_stated = is_measured(ring("pace", requested_from="100", requested_ms="200", **steps))
    measured = [*range(80), *range(100, 120), *range(160, 200), *range(320, 360), 370]
    assert [step for step, known in enumerate(is_stated) if known] == measured


def test_pauses_of_the_recording_change_nothing_of_which_steps_are_measured(ring):
    _, is_stated = is_measured(ring("pace", pause_ms="1000"))
    measured = [*range(80), *range(160, 200), *range(320, 360), 370]
    assert [step for step, known in enumerate(is_stated) if known] == measured


@pytest.mark.parametrize(
    ("more", "measured"),
    [
        ({"slow_from": "100", "slow_ms": "1000"}, [*range(80), *range(113, 401)]),  # then no dense job any more
        ({"slow_from": "200", "slow_ms": "150", "calls": "40"}, [*range(80), *range(160, 200), *range(281, 360), 370]),
    ],
)
def test_a_job_that_becomes_slow_where_nothing_is_measured_is_measured_12_s_later(ring, more, measured):
    result = ring("pace", **more)
    _, is_stated = is_measured(result)
    assert [step for step, known in enumerate(is_stated) if known] == measured
    assert result.header["untimed_steps"] == 401 - len(measured)


@pytest.mark.parametrize(
    "more",
    [
        {"pace_us": "4000"},
        {"pace_us": "4000", "ranges": "20"},
        {"TIMES": "all"},
        {"TIMES": "all", "all_from": "0", "all_to": "2"},
    ],
)
def test_where_calls_are_sparse_or_the_setting_is_all_all_steps_are_measured(ring, more):
    assert all(is_measured(ring("pace", **more))[0])


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_every_replay_of_a_graph_is_recorded_with_the_number_of_its_captured_calls(ring, version):
    result = ring("graph", version)
    names = ("kind", "captured", "plan")
    rows = [tuple(int(record[name]) for name in names) for record in result.records]
    captured = (1, 2, 3) if version >= 5 else (0, 0, 0)  # version 4 tells of no calls
    expected = [(Kind.OPERATION, 0, 1)]
    for first_plan in (2, 6):
        expected += [(Kind.GRAPH_REPLAY, *rows[len(expected)][1:])]
        expected += [(Kind.OPERATION, number, first_plan + i) for i, number in enumerate((*captured, 0))]
    assert rows == expected
    marks = result.records[result.records["kind"] == Kind.GRAPH_REPLAY]
    assert set(marks["count"].tolist()) == ({3} if version >= 5 else {0})  # the graph's calls: (0, 3]
    assert result.header["captured"] == max(captured)


@pytest.mark.parametrize(("version", "kind"), [(6, "plain"), (7, "plain"), (6, "address"), (7, "thread")])
def test_a_collective_by_copy_engines_is_recorded_as_a_call_without_times(ring, version, kind):
    by_copies, by_kernel = ring("copies", version, kind).operations
    names = "sequence count datatype algorithm protocol channels captured plan"
    assert FUNCTIONS[by_copies["function"] - 1] == "AllGather"
    assert values(by_copies, names) == [77, 900, 8, 0, COPY_ENGINES, 0, 0, 0]
    assert by_copies["gpu_start_ns"] == UNSEEN
    assert FUNCTIONS[by_kernel["function"] - 1] == "AllReduce"


def rows_of(result, **view):
    """The collectives that an agent derives of a ring."""
    header = np.array(list(result.header.values()), "<i8")
    records = np.zeros(result.header["capacity"], result.records.dtype)
    records[: len(result.records)] = result.records
    reader = Reader(SimpleNamespace(header=header, records=records, comms=result.comms, capacity=len(records)))
    reader.round(time.time_ns() + 10**10, **view)
    return reader.rows(Topic.COLLECTIVE, "step", "duration_ns", "start_ns")


@pytest.mark.parametrize("library", ["librccl.so", "librccl.so.1"])
@pytest.mark.parametrize(("version", "kind"), [(4, "thread"), (5, "plain"), (7, "address")])
def test_ticks_of_a_gpu_and_channels_without_a_stop_are_the_times_of_rccl(ring, version, kind, library):
    result = ring("ticks", version, kind, library=library)
    assert result.header["gpu_ticks"] == 1
    assert 0 < result.operations[0]["gpu_stop_ns"] < 1e12
    rows = rows_of(result, has_ticks=True)
    assert len(rows) >= 8, "the first two seconds have no times"
    assert {duration_ns for _, duration_ns, _ in rows} == {2_000_000}
    lengths = [after - start for (_, _, start), (_, _, after) in pairwise(rows)]
    assert statistics.median(lengths) == pytest.approx(1e8, rel=0.05)


@pytest.mark.parametrize("library", ["", "libnccl.so.2", "librccl-net.so", "librccl.so_old", "librccl"])
def test_times_of_any_library_but_rccl_are_ns(ring, library):
    result = ring("ticks", library=library)
    assert result.header["gpu_ticks"] == 0
    assert {duration_ns for _, duration_ns, _ in rows_of(result)} == {200_000}, "as they are, not scaled"


def test_operations_of_one_kernel_have_one_plan(ring):
    assert ring("grouped", 5).operations["plan"].tolist() == [1, 1, 2]


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_times_of_older_operations_are_left_out_after_copies_to_the_rank_itself(ring, version):
    result = ring("drift", version, RECORDS="512")
    to_itself, to_peer, wide, narrow = (result.operations[i::4] for i in range(4))
    ran = 1000 + 1000 * np.arange(1, 301, dtype=np.uint64)  # when the GPU ran the three kernels of each round
    started, stopped, drifted = (counts[result.records["kind"] == Kind.OPERATION] for counts in
                                 (result.started, result.stopped, result.drifted))  # fmt: skip
    assert (started == stopped).all()
    assert set(to_itself["gpu_stop_ns"].tolist()) == {0}
    assert set(narrow["gpu_stop_ns"].tolist()) == {0}
    assert (stopped[3::4].tolist(), drifted[3::4].tolist()) == ([0] * 100, [4] * 100)
    if version == 4:  # nobody knows which channels the copy used
        assert set(wide["gpu_stop_ns"].tolist()) == {0}
        return
    assert to_peer["gpu_start_ns"].tolist() == ran[::3].tolist()
    assert to_peer["gpu_stop_ns"].tolist() == (ran[::3] + 100).tolist()
    assert wide["gpu_start_ns"].tolist() == ran[1::3].tolist()
    assert wide["gpu_stop_ns"].tolist() == (ran[1::3] + 100).tolist()
    assert (stopped[2::4].tolist(), drifted[2::4].tolist()) == ([8] * 100, [16] * 100)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_folder_nothing_is_written_and_nothing_fails(programs, tmp_path, version):
    assert programs.run("chain", version, None).returncode == 0
    assert programs.run("chain", version, tmp_path / "missing" / "rings").returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_the_folder_is_not_followed(programs, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "rings").symlink_to(tmp_path / "elsewhere")
    assert programs.run("chain", 5, tmp_path / "rings").returncode == 0
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_full_disk_leaves_no_file_and_fails_nothing(programs, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        done = programs.run("chain", 5, tmp_path / "rings")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.returncode == 0
    assert list((tmp_path / "rings").iterdir()) == []


def test_only_the_agents_group_may_read_a_ring(programs, tmp_path):
    for name, mode, wanted in (("private", 0o777, 0o600), ("shared", 0o2777, 0o660)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        assert programs.run("one", 5, tmp_path / name).returncode == 0
        assert stat.S_IMODE(only(tmp_path / name).path.stat().st_mode) == wanted
    assert programs.run("one", 5, tmp_path / "new").returncode == 0
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o1777  # as the folder of spools: for jobs of all users


def calls(log) -> list[str]:
    lines = log.read_text().splitlines()
    assert not [line for line in lines if "WRONG" in line]
    return lines


def chained_calls(version: int) -> list[str]:
    """Calls of the scenario "chain" as NCCL makes them for a plugin that wants all, whose handles are never NULL."""
    context, lines = "context mine parent", [f"init {version}"]
    for kind in (2, 4):
        parent, group = "mine", "none"
        if version >= 5:
            api = kind << 8
            lines += [f"start 256 {context} none group none", f"start {api} {context} mine group none"]
            lines += [f"stop {api} mine", "stop 256 mine"]
            group = "mine"
        lines += [f"start 1 {context} none group none", f"start {kind} {context} {parent} group {group}"]
        lines += [f"stop {kind} mine", "stop 1 mine"]
        if version >= 4:
            lines += [f"start 64 {context} mine group none"] * 2
            lines += [line for time in (1500, 1501) for line in (f"state 22 mine {time}", "stop 64 mine")]
    # Kind, first version, whether it has a parent, state; in the order of their begins.
    more_kinds = [(8, 1, True, 19), (16, 1, True, 9), (128, 3, True, 21), (32, 1, False, 13), (4096, 6, True, 26)]
    more_kinds += [(8192, 6, True, 0), (16384, 6, True, 0), (64, 7, True, 0), (32768, 7, True, 31), (2048, 5, False, 0)]
    more_kinds = [other for other in more_kinds if other[1] <= version]
    lines += [f"start {kind} {context} {'mine' if parent else 'none'} group none" for kind, _, parent, _ in more_kinds]
    states = {kind: state for kind, _, _, state in more_kinds}
    for kind in (128, 16, 8, 32, 8192, 16384, 4096, 32768, 2048):
        if kind in states:
            lines += [f"state {states[kind]} mine 0"] * bool(states[kind]) + [f"stop {kind} mine"]
    return [*lines, *["state 22 mine 3500", "stop 64 mine"] * (version >= 7), "finalize mine"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["address", "thread"])
def test_a_chained_plugin_gets_every_call_with_its_handles(programs, tmp_path, version, kind):
    log, chained = tmp_path / "calls", str(programs.chained("1234567"))
    more = {"CHAIN": chained, "chained_log": str(log), "chained_mask": str(0xFFFF)}
    done = programs.run("chain", version, tmp_path / "rings", kind, **more)
    assert (done.returncode, done.stderr) == (0, "")
    assert calls(log) == chained_calls(version)
    result = only(tmp_path / "rings")
    operations = 2 + (version >= 6)  # and a collective by copy engines
    assert (result.header["chain"], result.header["unknown"], len(result.operations)) == (1, 0, operations)
    assert (result.started == result.stopped).all()


def test_a_chained_plugin_gets_no_events_that_only_the_ring_needs(programs, tmp_path):
    log = tmp_path / "calls"
    more = {"CHAIN": str(programs.chained("5")), "chained_log": str(log), "chained_mask": "4"}
    assert programs.run("chain", 5, tmp_path / "rings", **more).returncode == 0
    kinds = [line.split()[1] for line in calls(log) if line.startswith("start")]
    assert kinds == ["256", "1", "256", "1024", "1", "4"]  # of the send: its group and call, and the group of the other
    assert len(only(tmp_path / "rings").operations) == 2


@pytest.mark.parametrize(("kind", "version"), [("address", 5), ("thread", 4), ("thread", 6), ("thread", 7)])
def test_a_chained_plugin_gets_its_handles_from_all_threads(ring, programs, kind, version):
    result = ring("threads", version, kind, CHAIN=str(programs.chained("4567")), chained_mask=str(0xFFFF))
    assert (len(result.operations), result.header["unknown"], result.header["dropped"]) == (1_250, 0, 0)
    assert (result.started == result.stopped).all()


def test_a_chained_plugin_may_change_what_it_asks_for_at_any_time(programs, tmp_path):
    log = tmp_path / "calls"
    more = {"CHAIN": str(programs.chained("5")), "chained_log": str(log), "chained_mask": "2", "chained_later": "66"}
    assert programs.run("chain", 5, tmp_path / "rings", **more).returncode == 0
    kinds = [line.split()[1] for line in calls(log) if line.startswith("start")]
    assert kinds == ["256", "512", "1", "2", "64", "64", "256", "1024", "1", "4", "64", "64"]
    assert len(only(tmp_path / "rings").operations) == 2


def test_versions_are_those_that_the_chained_plugin_has(programs, tmp_path):
    log = tmp_path / "calls"
    more = {"CHAIN": str(programs.chained("24")), "chained_log": str(log), "chained_mask": "2"}
    for nccl, version in ((6, 4), (3, 2)):
        assert programs.run("chain", nccl, tmp_path / str(nccl), **more).returncode == 0
        result = only(tmp_path / str(nccl))
        assert (result.header["interface"], result.header["chain"], len(result.operations)) == (version, 1, 2)


@pytest.mark.parametrize(
    ("chain", "state"),
    [("/nowhere/libmissing.so", 2), ("libc.so.6", 2), ("libnccl-profiler.so", 0), ("none", 0), ("", 0)],
)
def test_a_plugin_that_cannot_be_chained_is_marked_in_the_header_and_the_ring_is_written(ring, chain, state):
    result = ring("chain", 5, CHAIN=chain)
    assert (result.header["chain"], len(result.operations)) == (state, 2)


@pytest.mark.parametrize("name", ["STATIC_PLUGIN", "static"])
def test_a_plugin_that_is_linked_into_the_job_gets_every_call_too(programs, tmp_path, name):
    log, linked = tmp_path / "calls", str(programs.chained("5"))
    more = {"CHAIN": name, "chained_log": str(log), "chained_mask": str(0xFFFF), "ld_preload": linked}
    assert programs.run("chain", 5, tmp_path / "rings", **more).returncode == 0
    assert calls(log) == chained_calls(5)
    assert (only(tmp_path / "rings").header["chain"], len(only(tmp_path / "rings").operations)) == (1, 2)


def test_nothing_is_chained_where_no_plugin_is_linked_into_the_job(ring):
    result = ring("chain", 5, CHAIN="STATIC_PLUGIN")
    assert (result.header["chain"], len(result.operations)) == (2, 2)


def test_a_chain_to_drumline_itself_is_none(ring, programs):
    result = ring("chain", 5, CHAIN=str(programs.plugin()))
    assert (result.header["chain"], len(result.operations)) == (0, 2)


def test_a_chained_plugin_runs_alone_where_no_ring_can_be_written(programs, tmp_path):
    log = tmp_path / "calls"
    more = {"CHAIN": str(programs.chained("5")), "chained_log": str(log), "chained_mask": str(0xFFFF)}
    assert programs.run("chain", 5, None, **more).returncode == 0
    assert calls(log) == chained_calls(5)


@pytest.mark.parametrize("folder", [None, "rings"])
def test_a_chained_plugin_may_have_no_contexts(programs, tmp_path, folder):
    log = tmp_path / "calls"
    more = {"CHAIN": str(programs.chained("5")), "chained_log": str(log), "chained_mask": str(0xFFFF)}
    done = programs.run("chain", 5, folder and tmp_path / folder, **more, chained_stateless="1")
    assert done.returncode == 0
    assert calls(log) == chained_calls(5)[:-1]  # NCCL ends no context that is none


def test_a_chained_plugin_whose_init_fails_gets_nothing_more(ring, programs, tmp_path):
    log = tmp_path / "calls"
    more = {"chained_log": str(log), "chained_mask": "2", "chained_fails": "1"}
    assert len(ring("chain", 5, CHAIN=str(programs.chained("5")), **more).operations) == 2
    assert calls(log) == ["init 5"]


def test_the_agent_publishes_what_the_plugin_wrote(programs, tmp_path):
    root = tmp_path / "spool"
    root.mkdir()
    begin_ns = str(time.time_ns())
    done = programs.run("one", 5, root / ".rings", rank="5", drumline_job="pretraining", gpu_begin_ns=begin_ns)
    assert done.returncode == 0
    folder = RingFolder(root / ".rings", root, SpoolLimits(), iter(range(0, 1_000, 10)).__next__)
    folder.round(time.time_ns() + 10**10)
    folder.close()
    [spool] = [path for path in root.iterdir() if not path.name.startswith(".")]
    frames = [frame for path in spool.glob("*.seg") for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :])]
    batches = [decode(model(f.topic), f.body) for f in frames if f.topic == Topic.COLLECTIVE and f.rows]
    assert [b.envelope[name] for b in batches for name in ("job", "rank", "communicator", "source")] == [
        "pretraining", 5, f"{42:016x}", "nccl",
    ]  # fmt: skip
    assert batches[0].strings("operation", "operations").tolist() == ["AllReduce", "Send"]
    assert batches[0].columns["step"].tolist() == [7, 7]
    assert batches[0].columns["duration_ns"].tolist() == [501, 501]
    assert not list((root / ".rings").iterdir())


@pytest.fixture
def small_disk(programs, tmp_path):
    """Library for LD_PRELOAD: every file system has so many free bytes of so many."""

    def build(total: int, free: int) -> str:
        source, library = tmp_path / "disk.c", tmp_path / f"disk-{total}-{free}.so"
        numbers = f"*about = (struct statvfs){{.f_frsize = 1, .f_blocks = {total}ul, .f_bavail = {free}ul}}"
        source.write_text(
            "#include <sys/statvfs.h>\n"
            f"int fstatvfs(int file, struct statvfs *about) {{ return (void)file, {numbers}, 0; }}\n"
        )
        subprocess.run([*COMPILER, "-fPIC", "-shared", "-o", library, source], check=True)
        return str(library)

    return build


def test_rings_share_a_bound_also_where_no_agent_deletes_them(programs, tmp_path, small_disk):
    """Docker's default of 64 MB in /dev/shm, which NCCL itself and data loaders need."""
    library, folder = small_disk(64 << 20, 60 << 20), tmp_path / "rings"
    for _ in range(60):
        done = programs.run("one", 5, folder, ld_preload=library)
        assert (done.returncode, done.stderr) == (0, "")
    rings = list(folder.glob("*.ring"))
    assert 8 < len(rings) < 60
    assert sum(ring.stat().st_blocks * 512 for ring in rings) <= 8 << 20
    assert {len(Ring(ring).records) for ring in rings} == {3}


def test_no_ring_is_created_where_little_space_is_left(programs, tmp_path, small_disk):
    done = programs.run("one", 5, tmp_path / "rings", ld_preload=small_disk(1 << 30, 255 << 20))
    assert (done.returncode, done.stderr) == (0, "")
    assert not list((tmp_path / "rings").iterdir())


def test_empty_files_of_another_user_keep_no_process_from_recording(ring, tmp_path):
    folder = tmp_path / "rings"
    folder.mkdir()
    for number in range(1 << 14):
        (folder / f"{number}").touch()
    assert len(ring("one").records) == 3
