"""Records of launches by the C code that CUPTI calls back, without a GPU."""

import ctypes
import threading
import time

import numpy as np
import pytest
from support.fakes import launches as calls
from support.fakes.cupti import MULTIPLE_SUBSCRIBERS, FakeCupti
from support.fakes.launches import SMALL, CallbackData, FakeDriver, numbers

from drumline.producers.collector.counter import LaunchCounter
from drumline.producers.collector.cupti import Callbacks
from drumline.producers.ipc.buffer_pool import DONE, FREE, LENT, PER_BUFFER, STATE, BufferPool, Header
from drumline.producers.ipc.policy import AUTO, COUNTS, Policy

RECORD = np.dtype(
    [("kind", "<u4"), ("call", "<u4"), ("start", "<u8"), ("end", "<u8"), ("process", "<u4"), ("thread", "<u4"),
     ("correlation", "<u4"), ("result", "<u4")]
)  # fmt: skip
#: Buffers of a pool, and bytes of one: 102 records.
BUFFERS, BUFFER_BYTES = 4, 4096


class Process:
    """A process whose launches CUPTI reports. `records`: what its decoder has read."""

    def __init__(self):
        self.pool, self.cupti, self.records = BufferPool(BUFFERS, BUFFER_BYTES), FakeCupti(), []
        self.callbacks = Callbacks()
        self.callbacks.open(ctypes.addressof(ctypes.c_char.from_buffer(self.pool.memory)), 0)
        self.driver = FakeDriver(self.cupti, {0x1000: b"_Z4gemmPf"})
        self.launches = LaunchCounter(self.cupti.bound(), self.pool, lambda: self.driver, lambda event: None)

    def launch(self, correlation, result=calls.OK, number=calls.LAUNCH):
        self.driver.call(number, numbers(0x1000, *SMALL), result=result, correlation=correlation)

    def read(self):
        """Read what is complete, as the decoder does, and give the buffers back."""
        for number in self.pool.done():
            self.records += np.frombuffer(bytes(self.pool.valid(number)), RECORD).tolist()
            self.pool.give_back(number)

    def correlations(self):
        self.callbacks.flush_launches()
        self.read()
        return [record[6] for record in self.records]

    def states(self):
        return [self.pool.header[STATE + PER_BUFFER * number] for number in range(BUFFERS)]


@pytest.fixture
def process():
    recorded = Process()
    yield recorded
    recorded.launches.end("end of the test")
    recorded.launches.forget()
    recorded.callbacks.close()


def test_a_launch_has_its_times_its_thread_and_the_id_of_its_kernel(process):
    assert process.launches.record_launches(True)
    begin = time.time_ns()
    process.launch(7)
    end = time.time_ns()
    assert process.correlations() == [7]
    [(kind, call, start, until, _, thread, _, _)] = process.records
    assert (kind, call, thread) == (4, calls.LAUNCH, threading.get_ident() & 0xFFFF_FFFF)
    assert begin <= start <= until <= end


def test_only_what_launches_and_succeeds_is_recorded(process):
    process.launches.record_launches(True)
    process.launch(1, result=calls.INVALID)
    process.launch(2, number=calls.UNLOAD)
    process.launch(3)
    assert process.correlations() == [3]


def test_a_call_that_began_before_recording_has_no_record_and_cupti_s_word_of_it_is_not_read(process):
    process.launches.record_launches(True)
    for site, correlation in ((0, 7), (1, 8), (1, 7), (1, 7)):
        data = CallbackData(site=site, params=ctypes.addressof(numbers(0x1000, *SMALL)), correlation=correlation)
        data.correlation_data = 8  # no address
        process.cupti.call_back(calls.LAUNCH, ctypes.addressof(data))
    assert process.correlations() == [7]


def test_full_buffers_are_given_back_and_without_a_free_one_launches_are_counted_as_lost(process):
    process.launches.record_launches(True)
    capacity = BUFFERS * (BUFFER_BYTES // RECORD.itemsize)
    for number in range(capacity + 5):
        process.launch(number)
    assert process.states() == [DONE] * (BUFFERS - 1) + [LENT]
    assert process.pool.header[Header.LAUNCHES_LOST] == 5
    assert process.correlations() == list(range(capacity))
    process.launch(9_000)
    assert process.correlations()[-1] == 9_000
    assert process.states() == [FREE] * BUFFERS


def test_threads_lose_no_launch_while_buffers_are_taken_from_them(process):
    process.launches.record_launches(True)
    count, done = 3_000, threading.Event()

    def launch(first):
        for number in range(first, first + count):
            while process.states().count(FREE) < 2:
                time.sleep(0)
            process.launch(number)

    threads = [threading.Thread(target=launch, args=(count * number,)) for number in range(4)]

    def take():
        while not done.is_set():
            process.callbacks.flush_launches()
            process.read()

    taking = threading.Thread(target=take)
    for thread in (*threads, taking):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    taking.join()
    lost = process.pool.header[Header.LAUNCHES_LOST]
    assert (len(process.correlations()), len(set(process.correlations()))) == (4 * count - lost,) * 2
    assert process.states() == [FREE] * BUFFERS


def test_launches_are_recorded_once_counting_has_got_the_callbacks_that_another_profiler_had(process):
    process.cupti.holder = MULTIPLE_SUBSCRIBERS
    process.launches.follow(Policy(COUNTS), True)
    assert not process.launches.record_launches(True)
    process.cupti.holder, process.launches._retry_at = 0, 0.0
    process.launches.follow(Policy(COUNTS), True)
    assert process.launches.record_launches(True)
    process.launch(1)
    assert process.correlations() == [1]


def test_what_is_written_at_the_end_of_the_process_reaches_the_decoder_or_is_counted(process):
    process.launches.record_launches(True)
    process.launch(1)
    process.callbacks.close()
    process.launch(2)  # it still fits into the open buffer
    process.callbacks.flush_launches()
    process.launch(3)
    process.read()
    assert [record[6] for record in process.records] == [1, 2]
    assert process.pool.header[Header.LAUNCHES_LOST] == 1
    assert process.states() == [FREE] * BUFFERS


def test_counting_goes_on_beside_and_after_recording(process):
    process.launches.follow(Policy(COUNTS), False)
    assert process.launches.record_launches(True)
    process.launch(1)
    process.launches.rest()
    assert process.launches.begun, "it still counts"
    process.launch(2)
    assert process.correlations() == [1]
    process.launches.follow(Policy(AUTO), False)
    assert process.cupti.callbacks == set()


@pytest.mark.parametrize(("version", "is_kept"), [(130_001, False), (130_500, True)])
def test_the_subscriber_stays_until_records_are_off_where_these_would_end_with_it(process, version, is_kept):
    process.cupti.version = version
    process.launches.record_launches(True)
    process.launches.record_launches(False)
    assert (process.cupti.callbacks, process.cupti._called is not None) == (set(), is_kept)
    process.launches.rest()
    assert process.cupti._called is None


def test_callbacks_of_another_profiler_are_stated_and_attempted_once(process):
    process.cupti.holder = MULTIPLE_SUBSCRIBERS
    assert not process.launches.record_launches(True)
    process.cupti.holder = 0
    assert not process.launches.record_launches(True), "CUPTI records calls instead"
    process.launches.record_launches(False)
    assert process.launches.record_launches(True)
