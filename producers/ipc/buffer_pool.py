"""Activity buffers in memory that the GPU process and its decoder share.

CUPTI fills them in the GPU process, the decoder reads them in its own: nothing is copied, and completed buffers survive
the death of the process that filled them. The memory is a memfd: there is no file to clean up.

Layout: 64-bit words, little-endian (`Header`, record sizes, buffer states), then the buffers, then the table of counts
(count_layout.py), whose pages take memory once something is counted. Each word has one writer:
G = GPU process (mostly callbacks.c, which has the same numbers), D = decoder.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum

from drumline.producers.ipc.count_layout import TABLE_BYTES, CountField
from drumline.producers.ipc.descriptor import file_of
from drumline.producers.ipc.policy import Policy
from drumline.producers.ipc.timing import LOST_NS, REQUEST_NS

MAGIC = 0x6472_756D_6C69_6E65
LAYOUT_VERSION = 5
HEADER_BYTES = 4096
MAX_BUFFERS = 128
#: Megabytes of all buffers of a process (DRUMLINE_COLLECT__BUFFER_MB).
DEFAULT_BUFFER_MB, MIN_BUFFER_MB = 32, 4


class Header(IntEnum):
    """Positions of the header's words. `_NS`: since the epoch, where the comment states no duration."""

    MAGIC = 0  # G
    VERSION = 1  # G LAYOUT_VERSION
    BUFFERS = 2  # G number of buffers
    BUFFER_BYTES = 3  # G bytes of a buffer
    REQUESTED = 4  # G buffers that CUPTI requested
    COMPLETED = 5  # G buffers that CUPTI gave back
    DENIED = 6  # G requests that got no buffer, as none was free
    CUPTI_DROPPED = 7  # G records that CUPTI counted as dropped
    CALLBACK_NS = 8  # G time in callbacks; duration
    CALLBACK_MAX_NS = 9  # G longest callback; duration
    FOREIGN = 10  # G completed buffers that are not of this pool
    EVENTS_LOST = 11  # G events and marks that could not be sent
    WANTED_KIND = 12  # D record kind whose size the decoder needs; 0 = none
    MODE = 13  # D collection mode (policy.py)
    LAUNCHES_LOST = 14  # G launches without a record, as no buffer was free
    RETURNED = 15  # G buffers that were given back, by CUPTI or with launches
    TICKS = 16  # D counts while the decoder is alive
    FLUSH_NS = 17  # G longest flush; duration
    THREAD_NS = 18  # G CPU time of the collector's thread; duration
    UNLOCKED_NS = 19  # G of that, in calls into CUPTI, which do not hold the GIL; duration
    LAUNCHES = 20  # D 1 = record the host's launch calls
    ENDED = 21  # G 1 = orderly end of the process; not an event, which a hanging decoder would miss
    REGAINED_NS = 22  # G when another profiler last had CUPTI: it holds the buffers lent before, or they are lost
    DENIED_SEEN = 23  # D of DENIED, number already handled
    DENIED_FIRST_NS = 24  # G first denied request that is not yet handled
    DENIED_LAST_NS = 25  # G last denied request
    FOREIGN_SEEN = 26  # D of FOREIGN, number already handled
    NO_KERNELS_SINCE_NS = 27  # D since when steps have no kernel; 0 = they have
    GRAPHS = 28  # D 1 = kernels of a CUDA graph were recorded
    STACKS = 29  # D 1 = sample the stacks of Python's threads
    PC = 30  # D 1 + CUDA ordinal of the GPU whose warps are to be sampled; 0 = none
    DROPPED_REPORTED = 31  # D of CUPTI_DROPPED, number already reported, by any decoder of this process
    PC_READ = 511  # D buffers with samples of the GPU that were read; behind the buffers' states


#: G: size of a record by its kind; 0 = not known yet.
SIZES, KINDS = 32, 64
#: Three words per buffer: state; valid bytes, or while LENT the time of the request (ns since the epoch); order of
#: completion. G sets FREE -> LENT -> DONE. D adds 1 to DONE per batch sent, then sets FREE.
STATE, PER_BUFFER = 96, 3
FREE, LENT, DONE = 0, 1, 2


