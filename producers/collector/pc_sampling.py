"""CUPTI's PC sampling in the job: the GPU notes where its warps are and what they wait for, while a deep window asks.

No sample is read here. CUPTI writes them into memory of this process; the decoder reads it there (process_vm_readv),
and says through the header how many buffers it has read. Standard library only; structs as in cupti_pcsampling.h.

CUPTI takes its settings only where no thread launches between, so sampling begins in the job's thread, between two
steps. It ends in any thread. It is never disabled: that hangs beside a thread that launches. So kernel
records must be on before it, and cannot be switched on again afterwards (docs/design/cupti-issues.md). Of one GPU
only one process samples: others hang until it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drumline.producers.collector import gpu_claim, marks
from drumline.producers.collector.cupti import SUCCESS, Cupti
from drumline.producers.ipc.buffer_pool import BufferPool, Header
from drumline.producers.ipc.pc_layout import DATA, MOST_PCS, PC_BYTES, REASON_BYTES, DataField

#: A sample each 2^16 cycles of an SM: 200,000 a second on an H200, of which a kernel of 1 ms has 200. CUPTI's own 2^11
#: are 6 million a second, for which its threads need a core.
PERIOD = 16
#: Versions of CUPTI (cuptiGetVersion) whose cuptiPCSamplingStop returns beside threads that launch: 13.5.25's did 20
#: times of 20. 13.0.85's does not, and those threads hang too. Structs are those of pc_layout.py, which CUPTI does not
#: check.
SAFE_VERSIONS: tuple[int, ...] = (130500,)
SAFE_PACKAGE = "nvidia-cuda-cupti==13.5.25"
#: Memory for samples that CUPTI has not read yet, and for PCs that the decoder has not; bytes. With CUPTI's 512 MB the
#: first launch waits up to 0.9 s, with 32 MB 0.1 s; at PERIOD they hold seconds.
HARDWARE_BYTES, SCRATCH_BYTES = 32 << 20, 16 << 20
#: Buffers of MOST_PCS places, which CUPTI and the decoder pass on.
BUFFERS = 4
#: CUpti_PCSamplingConfigurationAttributeType: period, memory of CUPTI and of the GPU, mode, ranges by calls, format,
#: last buffer.
_PERIOD, _SCRATCH, _HARDWARE, _MODE, _CONTROL, _FORMAT, _LAST = 1, 3, 4, 5, 6, 7, 8
_CONTINUOUS = 1
_NAME_BYTES = 128
_Size, _Void, _U32 = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint32
#: CUptiResult -> what to do.
_REMEDIES = {
    35: "the driver lets only root sample: NVreg_RestrictProfilingToAdminUsers=0, or CAP_SYS_ADMIN for the job",
    7: "another thread of the job launches kernels between its steps; CUPTI keeps what it began until the process ends",
    26: "another profiler samples this GPU",
    43: "not with MIG",
    33: "not on this virtual GPU",
    40: "not on this virtual GPU",
    41: "not with confidential computing",
}


def load_driver() -> Any:
    """Return CUDA's driver, which the job has loaded. Raises OSError."""
    return ctypes.CDLL("libcuda.so.1")


