"""A CUPTI for machines without a GPU: recorded activity buffers, played through the callbacks that were registered.

Its functions are real C function pointers with CUPTI's signatures; the collector calls them, and is called back, as
with the library. Names and payloads that the recorded buffers point to are put into memory of this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from pathlib import Path

import numpy as np

from drumline.producers.collector.cupti import Cupti
from drumline.producers.decoder import cupti_layout as layout

RAW = Path(__file__).parents[2] / "data" / "raw_cupti"
#: A folder with the buffers unpacked, for processes that need not load pyarrow.
PLAIN = Path(os.environ["RAW_CUPTI_PLAIN"]) if "RAW_CUPTI_PLAIN" in os.environ else None
U32, VOID, SIZE = ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t
#: CUptiResult
INVALID_PARAMETER, MAX_LIMIT, INVALID_KIND, MULTIPLE_SUBSCRIBERS = 1, 12, 21, 39
SIZES = {layout.MEMCPY: 96, layout.MEMSET: 88, layout.KERNEL: 216, layout.MARKER: 56, layout.MARKER_DATA: 40}
SIZES[layout.DRIVER] = SIZES[layout.RUNTIME] = 40
SIZES[layout.PEER_COPY] = 96
START, END = {1: 16, 2: 16, 10: 16}, {1: 24, 2: 24, 10: 24}
CORRELATION = {1: 44, 2: 44, 10: 92}


def plain_bytes(name: str, size: int) -> bytes:
    import pyarrow as pa

    return pa.decompress((RAW / f"{name}.bin.zst").read_bytes(), size, "zstd")


def record(kind: int, **values: int) -> np.ndarray:
    """One record as CUPTI would write it; fields as in cupti_layout, those not given are 0."""
    data = np.zeros(SIZES[kind], np.uint8)
    data[:4].view("<u4")[:] = kind
    for name, value in values.items():
        dtype, offset = layout.LAYOUTS[kind].fields[name]
        data[offset : offset + np.dtype(dtype).itemsize].view(dtype)[:] = value
    return data


class RawBuffer:
    """One recorded buffer: `data` (u1, writable), `about` (its JSON), record positions by kind."""

    def __init__(self, name: str) -> None:
        self.about = json.loads((RAW / f"{name}.json").read_text())
        plain = (PLAIN / name).read_bytes() if PLAIN else plain_bytes(name, self.about["bytes"])
        self.data = np.frombuffer(plain, np.uint8).copy()
        self.positions: list[tuple[int, int]] = []
        at = 0
        while at < len(self.data):
            kind = int(self.data[at : at + 4].view("<u4")[0])
            self.positions.append((kind, at))
            at += SIZES[kind]
        self._memory: list[object] = []

    def of(self, kind: int) -> np.ndarray:
        return np.array([at for k, at in self.positions if k == kind], np.int64)

    def field(self, kind: int, offset: int, dtype: str) -> np.ndarray:
        """A writable view is not possible over scattered records: (index array into data.view(dtype))."""
        return (self.of(kind) + offset) // np.dtype(dtype).itemsize

    def relocate(self) -> RawBuffer:
        """Point to strings and payloads in this process's memory. One the recording could not read becomes null."""
        fields = self.data.view("<u8")
        where = {int(p): self._keep(text.encode() + b"\0") for p, text in self.about["strings"].items()}
        for kind, offset in ((layout.KERNEL, 104), (layout.MARKER, 40), (layout.MARKER, 48)):
            for i in self.field(kind, offset, "<u8"):
                fields[i] = where.get(int(fields[i]), 0)
        payloads = {}
        for pointer, payload in self.about["payloads"].items():
            data = bytes.fromhex(payload["payload_hex"])
            head = np.array([payload["schema"], payload["size"], self._keep(data)], "<u8").tobytes()
            payloads[int(pointer)] = self._keep(head)
        kinds = self.data.view("<i4")[self.field(layout.MARKER_DATA, 12, "<i4")]
        for i, kind in zip(self.field(layout.MARKER_DATA, 16, "<u8"), kinds, strict=True):
            if kind == layout.EXTENDED_PAYLOAD:
                fields[i] = payloads.get(int(fields[i]), 0)
        return self

    def _keep(self, data: bytes) -> int:
        memory = ctypes.create_string_buffer(data, len(data))
        self._memory.append(memory)
        return ctypes.addressof(memory)

    def span(self) -> tuple[int, int]:
        """First and last time in it; ns."""
        fields = self.data.view("<u8")
        times = [fields[self.field(k, 16, "<u8")] for k in (1, 2, 10)] + [fields[self.field(12, 8, "<u8")]]
        ends = [fields[self.field(k, 24, "<u8")] for k in (1, 2, 10)]
        return int(min(t.min() for t in times if len(t))), int(max(t.max() for t in times + ends if len(t)))

    def shifted(self, ns: int, ids: int) -> np.ndarray:
        """A copy of the records, later by `ns`, with correlation and marker ids moved on by `ids`."""
        data = self.data.copy()
        fields, halves = data.view("<u8"), data.view("<u4")
        for kind in (1, 2, 10):
            for offset in (16, 24):
                fields[self.field(kind, offset, "<u8")] += np.uint64(ns)
            halves[self.field(kind, CORRELATION[kind], "<u4")] += np.uint32(ids)
        fields[self.field(layout.MARKER, 8, "<u8")] += np.uint64(ns)
        halves[self.field(layout.MARKER, 16, "<u4")] += np.uint32(ids)
        halves[self.field(layout.MARKER_DATA, 8, "<u4")] += np.uint32(ids)
        return data


