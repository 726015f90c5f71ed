"""Activity buffers in memory that the GPU process and its decoder share.

CUPTI fills them in the GPU process, the decoder reads them in its own: nothing is copied, and what was completed
survives the death of the process that filled it. The memory is a memfd: no file to clean up, gone when both are gone.

Layout: 64-bit words, little endian, then the buffers. Each word has one writer: G = GPU process (most of them in
callbacks.c, which knows the same numbers), D = decoder. Standard library only: this runs inside the job.
"""

from __future__ import annotations

import mmap
import os

from drumline.producers.ipc.policy import Policy

MAGIC = 0x6472_756D_6C69_6E65
#: Words of the header.
(
    VERSION,  # G this layout's
    BUFFERS,  # G how many
    BUFFER_BYTES,  # G bytes each
    REQUESTED,  # G buffers that CUPTI asked for
    COMPLETED,  # G buffers that CUPTI gave back
    REFUSED,  # G requests that found no free buffer
    CUPTI_DROPPED,  # G records that CUPTI says it dropped
    CALLBACK_NS,  # G time in callbacks
    CALLBACK_MAX_NS,  # G longest callback
    FOREIGN,  # G completed buffers with records that are not of this pool
    EVENTS_LOST,  # G steps and scopes of the API that could not be handed over
    WANTED_KIND,  # D a record kind whose size it needs to know; 0 = none
    MODE,  # D what to collect, see policy.py
    WINDOW_NS,  # D duty cycle: length of a window
    PERIOD_NS,  # D duty cycle: from window to window
    TICKS,  # D counts while the decoder lives
    FLUSH_NS,  # G longest flush
    THREAD_NS,  # G CPU time of the collector's thread
    UNLOCKED_NS,  # G of that, in calls into CUPTI: without Python's lock
    LAUNCHES,  # D whether it needs to know when the host launched what (launched.py)
    ENDED,  # G 1 = the process ended in order; no event, as a decoder that hangs gets none
    ANEW_NS,  # G when another profiler had CUPTI last: buffers lent before are with it, or lost
    REFUSED_SEEN,  # D of REFUSED, how many it knows of
    REFUSED_FIRST_NS,  # G when the first of the others was, since the epoch
    REFUSED_LAST_NS,  # G when the last one was
    FOREIGN_SEEN,  # D of FOREIGN, how many it knows of
    BLIND_NS,  # D since when no step has had a kernel, since the epoch; 0 = they have
) = range(1, 28)
TOLD = 31  # D of CUPTI_DROPPED, how many it has told; by whichever decoder
SIZES = 32  # G record size by kind, 64 words; 0 = not known
KINDS = 64
STATE = 96  # per buffer: state (FREE -> LENT -> DONE by G, DONE + batches sent -> FREE by D), valid bytes, order; of a
# buffer that is lent, when that was, since the epoch, instead of its valid bytes
PER_BUFFER = 3
FREE, LENT, DONE = 0, 1, 2
MOST_BUFFERS = 128
HEADER_BYTES = 4096
LAYOUT_VERSION = 3
#: A record may be as much older than the request for the buffer that it is in: a thread that had to wait in between.
REQUEST_NS = 100_000_000
#: A step is not waited for any longer, though CUPTI may have calls of it: it is told as skipped. Less than the minute
#: after which a rank without steps counts as stalled (streams/thresholds.py).
HELD_NS = 40_000_000_000
#: NCCL's own watchdog ends a job whose kernel runs for ten minutes.
LOST_NS = 600_000_000_000