def _is_capturing() -> bool:
    """Return whether this thread captures a CUDA graph, which a call of CUPTI might break."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class Rejected(RuntimeError):
    """CUPTI or CUDA does not sample here; the message is a sentence."""


def _struct(*fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type("Parameters", (ctypes.Structure,), {"_fields_": [("size", _Size), ("private", _Void), *fields]})


class _Attribute(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("status", ctypes.c_int), ("value", ctypes.c_uint64 * 3))


_Context = _struct(("context", _Void))
_GetData = _struct(("context", _Void), ("data", _Void))
_Count = _struct(("context", _Void), ("count", ctypes.POINTER(_Size)))
_Names = _struct(("context", _Void), ("count", _Size), ("indices", _Void), ("names", _Void))
_Attributes = _struct(("context", _Void), ("count", _Size), ("attributes", ctypes.POINTER(_Attribute)))


class _Buffer:
    """Holds the struct that CUPTI fills, its PCs, and their reasons: three runs of memory."""

    def __init__(self, reasons: int) -> None:
        self.data = (ctypes.c_uint64 * len(DataField))()
        self.pcs = ctypes.create_string_buffer(MOST_PCS * PC_BYTES)
        self.reasons = ctypes.create_string_buffer(MOST_PCS * reasons * REASON_BYTES)
        first, size = ctypes.addressof(self.reasons), reasons * REASON_BYTES
        # A place: its size, then zeros, the number of its reasons, and their address (ipc/pc_layout.py).
        place = (PC_BYTES, 0, 0, 0, 0, reasons)
        fields = [field for n in range(MOST_PCS) for field in (*place, first + n * size, 0)]
        self._fresh = (ctypes.c_uint64 * len(fields))(*fields)
        self.renew()

    def renew(self) -> None:
        """Make it as CUPTI takes it."""
        ctypes.memmove(self.pcs, self._fresh, MOST_PCS * PC_BYTES)
        ctypes.memset(self.data, 0, ctypes.sizeof(self.data))
        self.data[DataField.SIZE], self.data[DataField.MOST_PCS] = DATA.size, MOST_PCS
        self.data[DataField.PC_DATA] = ctypes.addressof(self.pcs)


class PcSampler:
    """Samples one GPU while `switch` says so. Owned by Collector, which calls it under its lock; `_prepare` runs in the
    job's thread at a step's mark.

    `driver`: returns CUDA's. `send`: takes an event and returns whether the decoder gets it; must not raise or block.
    `is_recorded`: kernels have been recorded since the process began to use CUDA. `is_on`: samples are taken.
    `is_enabled`: CUPTI switches no kernel records on any more.
    """

    def __init__(
        self,
        cupti: Cupti,
        driver: Callable[[], Any],
        pool: BufferPool,
        send: Callable[[dict[str, Any]], bool],
        is_recorded: bool,
    ) -> None:
        self.is_on = self.is_enabled = False
        self._cupti, self._library, self._load_driver = cupti, cupti.library, driver
        self._pool, self._send, self._is_recorded = pool, send, is_recorded
        self._context = _Void()
        self._buffers: list[_Buffer] = []
        self._reasons: list[tuple[int, str]] = []
        self._sent, self._from_ns, self._is_rejected = 0, 0, False
        self._wanted = -1
        # A thread prepares while the collector's ends the window, or a signal handler of its own starts a profiler.
        self._lock = threading.RLock()

    def switch(self, device: int) -> None:
        """Sample a device (CUDA ordinal) from its next step on, or end with -1. Never raises: a rejection is an event,
        once, and no step in a window a problem."""
        if device == self._wanted:
            return
        with self._lock:
            if device < 0:
                if not (self.is_on or self._is_rejected):
                    reason = "PC sampling begins between two steps, and none of the window's began (drumline.step)"
                    self._send({"event": "problem", "name": "pc_sampling", "why": reason})
                self._wanted, self._is_rejected = -1, False
                self._stop()
            elif self._wanted < 0:
                self._wanted = device
                if (version := self._cupti.version()) not in SAFE_VERSIONS:
                    self._reject(f"CUPTI {version} hangs jobs when it ends: pip install {SAFE_PACKAGE}")
                elif not self._is_recorded:  # all samples were outside the program, 8 of 8 jobs
                    self._reject("CUPTI names no kernel where it came late: run the job with --policy always")
                else:
                    marks.at_next_step = self._prepare

    def take(self) -> None:
        """Pass on the samples that CUPTI has read since; buffers that the decoder still reads are left to it."""
        while self.is_on and self._sent - self._pool.header[Header.PC_READ] < BUFFERS:
            buffer = self._buffers[self._sent % BUFFERS]
            buffer.renew()
            parameters = _GetData(ctypes.sizeof(_GetData), None, self._context, ctypes.addressof(buffer.data))
            if self._library.cuptiPCSamplingGetData(ctypes.byref(parameters)) != SUCCESS:
                return  # the memory was full: CUPTI counts what it dropped in the next
            if not self._pass_on(buffer) or not buffer.data[DataField.REMAINING]:
                return

    def forget(self) -> None:
        """Count the buffers anew: another decoder reads from now on."""
        self._sent = self._pool.header[Header.PC_READ]

    def _prepare(self) -> None:
        """Begin, the first time with what CUPTI needs for it, about 0.15 s. Never raises."""
        if _is_capturing():
            marks.at_next_step = self._prepare
            return
        with self._lock:
            if self._wanted < 0:
                return
            if self.is_enabled and not self._buffers:
                self._reject("CUPTI has not taken its settings before")
            else:
                self._attempt(self._start if self._buffers else self._enable)

    def _attempt(self, begin: Callable[[], None]) -> None:
        try:
            begin()
        except (Rejected, gpu_claim.GpuUnknown, OSError, AttributeError) as error:
            self._reject(str(error))

    def _reject(self, reason: str) -> None:
        self._is_rejected = True
        self._send({"event": "pc_rejected", "why": f"PC sampling is rejected: {reason}"})

    def _enable(self) -> None:
        driver, device = self._load_driver(), self._wanted
        if not (root := os.environ.get("DRUMLINE_SPOOL__ROOT")):
            raise Rejected("DRUMLINE_SPOOL__ROOT is not set, where processes see that one samples a GPU")
        claimed = gpu_claim.claim(Path(root), gpu_claim.uuid_of(driver, device))
        if claimed < 0:
            raise Rejected("another process samples this GPU until it ends; a second one would hang")
        with contextlib.ExitStack() as undone:
            undone.callback(os.close, claimed)
            if code := driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device):
                raise Rejected(f"cuDevicePrimaryCtxRetain fails (CUresult {code})")
            undone.callback(driver.cuDevicePrimaryCtxRelease, device)
            self._call_plain("Enable")
            undone.pop_all()
        self.is_enabled = True
        self._reasons = self._names()
        buffers = [_Buffer(len(self._reasons)) for _ in range(BUFFERS + 1)]
        last = ctypes.addressof(buffers[-1].data)  # only Disable fills it, but without it Start fails
        for kind, value in (
            (_CONTROL, 1), (_MODE, _CONTINUOUS), (_FORMAT, 1), (_PERIOD, PERIOD), (_SCRATCH, SCRATCH_BYTES),
            (_HARDWARE, HARDWARE_BYTES), (_LAST, last),
        ):  # fmt: skip
            attribute = _Attribute(kind, 0, (ctypes.c_uint64 * 3)(value, 0, 0))
            size = ctypes.sizeof(_Attributes)
            self._call(
                "SetConfigurationAttribute", _Attributes(size, None, self._context, 1, ctypes.pointer(attribute))
            )
        self._buffers = buffers
        if self._wanted >= 0:
            self._start()

    def _start(self) -> None:
        self._call_plain("Start")
        self.is_on, self._from_ns = True, time.time_ns()
        self._send({"event": "pc_begin", "reasons": self._reasons, "cycles": 1 << PERIOD})

    def _stop(self) -> None:
        if not self.is_on:
            return
        parameters = _Context(ctypes.sizeof(_Context), None, self._context)
        self._library.cuptiPCSamplingStop(ctypes.byref(parameters))
        self.take()
        self.is_on = False

    def _pass_on(self, buffer: _Buffer) -> bool:
        """Tell the decoder of a buffer that CUPTI has filled; return whether it holds anything."""
        count, total = buffer.data[DataField.PCS], buffer.data[DataField.TOTAL]
        now_ns, from_ns = time.time_ns(), self._from_ns
        if not count and not total:
            return False
        event = {
            "event": "pc_samples", "pcs": ctypes.addressof(buffer.pcs), "reasons": ctypes.addressof(buffer.reasons),
            "count": count, "total": total, "dropped": buffer.data[DataField.DROPPED],
            "outside": buffer.data[DataField.OUTSIDE], "from_ns": from_ns, "to_ns": now_ns,
        }  # fmt: skip
        self._from_ns = now_ns
        self._sent += self._send(event)
        return True

    def _names(self) -> list[tuple[int, str]]:
        """Return number and name of each reason."""
        count = _Size(0)
        self._call("GetNumStallReasons", _Count(ctypes.sizeof(_Count), None, self._context, ctypes.pointer(count)))
        texts = [ctypes.create_string_buffer(_NAME_BYTES) for _ in range(count.value)]
        pointers = (_Void * count.value)(*[ctypes.addressof(text) for text in texts])
        indices = (_U32 * count.value)()
        places = (ctypes.addressof(indices), ctypes.addressof(pointers))
        self._call("GetStallReasons", _Names(ctypes.sizeof(_Names), None, self._context, count.value, *places))
        return [(index, text.value.decode(errors="replace")) for index, text in zip(indices, texts, strict=True)]

    def _call_plain(self, name: str) -> None:
        """Call Enable or Start. Raises Rejected."""
        self._call(name, _Context(ctypes.sizeof(_Context), None, self._context))

    def _call(self, name: str, parameters: ctypes.Structure) -> None:
        """Call a function of CUPTI. Raises Rejected."""
        code = getattr(self._library, f"cuptiPCSampling{name}")(ctypes.byref(parameters))
        if code != SUCCESS:
            remedy = _REMEDIES.get(code)
            raise Rejected(f"cuptiPCSampling{name} fails (CUptiResult {code})" + (f"; {remedy}" if remedy else ""))