class BufferPool:
    """Maps the shared buffers and their header.

    The collector creates it (`fd` < 0), the decoder opens the inherited `fd`; the mapping lasts until the process ends.
    Nothing blocks. Each method belongs to the side that its docstring names; without a name, to both.

    `fd`: memfd for the other process. `memory`: all of it. `header`: its words, by `Header`, SIZES and STATE.
    `sizes`: record size by kind, a view of the header. `buffers`: their number. `buffer_bytes`: size of one.

    Raises OSError without memory, ValueError for impossible sizes or an `fd` that holds no pool of this version.
    """

    def __init__(self, buffers: int = 16, buffer_bytes: int = 2 << 20, *, fd: int = -1) -> None:
        fresh = fd < 0
        if fresh:
            if not 2 <= buffers <= MAX_BUFFERS or buffer_bytes % mmap.PAGESIZE:
                raise ValueError(f"{buffers} buffers of {buffer_bytes} bytes")
            fd = os.memfd_create("drumline", os.MFD_CLOEXEC)
            os.ftruncate(fd, HEADER_BYTES + buffers * buffer_bytes + TABLE_BYTES)
        self.fd, self._file = fd, file_of(fd)
        self.memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self.header = header = memoryview(self.memory)[:HEADER_BYTES].cast("Q")
        self.sizes = header[SIZES : SIZES + KINDS]
        if fresh:
            header[Header.VERSION] = LAYOUT_VERSION
            header[Header.BUFFERS], header[Header.BUFFER_BYTES] = buffers, buffer_bytes
            header[Header.MAGIC] = MAGIC
        if header[Header.MAGIC] != MAGIC or header[Header.VERSION] != LAYOUT_VERSION:
            raise ValueError("not a buffer pool of this version of drumline")
        self.buffers, self.buffer_bytes = int(header[Header.BUFFERS]), int(header[Header.BUFFER_BYTES])

    @property
    def counts_at(self) -> int:
        """Return where the table of counts begins; bytes from the start of the memory."""
        return HEADER_BYTES + self.buffers * self.buffer_bytes

    def count_field(self, field: CountField) -> int:
        """Return a word of the table of counts."""
        return int.from_bytes(self.memory[self.counts_at + 8 * field : self.counts_at + 8 * field + 8], "little")

    @property
    def has_descriptor(self) -> bool:
        """True while `fd` is the memfd; the mapping needs none."""
        return file_of(self.fd) == self._file

    def done(self) -> list[int]:
        """Return the numbers of the completed buffers in the order of their completion."""
        header = self.header
        numbers = [n for n in range(self.buffers) if header[STATE + PER_BUFFER * n] >= DONE]
        return sorted(numbers, key=lambda n: header[STATE + PER_BUFFER * n + 2])

    def has_outstanding(self, now_ns: int) -> bool:
        """Return whether CUPTI holds a buffer that bounds `host_complete_ns`."""
        return self.host_complete_ns(now_ns) < now_ns - REQUEST_NS

    def host_complete_ns(self, now_ns: int, lost_ns: int = LOST_NS) -> int:
        """Return the time before which all host activity is in completed buffers; ns since the epoch, 0 = unknown now.

        It is the oldest request whose buffer CUPTI still holds: CUPTI keeps a thread's buffer until each kernel in it
        has ended. A buffer held for `lost_ns` is lost, or its kernel never ends. Call it before `done`.
        """
        header, complete_ns = self.header, now_ns
        for number in range(self.buffers):
            if header[STATE + PER_BUFFER * number] == LENT:
                requested_ns = header[STATE + PER_BUFFER * number + 1]
                if requested_ns <= self.buffer_bytes:  # valid bytes: the buffer changes hands at this moment
                    return 0
                if now_ns - requested_ns < lost_ns and requested_ns >= header[Header.REGAINED_NS]:
                    complete_ns = min(complete_ns, requested_ns)
        return complete_ns - REQUEST_NS

    def reclaim(self, now_ns: int) -> None:
        """Free the buffers that CUPTI gave to another profiler, which never returns them. Collector only.

        Waits until no kernel can still write into them.
        """
        header = self.header
        before = min(header[Header.REGAINED_NS], now_ns - LOST_NS)
        for state in range(STATE, STATE + PER_BUFFER * self.buffers, PER_BUFFER):
            if header[state] == LENT and self.buffer_bytes < header[state + 1] < before:
                header[state] = FREE

    def valid(self, number: int) -> memoryview:
        """Return a view of the valid bytes of a completed buffer; void once the buffer is given back."""
        begin = HEADER_BYTES + number * self.buffer_bytes
        return memoryview(self.memory)[begin : begin + self.header[STATE + PER_BUFFER * number + 1]]

    def sent(self, number: int) -> int:
        """Return how many batches of a completed buffer were sent: a killed decoder leaves it half read to the next."""
        return int(self.header[STATE + PER_BUFFER * number]) - DONE

    def count_sent(self, number: int) -> None:
        """Count one more sent batch of a buffer. Decoder only."""
        self.header[STATE + PER_BUFFER * number] += 1

    def give_back(self, number: int) -> None:
        """Free a buffer that has been read. Decoder only."""
        self.header[STATE + PER_BUFFER * number] = FREE


def new_pool(policy: Policy = Policy()) -> BufferPool:
    """Create a pool with a policy and the size that DRUMLINE_COLLECT__BUFFER_MB states. Raises OSError, ValueError."""
    megabytes = int(float(os.environ.get("DRUMLINE_COLLECT__BUFFER_MB") or DEFAULT_BUFFER_MB))
    pool = BufferPool(buffers=16, buffer_bytes=max(megabytes, MIN_BUFFER_MB) << 16)
    pool.header[Header.MODE] = policy.mode
    return pool
