"""The pool's answers to the decoder while CUPTI requests buffers and gives them back."""

import ctypes
import time

import pytest

from drumline.producers.collector.cupti import Callbacks, NoCupti
from drumline.producers.ipc.buffer_pool import FREE, HEADER_BYTES, LENT, PER_BUFFER, STATE, BufferPool, Header
from drumline.producers.ipc.timing import LOST_NS, REQUEST_NS

S = 1_000_000_000


class Cupti:
    """Calls the C callbacks as CUPTI does."""

    def __init__(self, pool):
        self.callbacks = Callbacks()
        self.begin = ctypes.addressof(ctypes.c_char.from_buffer(pool.memory))
        self.callbacks.open(self.begin, 0)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._request = ctypes.CFUNCTYPE(None, pointer, pointer, pointer)(self.callbacks.request)
        self._complete = ctypes.CFUNCTYPE(None, pointer, ctypes.c_uint32, pointer, size, size)(self.callbacks.complete)

    def request(self):
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self._request(*(ctypes.addressof(value) for value in (buffer, size, most)))
        return buffer.value

    def complete(self, buffer, valid):
        self._complete(None, 0, buffer, 1 << 20, valid)


@pytest.fixture
def pool():
    return BufferPool(4, 1 << 20)


@pytest.fixture
def cupti(pool):
    fake = Cupti(pool)
    yield fake
    fake.callbacks.close()


def test_without_a_buffer_in_use_all_is_complete(pool):
    assert 99 * S < pool.host_complete_ns(100 * S) <= 100 * S - REQUEST_NS


def test_what_was_done_since_the_request_of_the_oldest_buffer_is_not_complete(pool, cupti):
    before = time.time_ns()
    first, second = cupti.request(), cupti.request()
    after = time.time_ns()
    assert before - S < pool.host_complete_ns(after + 5 * S) < after
    cupti.complete(second, 100)  # another thread's
    assert pool.host_complete_ns(after + 5 * S) < after
    cupti.complete(first, 100)
    assert pool.host_complete_ns(after + 5 * S) > after + 4 * S


def test_a_buffer_that_never_comes_back_is_not_waited_for_for_ever(pool, cupti):
    cupti.request()
    now = time.time_ns()
    assert pool.host_complete_ns(now + 599 * S) < now
    assert pool.host_complete_ns(now + 601 * S) > now + 600 * S
    assert pool.host_complete_ns(now + 601 * S, lost_ns=now + 601 * S) < now, "it may have a kernel that never ends"


def test_buffers_that_another_profiler_took_along_are_not_waited_for(pool, cupti):
    cupti.request()
    pool.header[Header.REGAINED_NS] = time.time_ns()
    assert pool.host_complete_ns(time.time_ns() + S) > pool.header[Header.REGAINED_NS]
    cupti.request()
    assert pool.host_complete_ns(time.time_ns() + S) < time.time_ns()


def test_callbacks_of_another_release_are_refused(pool, monkeypatch):
    monkeypatch.setattr("drumline.producers.collector.cupti.LAYOUT_VERSION", 99)
    with pytest.raises(NoCupti, match="another release"):
        Cupti(pool)


def test_while_a_buffer_changes_hands_nothing_is_known(pool):
    pool.header[STATE + PER_BUFFER], pool.header[STATE + PER_BUFFER + 1] = LENT, 4096
    assert pool.host_complete_ns(time.time_ns()) == 0


def test_a_buffer_that_came_back_has_its_valid_bytes(pool, cupti):
    buffer = cupti.request()
    assert (buffer - cupti.begin - HEADER_BYTES) % pool.header[Header.BUFFER_BYTES] == 0
    cupti.complete(buffer, 4096)
    (number,) = pool.done()
    assert len(pool.valid(number)) == 4096


def test_a_buffer_that_went_to_another_profiler_is_free_again_when_no_kernel_is_awaited_in_it(pool, cupti):
    first, second = cupti.request(), cupti.request()
    assert first != second
    now, state = pool.header[STATE + 1] + LOST_NS + S, STATE + PER_BUFFER
    pool.reclaim(now)
    assert pool.header[STATE] == LENT, "CUPTI may still give it back to us"
    pool.header[Header.REGAINED_NS] = pool.header[STATE + 1] + 1
    pool.reclaim(now - 2 * S)
    assert pool.header[STATE] == LENT, "a kernel may still run"
    pool.header[state + 1] = now  # asked for since
    pool.reclaim(now)
    assert (pool.header[STATE], pool.header[state]) == (FREE, LENT)
    assert cupti.request() == first


def test_records_in_another_profilers_buffer_are_counted(pool, cupti):
    foreign = ctypes.create_string_buffer(4096)
    cupti.complete(ctypes.addressof(foreign), 0)
    assert pool.header[Header.FOREIGN] == 0
    cupti.complete(ctypes.addressof(foreign), 216)
    assert pool.header[Header.FOREIGN] == 1


def test_the_time_of_denied_requests_is_kept_until_the_decoder_has_seen_them(pool, cupti):
    while cupti.request():
        pass
    times = []
    for seen in (0, 1, 1, 3):
        pool.header[Header.DENIED_SEEN] = seen
        cupti.request()
        times.append((pool.header[Header.DENIED_FIRST_NS], pool.header[Header.DENIED_LAST_NS]))
    (first, last), (second, later), again, new = times
    assert pool.header[Header.DENIED] == 5
    assert first < last, "the first of two that it does not know of"
    assert second == first
    assert again[0] == first
    assert last < later < again[1]
    assert new[0] == first, "4 are known of, not 3"
    pool.header[Header.DENIED_SEEN] = 5
    before = time.time_ns()
    cupti.request()
    assert before <= pool.header[Header.DENIED_FIRST_NS] == pool.header[Header.DENIED_LAST_NS] <= time.time_ns()
