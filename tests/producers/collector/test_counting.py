"""Counting of launches without a GPU: what C counts of the driver's calls, and what its decoder makes of it."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from support.fakes import launches as calls
from support.fakes.cupti import INVALID_PARAMETER, MAX_LIMIT, MULTIPLE_SUBSCRIBERS, FakeCupti
from support.fakes.launches import FakeDriver, Node, numbers
from support.labs.collected import batches, rows, sequences_are_whole
from support.wait_limit import WAIT_S

from drumline.producers.collector.counter import LaunchCounter
from drumline.producers.decoder.launch_counts import INTERVAL_NS, UNNAMED, LaunchCounts
from drumline.producers.ipc import count_layout as layout
from drumline.producers.ipc.buffer_pool import BufferPool
from drumline.producers.ipc.count_layout import CountField
from drumline.producers.ipc.policy import ALWAYS, COUNTS, OFF, Policy
from drumline.schemas.topics import Topic

S = 1_000_000_000
TESTS = Path(__file__).parents[2]
GEMM, ADD = 0x1000, 0x2000
NAMES = {GEMM: b"_Z4gemmPf", ADD: b"_Z3addPf"}
EXEC, GRAPH, CHILD = 0xE0, 0xA0, 0xA1
HOST, GPU = 0x10, 0x7000_0000


class Counting:
    """A process that counts. `events`: what its decoder is told."""

    def __init__(self):
        self.pool, self.cupti, self.events = BufferPool(2, 1 << 20), FakeCupti(), []
        self.driver = FakeDriver(self.cupti, dict(NAMES))
        self.counter = LaunchCounter(self.cupti.bound(), self.pool, lambda: self.driver, self.events.append)
        self.counter.follow(Policy(COUNTS), False)
        self.reader, self.now = LaunchCounts(self.pool), 100 * S
        assert not self.reader.is_due(self.now), "the first interval begins"

    def table(self):
        """The rows of the next interval."""
        self.now += INTERVAL_NS
        table, totals = self.reader.take(self.now)
        self.reader.note(totals, self.now)
        return table

    def counted(self):
        """Launches, of them replays, and bytes by kernel or kind of copy."""
        table, sums = self.table(), {}
        for i in range(table.rows if table is not None else 0):
            name = table.dictionaries["names"][table["name"][i]] or int(table["kind"][i])
            of = sums.setdefault(name, [0, 0, 0])
            for at, column in enumerate(("launches", "replayed", "bytes")):
                of[at] += int(table[column][i])
        return sums

    def status(self, field):
        return int(self.reader._header[field])


@pytest.fixture
def process():
    counting = Counting()
    yield counting
    counting.counter.end("end of the test")
    counting.counter.forget()


@pytest.mark.parametrize("number", [
    calls.LAUNCH, calls.LAUNCH_PTSZ, calls.LAUNCH_EX, calls.COOPERATIVE, 478, 653,
])  # fmt: skip
def test_each_way_to_launch_counts_once_with_its_shape(process, number):
    process.driver.launch(GEMM, (4, 2, 3, 128, 2, 1, 48), number)
    table = process.table()
    shape = [int(table[f"{extent}_{axis}"][0]) for extent in ("grid", "block") for axis in "xyz"]
    assert (table.rows, shape, int(table["shared_dynamic"][0])) == (1, [4, 2, 3, 128, 2, 1], 48)
    assert (table.dictionaries["names"], int(table["launches"][0]), int(table["kind"][0])) == (["_Z4gemmPf"], 1, 128)
    assert (int(table["start_ns"][0]), int(table["duration_ns"][0])) == (100 * S, INTERVAL_NS)


def test_a_launch_on_several_gpus_counts_once_for_each(process):
    process.driver.launch(ADD, number=calls.MANY)
    assert process.counted() == {"_Z3addPf": [2, 0, 0]}


def test_an_interval_has_what_was_launched_in_it_alone(process):
    for launches in (3, 0, 5):
        for _ in range(launches):
            process.driver.launch(GEMM)
        assert process.counted() == ({"_Z4gemmPf": [launches, 0, 0]} if launches else {})


def test_what_failed_or_is_captured_did_not_run(process):
    driver = process.driver
    driver.launch(GEMM, result=calls.INVALID)
    driver.capture(9)
    driver.launch(GEMM)
    driver.launch(GEMM, number=calls.LAUNCH_EX)
    driver.call(calls.HTOD_ASYNC, numbers(GPU, HOST, 100, 9))
    driver.replay(EXEC)
    driver.launch(ADD, stream=8)
    driver.end_capture(9, calls.INVALIDATED)
    driver.launch(ADD)
    assert process.counted() == {"_Z3addPf": [2, 0, 0]}


def test_streams_are_looked_at_only_while_one_is_captured(process):
    process.driver.capture(9)
    process.driver.capture(8)
    process.driver.end_capture(9)
    process.driver.end_capture(9, calls.INVALID)  # of a stream that captures nothing
    process.driver.launch(GEMM, stream=8)
    assert process.counted() == {}
    process.driver.end_capture(8)
    process.driver.capturing.add(8)  # it would say so, but is not asked
    process.driver.launch(GEMM, stream=8)
    assert process.counted() == {"_Z4gemmPf": [1, 0, 0]}


def test_copies_are_counted_by_kind_with_their_bytes(process):
    call = process.driver.call
    call(calls.HTOD_ASYNC, numbers(GPU, HOST, 1_000, 9))
    call(calls.DTOH, numbers(HOST, GPU, 10))
    for to, source in ((GPU, HOST), (HOST, GPU), (GPU, GPU), (HOST, HOST)):  # the direction follows from the pointers
        call(calls.COPY_ASYNC, numbers(to, source, 100, 9))
    flat = [0, 0, 2, 0, GPU, 0, 0, 0, 0, 1, HOST, 0, 0, 0, 30, 4]  # CUDA_MEMCPY2D: from the GPU to the host
    call(calls.COPY_2D, numbers(ctypes.addressof(description := numbers(*flat)), 9))
    call(calls.PEER_ASYNC, numbers(GPU, 1, GPU, 2, 7, 9))
    to, source, sizes = numbers(GPU, HOST), numbers(HOST, GPU), numbers(3, 5)
    addresses = [ctypes.addressof(values) for values in (to, source, sizes)]
    call(calls.BATCH, numbers(*addresses, 2, 0, 0, 0, 0, 9))
    call(calls.SET_32_ASYNC, numbers(GPU, 0, 8, 9))
    call(calls.SET_2D, numbers(GPU, 64, 0, 6, 2, 9))
    assert process.counted() == {
        1: [3, 0, 1_103], 2: [4, 0, 235], 8: [1, 0, 100], 9: [1, 0, 100], 10: [1, 0, 7], 64: [2, 0, 44]
    }  # fmt: skip
    del description


def test_a_copy_between_two_gpus_is_none_within_one(process):
    process.driver.ordinals = {GPU + 64: 1}
    for call in (calls.DTOD_ASYNC, calls.COPY_ASYNC):
        for to, source in ((GPU, GPU + 8), (GPU + 64, GPU), (GPU, GPU + 64), (GPU + 64, GPU + 64)):
            process.driver.call(call, numbers(to, source, 100, 9))
    assert process.counted() == {8: [4, 0, 400], 10: [4, 0, 400]}


def nodes():
    return [
        Node(calls.KERNEL_NODE, ADD), Node(calls.KERNEL_NODE, GEMM, (8, 1, 1, 64, 1, 1, 0)),
        Node(calls.KERNEL_NODE, ADD), Node(calls.COPY_NODE, bytes=100), Node(calls.CHILD_NODE, child=CHILD),
    ]  # fmt: skip


def test_a_replay_counts_each_node_of_its_graph(process):
    driver = process.driver
    driver.graphs = {GRAPH: nodes(), CHILD: [Node(calls.KERNEL_NODE, ADD, is_kernel_handle=True),
                                             Node(calls.MEMSET_NODE, bytes=64)]}  # fmt: skip
    driver.instantiate(EXEC, GRAPH)
    for _ in range(10):
        driver.replay(EXEC)
    driver.launch(ADD)
    expected = {"_Z3addPf": [31, 30, 0], "_Z4gemmPf": [10, 10, 0], 1: [10, 10, 1_000], 64: [10, 10, 640]}
    assert process.counted() == expected
    assert process.counted() == {}
    driver.replay(EXEC)
    assert process.counted()["_Z3addPf"] == [3, 3, 0]


@pytest.mark.parametrize("number", [calls.INSTANTIATE, 513, 578, 656, 657])
def test_a_graph_may_be_instantiated_by_each_call_and_only_with_success(process, number):
    process.driver.graphs = {GRAPH: nodes()[:2]}
    process.driver.instantiate(EXEC, GRAPH, number, result=calls.INVALID)
    process.driver.replay(EXEC)
    assert process.counted() == {"(graph of unknown kernels)": [1, 0, 0]}
    process.driver.instantiate(EXEC, GRAPH, number)
    process.driver.replay(EXEC)
    assert process.counted() == {"_Z3addPf": [1, 1, 0], "_Z4gemmPf": [1, 1, 0]}


def test_replays_before_an_update_and_before_the_end_keep_the_nodes_of_then(process):
    """The place of a graph is used again, also within an interval."""
    driver = process.driver
    driver.graphs = {GRAPH: [Node(calls.KERNEL_NODE, ADD)], CHILD: [Node(calls.KERNEL_NODE, GEMM)] * 3}
    driver.instantiate(EXEC, GRAPH)
    driver.replay(EXEC)
    driver.instantiate(EXEC, CHILD, calls.GRAPH_UPDATE)
    driver.replay(EXEC)
    driver.replay(EXEC)
    driver.call(calls.GRAPH_DESTROY, numbers(EXEC))
    driver.instantiate(EXEC, GRAPH)
    driver.replay(EXEC)
    assert process.counted() == {"_Z3addPf": [2, 2, 0], "_Z4gemmPf": [6, 6, 0]}


def test_graphs_that_come_and_go_take_no_more_room(process):
    driver = process.driver
    for number in range(3_000):
        driver.graphs = {GRAPH: [Node(calls.KERNEL_NODE, ADD, (number % 7 + 1, 1, 1, 32, 1, 1, 0))] * 5}
        driver.instantiate(EXEC, GRAPH)
        driver.replay(EXEC)
        driver.call(calls.GRAPH_DESTROY, numbers(EXEC))
    assert process.counted() == {"_Z3addPf": [15_000, 15_000, 0]}
    assert (process.status(CountField.NODES_USED), process.reader.counts) == (8, {})


def test_graphs_beyond_the_room_count_their_kernels_without_names(process):
    driver, replays = process.driver, 0
    driver.graphs = {GRAPH: [Node(calls.KERNEL_NODE, ADD, (i + 1, 1, 1, 32, 1, 1, 0)) for i in range(1_100)]}
    for number in range(layout.NODES // 2_048 + 3):
        driver.instantiate(EXEC + 16 * number, GRAPH)
        driver.replay(EXEC + 16 * number)
        replays += 1
    counted, status = process.counted(), process.reader.counts
    assert status == {"unknown_graphs": 3}
    assert counted == {"_Z3addPf": [1_100 * (replays - 3)] * 2 + [0], "(other kernels)": [3_300, 3_300, 0]}


def test_a_conditional_node_is_stated(process):
    process.driver.graphs = {GRAPH: [Node(calls.KERNEL_NODE, ADD), Node(calls.CONDITIONAL_NODE)]}
    process.driver.instantiate(EXEC, GRAPH)
    assert process.reader.counts == {"conditional_nodes": 1}


def test_a_handle_that_is_used_again_has_the_name_of_its_new_kernel(process):
    process.driver.launch(GEMM)
    process.driver.call(calls.UNLOAD, numbers(1))
    process.driver.names[GEMM] = b"_Z3newPf"
    process.driver.launch(GEMM)
    process.driver.launch(ADD)
    process.driver.call(calls.LIBRARY_UNLOAD, numbers(1))
    process.driver.launch(ADD)
    assert process.counted() == {"_Z4gemmPf": [1, 0, 0], "_Z3newPf": [1, 0, 0], "_Z3addPf": [2, 0, 0]}
    assert process.status(CountField.ENTRIES_USED) == 3, "a name that stayed takes no new entry"


def test_kernels_without_a_name_are_counted_and_stated(process):
    process.driver.gives_symbols = False
    process.driver.launch(GEMM)
    assert (process.counted(), process.reader.counts) == ({UNNAMED: [1, 0, 0]}, {"unnamed_kernels": 1})
    process.driver.gives_symbols = True
    process.driver.launch(GEMM)
    assert process.counted() == {"_Z4gemmPf": [1, 0, 0]}


def test_a_table_that_is_full_counts_kernels_without_shapes_and_then_without_names(process):
    driver, shapes, more = process.driver, 8_000, 3_000
    for number in range(shapes):
        driver.launch(GEMM, (number + 1, 1, 1, 32, 1, 1, 0))
    table = process.table()
    assert (table["launches"].sum(), table.dictionaries["names"]) == (shapes, ["_Z4gemmPf"])
    (several,) = table.take(table["grid_x"] == 0)["launches"].tolist()
    assert 500 < several < 2_000
    driver.names |= {0x10_0000 + 16 * number: b"kernel%d" % number for number in range(more)}
    for number in range(more):
        driver.launch(0x10_0000 + 16 * number)
    counted = process.counted()
    assert sum(of[0] for of in counted.values()) == more, "none is lost"
    assert 0 < counted["(other kernels)"][0] < more
    driver.launch(GEMM, (1, 1, 1, 32, 1, 1, 0))
    assert process.counted() == {"_Z4gemmPf": [1, 0, 0]}


def test_a_name_beyond_the_limit_is_cut(process):
    process.driver.names[GEMM] = b"_Z" + b"x" * 20_000
    process.driver.launch(GEMM)
    (name,) = process.counted()
    assert (len(name), name[-1]) == (layout.LONGEST_NAME + 1, "…")


def test_threads_lose_no_launch(process):
    """Threads that launch kernels of new shapes, beside one that makes and ends graphs."""
    driver, launches = process.driver, 400
    driver.graphs = {GRAPH: [Node(calls.KERNEL_NODE, ADD)] * 4}
    halt = threading.Event()

    def launch():
        for number in range(launches):
            driver.launch(GEMM, (number % 50 + 1, 1, 1, 32, 1, 1, 0))

    def replay():
        while not halt.is_set():
            driver.instantiate(EXEC, GRAPH)
            driver.replay(EXEC)
            driver.call(calls.GRAPH_DESTROY, numbers(EXEC))
            replays.append(4)

    replays, counted = [], Counter()
    threads = [threading.Thread(target=launch) for _ in range(4)]
    other = threading.Thread(target=replay)
    for thread in (*threads, other):
        thread.start()
    while any(thread.is_alive() for thread in threads):
        counted.update({name: of[0] for name, of in process.counted().items()})
    halt.set()
    other.join()
    counted.update({name: of[0] for name, of in process.counted().items()})
    assert counted == {"_Z4gemmPf": 4 * launches, "_Z3addPf": sum(replays)}


def test_another_decoder_goes_on_where_a_killed_one_noted(process):
    process.driver.launch(GEMM)
    process.table()
    process.driver.launch(GEMM)
    process.reader = LaunchCounts(BufferPool(fd=process.pool.fd))
    assert process.reader.is_due(process.now + INTERVAL_NS)
    assert process.counted() == {"_Z4gemmPf": [1, 0, 0]}


def test_records_and_other_policies_stop_the_counting(process):
    for policy, is_recording, counts in (
        (ALWAYS, True, 0), (COUNTS, True, 0), (COUNTS, False, 1), (OFF, False, 0), (COUNTS, False, 1)
    ):  # fmt: skip
        process.counter.follow(Policy(policy), is_recording)
        assert process.counter.begun == (policy != OFF)
        process.driver.launch(GEMM)
        assert process.counted() == ({"_Z4gemmPf": [1, 0, 0]} if counts else {})
    assert [(event["on"], event["rejected"]) for event in process.events] == [
        (True, False), (False, False), (True, False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("result", "is_taken_back"), [(MAX_LIMIT, True), (MULTIPLE_SUBSCRIBERS, True), (INVALID_PARAMETER, False)]
)
def test_a_subscriber_that_was_lent_is_taken_back_where_the_profiler_keeps_it(process, result, is_taken_back):
    process.counter.lend("a profiler")
    process.cupti.holder = result
    process.counter.follow(Policy(COUNTS), False)
    assert (process.counter.begun, process.cupti.holder) == (is_taken_back, 0 if is_taken_back else result)


def test_a_subscriber_that_was_lent_stays_the_other_ones_after_a_policy_without_counts(process):
    process.counter.lend("a profiler")
    process.counter.follow(Policy(OFF), False)
    process.cupti.holder = MULTIPLE_SUBSCRIBERS
    process.counter.follow(Policy(COUNTS), False)
    assert (process.counter.begun, process.cupti.holder) == (False, MULTIPLE_SUBSCRIBERS)


def test_graphs_of_a_time_in_which_records_counted_are_known(process):
    process.counter.follow(Policy(ALWAYS), True)
    process.driver.graphs = {GRAPH: [Node(calls.KERNEL_NODE, ADD)]}
    process.driver.instantiate(EXEC, GRAPH)
    process.driver.replay(EXEC)
    process.counter.follow(Policy(COUNTS), False)
    process.driver.replay(EXEC)
    assert process.counted() == {"_Z3addPf": [1, 1, 0]}


def test_a_driver_that_is_not_there_leaves_copies_and_names():
    counting = Counting()
    counter = LaunchCounter(counting.cupti.bound(), counting.pool, absent_driver, counting.events.append)
    counting.counter.end("")
    counter.follow(Policy(COUNTS), False)
    counting.driver.launch(GEMM)
    counting.driver.graphs = {GRAPH: nodes()}
    counting.driver.instantiate(EXEC, GRAPH)
    counting.driver.call(calls.COPY_ASYNC, numbers(GPU, HOST, 100, 9))
    assert counting.counted() == {"_Z4gemmPf": [1, 0, 0], 9: [1, 0, 100]}
    counter.end("")


def absent_driver():
    raise OSError("libcuda.so.1")


def run(tmp_path, how):
    """Run counted_job.py; returns its process, its report, what is published, and the process's record."""
    spool = tmp_path / "spool"
    spool.mkdir()
    environment = {
        **os.environ,
        "DRUMLINE_SPOOL__ROOT": str(spool),
        "DRUMLINE_RINGS__FOLDER": str(spool / ".rings"),
        "DRUMLINE_COLLECT__POLICY": "auto" if how == "late" else "counts",
        "DRUMLINE_JOB": "counted",
        "DRUMLINE_RUN": "r1",
        "RANK": "3",
        "PYTHONPATH": str(TESTS),
    }
    command = [sys.executable, str(TESTS / "support/counted_job.py"), how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    report = json.loads(done.stdout.splitlines()[0]) if done.stdout else {}
    until = time.monotonic() + WAIT_S
    while report and os.path.exists(f"/proc/{report['decoder']}"):
        assert time.monotonic() < until, "the decoder outlived its job"
        time.sleep(0.02)
    return done, report, *batches(tmp_path)


def published(collected):
    sums = {}
    for topic, _, batch in collected:
        if topic == Topic.LAUNCH_COUNT and batch.rows:
            names = batch.strings("name", "names").tolist()
            for i, name in enumerate(names):
                of = sums.setdefault(name or str(batch.columns["kind"][i]), [0, 0, 0])
                for at, column in enumerate(("launches", "replayed", "bytes")):
                    of[at] += int(batch.columns[column][i])
    return sums


HELD = "CUPTI gives its callbacks to one profiler, and another has them (CUptiResult 39)"


@pytest.mark.waits
@pytest.mark.parametrize(("how", "code", "state"), [
    ("end", 0, "off: end of the process"),
    ("kill", -9, "off: the process exited without a shutdown event"),
    ("fork", 0, "off: end of the process"),
    ("window", 0, "off: end of the process"),
    ("gone", 0, "off: end of the process"),
    ("yielded", 0, "off: end of the process"),
    ("kept", 0, f"off: {HELD}"),
    ("torn_down", 0, f"off: {HELD}"),
    ("late", 0, "off: auto"),
])  # fmt: skip
def test_what_a_process_launched_is_in_the_spool_however_it_ends(tmp_path, how, code, state):
    done, report, collected, process = run(tmp_path, how)
    assert (done.returncode, done.stderr) == (code, "")
    assert published(collected) == report["launched"]
    assert (process["policy"], process["rank"]) == (state, 3)
    assert rows(collected)["gpu.kernel.v1"] == (how in ("window", "gone")), "a record in the window, and none without"
    sequences_are_whole(collected)


@pytest.mark.waits
def test_callbacks_that_another_profiler_has_are_stated_and_harm_nothing(tmp_path):
    done, report, collected, process = run(tmp_path, "held")
    assert (done.returncode, done.stderr) == (0, "")
    assert process["collector"]["problem: counts"].endswith("(CUptiResult 39)")
    assert published(collected) == {}
    assert report