class Job:
    """A training job that was not recorded but made up: `calls` AllReduces a step, of which the GPU runs each `behind`
    steps after the host calls it; all times follow from `begin_ns`. Of NCCL calls `bytes` is 1,000 + ordinal."""

    def __init__(self, begin_ns: int, step_ns: int, calls: int = 6, behind: int = 4) -> None:
        self.begin_ns, self.step_ns, self.calls, self.behind = begin_ns, step_ns, calls, behind
        self._memory: list[object] = []
        self._kernel, self._call = self._text("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), self._text("ncclAllReduce")
        self._domain = self._text("NCCL")
        data = [np.array([0xC0FFEE, 1_000 + i], "<u8").tobytes() for i in range(calls)]
        heads = [np.array([0x1000005, len(d), self._text(d)], "<u8").tobytes() for d in data]
        self._payloads = [self._text(head) for head in heads]

    def _text(self, text: str | bytes) -> int:
        memory = ctypes.create_string_buffer(text.encode() if isinstance(text, str) else text)
        self._memory.append(memory)
        return ctypes.addressof(memory)

    def called_ns(self, step: int, ordinal: int) -> int:
        """A step's calls do not come at even distances."""
        return self.begin_ns + step * self.step_ns + (ordinal * ordinal + 2) * self.step_ns // (self.calls**2 + 4)

    def ran_ns(self, step: int, ordinal: int) -> int:
        return self.called_ns(step + self.behind, ordinal) + self.step_ns // 100

    def records(self, step: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Return what CUPTI would write while the host is in a step: for FakeCupti.play."""
        written: list[tuple[int, bytes]] = []

        def add(kind: int, **values: int) -> None:
            written.append((kind, record(kind, **values).tobytes()))

        first = 1 + step * (self.calls + 1)
        at = self.begin_ns + step * self.step_ns
        add(layout.MARKER, id=first, flags_=2, timestamp=at + 1, name=self._text(f"step {step}"))
        for i in range(self.calls):
            id_, at = first + 1 + i, self.called_ns(step, i)
            correlation = 10 + 100 * step + 3 * i * i
            add(layout.MARKER, id=id_, flags_=2, timestamp=at, name=self._call, domain=self._domain)
            add(layout.MARKER_DATA, id=id_, payload_kind=layout.EXTENDED_PAYLOAD, payload=self._payloads[i])
            add(layout.DRIVER, start=at + 2_000, end=at + 3_000, correlation_id=correlation)
            add(layout.MARKER, id=id_, flags_=4, timestamp=at + 9_000, domain=self._domain)
            if step >= self.behind:
                ran = self.ran_ns(step - self.behind, i)
                times = {"start": ran, "end": ran + self.step_ns // 100}
                names = {"name": self._kernel, "correlation_id": correlation - 100 * self.behind}
                add(layout.KERNEL, **times, **names)
        add(layout.MARKER, id=first, flags_=4, timestamp=self.begin_ns + (step + 1) * self.step_ns - 1)
        starts = np.cumsum([0, *(len(data) for _, data in written)])
        places = [(kind, int(low)) for (kind, _), low in zip(written, starts, strict=False)]
        return np.frombuffer(b"".join(data for _, data in written), np.uint8).copy(), places


class FakeCupti:
    """`library`: what to give `Cupti`. `reject`: result of cuptiActivityEnable, 0 = success;
    `only`: of which kind, 0 = of all.
    `stuck`: cuptiActivityFlushAll does not return. `busy`: a kernel in the open buffer runs, so no flush gives it back.
    `dropped`: records that found no buffer, not asked for yet. `delivered`: records in completed buffers, by kind.
    `subscribed`: the thread that enabled something first; 0 = none yet. `kept`: whether copies between GPUs are on.
    `racy`: kernels that are switched on beside a thread that launches, with no kind of the GPU's on, are never recorded
    (`loses_kernels`), as with CUPTI at times; copies between GPUs help if they were switched on first (`holds`).
    `finalized`: times that CUPTI was let go; nothing of it is on then.
    `callbacks`: numbers of the driver's calls that CUPTI reports; `holder`: result of cuptiSubscribe, 0 = success.
    `version`: what cuptiGetVersion returns.
    `silent`: no kernel is recorded until they are switched on again: another library gave its subscriber back."""

    def __init__(self) -> None:
        self.reject, self.dropped, self.flushes, self.enabled, self.subscribed = 0, 0, 0, set(), 0
        self.only = 0
        self.stuck = self.busy = self.kept = self.holds = self.loses_kernels = self.silent = self._is_taken = False
        self.racy, self._launching = True, threading.get_ident()
        self.delivered: dict[int, int] = dict.fromkeys(SIZES, 0)
        self._request = self._complete = None
        self._open: tuple[int, int, int] | None = None  # address, size, filled
        self._lock = threading.RLock()
        i = ctypes.c_int
        self.cuptiActivityRegisterCallbacks = ctypes.CFUNCTYPE(i, VOID, VOID)(self._register)
        self.cuptiActivityEnable = ctypes.CFUNCTYPE(i, i)(self._enable)
        self.cuptiActivityDisable = ctypes.CFUNCTYPE(i, i)(self._disable)
        self.cuptiActivityFlushAll = ctypes.CFUNCTYPE(i, U32)(self._flush)
        self.cuptiActivityGetNextRecord = ctypes.CFUNCTYPE(i, VOID, SIZE, VOID)(self._next)
        self.cuptiActivityGetNumDroppedRecords = ctypes.CFUNCTYPE(i, VOID, U32, VOID)(self._drops)
        self.cuptiActivityRegisterTimestampCallback = ctypes.CFUNCTYPE(i, VOID)(self._clock)
        self.finalized = 0
        self.cuptiFinalize = ctypes.CFUNCTYPE(i)(self._finalize)
        self.callbacks: set[int] = set()
        self.holder, self._called, self.version = 0, None, 130_001
        self.cuptiSubscribe = ctypes.CFUNCTYPE(i, VOID, VOID, VOID)(self._subscribe)
        self.cuptiUnsubscribe = ctypes.CFUNCTYPE(i, VOID)(self._unsubscribe)
        self.cuptiEnableCallback = ctypes.CFUNCTYPE(i, U32, VOID, i, U32)(self._enable_callback)
        self.cuptiGetVersion = ctypes.CFUNCTYPE(i, VOID)(self._version)

    def bound(self) -> Cupti:
        return Cupti(self, "fake")

    def call_back(self, number: int, data: int) -> None:
        """Report a call of the driver, if that was asked for. `data`: address of a CUpti_CallbackData."""
        if number in self.callbacks:
            self._called(None, 1, number, data)

    def play(self, data: np.ndarray, kinds: list[tuple[int, int]]) -> None:
        """Write records (kind, position in data) as CUPTI would: into lent buffers, whole records only."""
        with self._lock:
            for kind, at in kinds:
                on = self.kept if kind == layout.PEER_COPY else kind in self.enabled
                if not on or self._is_taken or (kind == layout.KERNEL and (self.loses_kernels or self.silent)):
                    continue
                size = SIZES[kind]
                if self._open is None or self._open[2] + size > self._open[1]:
                    self._finish()
                    if not self._request_buffer():
                        self.dropped += 1
                        continue
                address, most, filled = self._open
                ctypes.memmove(address + filled, data.ctypes.data + at, size)
                self._open = (address, most, filled + size)
                self.delivered[kind] += 1

    def peer_copy(self) -> None:
        """One copy from GPU to GPU."""
        now = time.time_ns()
        copy = record(layout.PEER_COPY, copy_kind=10, src_kind=3, dst_kind=3, bytes=1 << 20, start=now, end=now + 9_000)
        self.play(copy, [(layout.PEER_COPY, 0)])

    def drop(self, kinds: list[tuple[int, int]]) -> None:
        """Records for which there was no buffer."""
        with self._lock:
            self.dropped += sum(kind in self.enabled for kind, _ in kinds)

    def taken(self) -> None:
        """By PyTorch's profiler, on demand: its callbacks replace drumline's and get the open buffer; at its end it
        switches off what it had switched on, drumline's kinds too."""
        with self._lock:
            self._is_taken, self._open = True, None
            self.enabled -= {10, 1, 2}

    def _request_buffer(self) -> bool:
        buffer, size, most = ctypes.c_void_p(1), SIZE(1), SIZE(1)
        self._request(ctypes.addressof(buffer), ctypes.addressof(size), ctypes.addressof(most))
        self._open = (buffer.value, size.value, 0) if buffer.value else None
        return self._open is not None

    def _finish(self) -> None:
        if self._open is not None:
            address, size, filled = self._open
            self._open = None
            self._complete(None, 0, address, size, filled)

    def _register(self, request, complete):
        self._is_taken = False
        self._request = ctypes.CFUNCTYPE(None, VOID, VOID, VOID)(request)
        self._complete = ctypes.CFUNCTYPE(None, VOID, U32, VOID, SIZE, SIZE)(complete)
        return 0

    def _enable(self, kind):
        if self.reject and self.only in (0, kind):
            return self.reject
        gpu_kinds = self.enabled & {1, 2, layout.KERNEL}
        if kind == layout.KERNEL and self.racy and not (self.holds or gpu_kinds):
            self.loses_kernels |= threading.get_ident() != self._launching
        self.silent &= kind != layout.KERNEL
        if kind == layout.PEER_COPY:
            self.kept = self._request is not None  # else it could request no buffer
            self.holds |= self.kept and not gpu_kinds
        else:
            self.enabled.add(kind)
        self.subscribed = self.subscribed or threading.get_ident()
        return 0

    def _disable(self, kind):
        self.kept &= kind != layout.PEER_COPY
        self.holds &= self.kept
        self.enabled.discard(kind)
        return 0

    def _flush(self, flag):
        if self.stuck:
            time.sleep(1_000)
        with self._lock:
            self.flushes += 1
            if self._open is not None and self._open[2] and not self.busy:
                self._finish()
        return 0

    def _next(self, buffer, valid, record):
        place = ctypes.c_uint64.from_address(record)
        at = place.value + SIZES[U32.from_address(place.value).value] if place.value else buffer
        if at >= buffer + valid:
            return MAX_LIMIT
        if U32.from_address(at).value not in SIZES:
            return INVALID_KIND
        place.value = at
        return 0

    def _drops(self, context, stream, count):
        SIZE.from_address(count).value = self.dropped
        self.dropped = 0
        return 0

    def _clock(self, function):
        self.clock = ctypes.CFUNCTYPE(ctypes.c_uint64)(function)
        return 0

    def _finalize(self):
        assert not self.enabled, "switched off before"
        assert not self.kept
        assert self._called is None, "the subscriber was given back"
        self.finalized, self.subscribed, self._request = self.finalized + 1, 0, None
        return 0

    def _subscribe(self, place, called, user):
        if self.holder or self._called is not None:
            return self.holder or MULTIPLE_SUBSCRIBERS
        self._called = ctypes.CFUNCTYPE(None, VOID, ctypes.c_int, U32, VOID)(called)
        ctypes.c_uint64.from_address(place).value = 0x5AB5
        return 0

    def _unsubscribe(self, subscriber):
        assert subscriber == 0x5AB5
        self.silent |= self.version >= 130_400 and layout.KERNEL in self.enabled
        self._called, self.callbacks, self.holder = None, set(), 0  # the handle is the same, whoever has subscribed
        return 0

    def _enable_callback(self, on, subscriber, domain, number):
        assert (subscriber, domain) == (0x5AB5, 1)
        (self.callbacks.add if on else self.callbacks.discard)(number)
        return 0

    def _version(self, version):
        U32.from_address(version).value = self.version
        return 0