class BufferPool:
    """`words`: the header as 64-bit unsigned integers. `fd`: for the other process. Raises OSError when there is no
    memory for it, ValueError when what `fd` holds is no pool."""

    def __init__(self, buffers: int = 16, buffer_bytes: int = 2 << 20, *, fd: int = -1) -> None:
        fresh = fd < 0
        if fresh:
            if not 2 <= buffers <= MOST_BUFFERS or buffer_bytes % mmap.PAGESIZE:
                raise ValueError(f"{buffers} buffers of {buffer_bytes} bytes")
            fd = os.memfd_create("drumline", os.MFD_CLOEXEC)
            os.ftruncate(fd, HEADER_BYTES + buffers * buffer_bytes)
        self.fd = fd
        self.memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self.words = memoryview(self.memory)[:HEADER_BYTES].cast("Q")
        if fresh:
            self.words[VERSION], self.words[BUFFERS], self.words[BUFFER_BYTES] = LAYOUT_VERSION, buffers, buffer_bytes
            self.words[0] = MAGIC
        if self.words[0] != MAGIC or self.words[VERSION] != LAYOUT_VERSION:
            raise ValueError("not a buffer pool of this version of drumline")
        self.buffers, self.buffer_bytes = int(self.words[BUFFERS]), int(self.words[BUFFER_BYTES])

    def done(self) -> list[int]:
        """Completed buffers in the order of their completion."""
        words = self.words
        numbers = [n for n in range(self.buffers) if words[STATE + PER_BUFFER * n] >= DONE]
        return sorted(numbers, key=lambda n: words[STATE + PER_BUFFER * n + 2])

    def lent(self, now_ns: int) -> bool:
        """Whether CUPTI holds any that `here_ns` waits for."""
        return self.here_ns(now_ns) < now_ns - REQUEST_NS

    def here_ns(self, now_ns: int) -> int:
        """What the host did before has come, in completed buffers: the time of the oldest request whose buffer CUPTI
        still holds. It holds a thread's buffer until each kernel in it has ended. One that it has held for LOST_NS is
        lost, or has a kernel that never ends. Times since the epoch; ask before `done`. 0 = not known right now."""
        words, since = self.words, now_ns
        for number in range(self.buffers):
            if words[STATE + PER_BUFFER * number] == LENT:
                asked = words[STATE + PER_BUFFER * number + 1]
                if asked <= self.buffer_bytes:  # valid bytes: it is being lent or given back right now
                    return 0
                if now_ns - asked < LOST_NS and asked >= words[ANEW_NS]:
                    since = min(since, asked)
        return since - REQUEST_NS

    def reclaim(self, now_ns: int) -> None:
        """Buffers that another profiler was given by CUPTI are free again when no kernel can still be awaited in them:
        nobody gives them back. Collector only."""
        words = self.words
        before = min(words[ANEW_NS], now_ns - LOST_NS)
        for state in range(STATE, STATE + PER_BUFFER * self.buffers, PER_BUFFER):
            if words[state] == LENT and self.buffer_bytes < words[state + 1] < before:
                words[state] = FREE

    def valid(self, number: int) -> memoryview:
        """The valid bytes of a completed buffer: a view, void once it is given back."""
        begin = HEADER_BYTES + number * self.buffer_bytes
        return memoryview(self.memory)[begin : begin + self.words[STATE + PER_BUFFER * number + 1]]

    def sent(self, number: int) -> int:
        """How many batches of a completed buffer are out: a decoder that is killed leaves it half read to the next."""
        return int(self.words[STATE + PER_BUFFER * number]) - DONE

    def count_sent(self, number: int) -> None:
        """One more batch is out. Decoder only."""
        self.words[STATE + PER_BUFFER * number] += 1

    def give_back(self, number: int) -> None:
        """The buffer has been read. Decoder only."""
        self.words[STATE + PER_BUFFER * number] = FREE


def new_pool(policy: Policy = Policy()) -> BufferPool:
    """A pool with that policy and the size that the environment asks for (DRUMLINE_COLLECT__BUFFER_MB)."""
    megabytes = int(float(os.environ.get("DRUMLINE_COLLECT__BUFFER_MB") or 32))
    pool = BufferPool(buffers=16, buffer_bytes=max(megabytes, 4) << 16)
    words = pool.words
    words[MODE] = policy.mode
    words[WINDOW_NS], words[PERIOD_NS] = policy.window_ns, policy.period_ns
    return pool
