"""CUPTI's PC sampling, activity records and result names through ctypes, for the probes of deep.sh.

Structs as cupti_pcsampling.h and cupti_activity.h of CUDA 13 describe them. `Calls` notes what each call returned.
"""

import ctypes as c
import os
from collections import Counter
from pathlib import Path

from drumline.producers.collector.cupti import find

Size, Pointer, U32, U64 = c.c_size_t, c.c_void_p, c.c_uint32, c.c_uint64
CONTINUOUS, SERIALIZED = 1, 2
PERIOD, SCRATCH, HARDWARE, MODE, CONTROL, FORMAT, BUFFER = 1, 3, 4, 5, 6, 7, 8
#: CUpti_ActivityKind: serialized kernels, CUDA driver and runtime calls, concurrent kernels.
SERIAL_KERNEL, DRIVER, RUNTIME, KERNEL = 3, 4, 5, 10
NAMES = {SERIAL_KERNEL: "kernel", KERNEL: "kernel", DRIVER: "driver", RUNTIME: "runtime"}
#: Offset of the correlation id and the start in their records.
CORRELATION = {SERIAL_KERNEL: 92, KERNEL: 92, DRIVER: 32, RUNTIME: 32}
BUFFER_BYTES, MOST_PCS = 4 << 20, 5_000


def struct(name: str, *fields: tuple[str, object]) -> type[c.Structure]:
    """Return a struct whose first two fields are CUPTI's size and private pointer."""
    return type(name, (c.Structure,), {"_fields_": [("size", Size), ("private", Pointer), *fields]})


class Reason(c.Structure):
    _fields_ = [("index", U32), ("samples", U32)]


def pc_struct(library: str) -> type[c.Structure]:
    """Return CUpti_PCSamplingPCData; its last field came within CUDA 13, as the header beside the library shows."""
    header = Path(library).parent.parent / "include" / "cupti_pcsampling.h"
    is_long = not header.exists() or "correlationId" in header.read_text(errors="replace")
    fields = [
        ("size", Size), ("cubin_crc", U64), ("pc_offset", U64), ("function", U32), ("pad", U32),
        ("name", c.c_char_p), ("reason_count", Size), ("reasons", c.POINTER(Reason)),
        *([("correlation", U32), ("pad2", U32)] if is_long else []),
    ]  # fmt: skip
    return type("Pc", (c.Structure,), {"_fields_": fields})


class Data(c.Structure):
    _fields_ = [
        ("size", Size), ("collect", Size), ("total", U64), ("dropped", U64), ("pcs", Size), ("remaining", Size),
        ("range", U64), ("pc_data", Pointer), ("non_user", U64), ("is_full", c.c_uint8), ("pad", c.c_uint8 * 7),
    ]  # fmt: skip


class Attribute(c.Structure):
    _fields_ = [("kind", c.c_int), ("status", c.c_int), ("value", U64 * 3)]


Context = struct("Context", ("context", Pointer))
Configuration = struct("Configuration", ("context", Pointer), ("count", Size), ("attributes", c.POINTER(Attribute)))
GetData = struct("GetData", ("context", Pointer), ("data", Pointer))
#: CUpti_Profiler_DeviceSupported_Params: what makes profiling impossible here; 3 = supported. `api`: 1 PC sampling.
SUPPORT = ("is_supported", "architecture", "sli", "vgpu", "confidential", "cmp", "wsl", "api")
Supported = struct("Supported", ("device", c.c_int), *[(name, c.c_int) for name in SUPPORT])
ReasonCount = struct("ReasonCount", ("context", Pointer), ("count", c.POINTER(Size)))
ReasonNames = struct(
    "ReasonNames", ("context", Pointer), ("count", Size), ("indices", c.POINTER(U32)), ("names", c.POINTER(Pointer))
)


class Calls:
    """Calls functions of CUPTI, and notes the name of each result that is not the one before. `results`: by call."""

    def __init__(self) -> None:
        self.path = find()
        self.library = c.CDLL(self.path)
        self.results: dict[str, Counter[str]] = {}

    def __call__(self, name: str, *arguments: object) -> bool:
        """Return whether a call succeeded."""
        function = getattr(self.library, name, None)
        text = "no such function" if function is None else self.result(function(*arguments))
        self.results.setdefault(name, Counter())[text] += 1
        return text == "CUPTI_SUCCESS"

    def result(self, code: int) -> str:
        """Return the name of a CUptiResult."""
        text = c.c_char_p()
        self.library.cuptiGetResultString(code, c.byref(text))
        return (text.value or str(code).encode()).decode()

    def version(self) -> int:
        """Return cuptiGetVersion's number."""
        number = U32()
        self.library.cuptiGetVersion(c.byref(number))
        return number.value


def support(calls: Calls) -> dict[str, int]:
    """Return what CUPTI says of PC sampling on the first GPU."""
    about = Supported(api=1)
    about.size = Supported.api.offset + Supported.api.size
    calls("cuptiProfilerDeviceSupported", c.byref(about))
    return {name: getattr(about, name) for name in SUPPORT}


def current_context() -> int:
    """Return the CUcontext of this thread."""
    context = Pointer()
    code = c.CDLL("libcuda.so.1").cuCtxGetCurrent(c.byref(context))
    if code or not context.value:
        raise RuntimeError(f"cuCtxGetCurrent: {code}")
    return context.value


class PcSampler:
    """PC sampling of one context; each method may be called in any thread. `samples`: (kernel, reason) -> samples."""

    def __init__(self, calls: Calls, context: int) -> None:
        self.calls, self.context = calls, context
        self.samples: Counter[tuple[str, str]] = Counter()
        self.totals: Counter[str] = Counter()
        self.names: dict[int, str] = {}
        self._pc = pc_struct(calls.path)
        self._keep: list[object] = []

    def plain(self, name: str) -> bool:
        """Call Enable, Start, Stop or Disable."""
        parameters = Context(c.sizeof(Context), None, self.context)
        return self.calls(f"cuptiPCSampling{name}", c.byref(parameters))

    def enable(self, mode: int, control: bool, period: int = 0, hardware_mb: int = 0) -> dict[str, object]:
        """Enable and configure; `period`: power of two of cycles, 0 = CUPTI's. Return what CUPTI says of it."""
        if not self.plain("Enable"):
            return {}
        self.names = self._read_names()
        self._buffer, self._into = self._data(), self._data()
        wanted = [(MODE, mode), (CONTROL, int(control)), (FORMAT, 1), (BUFFER, c.addressof(self._into))]
        wanted += [(PERIOD, period)] if period else []
        wanted += [(HARDWARE, hardware_mb << 20)] if hardware_mb else []
        statuses = {kind: self._configure("Set", kind, value)[0] for kind, value in wanted}
        is_now = {kind: self._configure("Get", kind, 0)[1] for kind in (PERIOD, SCRATCH, HARDWARE, MODE, CONTROL)}
        return {"reasons": len(self.names), "set": statuses, "is": is_now}

    def drain(self) -> None:
        """Take all that CUPTI has of the samples now."""
        parameters = GetData(c.sizeof(GetData), None, self.context, c.addressof(self._buffer))
        for _ in range(200):
            for pc in self._buffer.rows:
                pc.reason_count = len(self.names)
            self._buffer.pcs = self._buffer.remaining = 0
            if not self.calls("cuptiPCSamplingGetData", c.byref(parameters)):
                self.totals["full"] += self._buffer.is_full
                return
            self.take(self._buffer)
            if not self._buffer.remaining:
                return

    def disable(self) -> bool:
        """Disable; what CUPTI still had is in the buffer of the configuration then."""
        done = self.plain("Disable")
        self.take(self._into)
        return done

    def take(self, data: Data) -> None:
        """Add the samples of a buffer."""
        for name in ("total", "dropped", "non_user", "pcs"):
            self.totals[name] += getattr(data, name)
        for pc in data.rows[: data.pcs]:
            kernel = (pc.name or b"?").decode(errors="replace")
            self.totals["with correlation"] += bool(getattr(pc, "correlation", 0))
            for reason in pc.reasons[: min(pc.reason_count, len(self.names))]:
                self.samples[kernel, self.names.get(reason.index, str(reason.index))] += reason.samples
        data.pcs = 0

    def by_kernel(self, most: int = 6) -> dict[str, dict[str, object]]:
        """Return the shares of the reasons of each kernel, and forget them."""
        kernels: dict[str, Counter[str]] = {}
        for (kernel, reason), count in self.samples.items():
            kernels.setdefault(kernel[:90], Counter())[reason.replace("smsp__pcsamp_", "")] += count
        self.samples.clear()
        result = {}
        for kernel, reasons in sorted(kernels.items(), key=lambda item: -item[1].total())[:most]:
            total = reasons.total() or 1
            shares = {name: round(count / total, 3) for name, count in reasons.most_common(8)}
            result[kernel] = {"samples": total, "shares": shares}
        return result

    def _read_names(self) -> dict[int, str]:
        count = Size(0)
        number = ReasonCount(c.sizeof(ReasonCount), None, self.context, c.pointer(count))
        if not self.calls("cuptiPCSamplingGetNumStallReasons", c.byref(number)):
            return {}
        texts = [c.create_string_buffer(128) for _ in range(count.value)]
        pointers = (Pointer * count.value)(*[c.addressof(text) for text in texts])
        indices = (U32 * count.value)()
        named = ReasonNames(c.sizeof(ReasonNames), None, self.context, count.value, indices, pointers)
        self.calls("cuptiPCSamplingGetStallReasons", c.byref(named))
        return {index: text.value.decode() for index, text in zip(indices, texts, strict=True)}

    def _configure(self, verb: str, kind: int, value: int) -> tuple[str, int]:
        attribute = Attribute(kind, 0, (U64 * 3)(value, 0, 0))
        parameters = Configuration(c.sizeof(Configuration), None, self.context, 1, c.pointer(attribute))
        self.calls(f"cuptiPCSampling{verb}ConfigurationAttribute", c.byref(parameters))
        return self.calls.result(attribute.status), attribute.value[0]

    def _data(self) -> Data:
        rows = (self._pc * MOST_PCS)()
        for row in rows:
            reasons = (Reason * len(self.names))()
            row.size, row.reason_count, row.reasons = c.sizeof(self._pc), len(self.names), reasons
            self._keep.append(reasons)
        data = Data(c.sizeof(Data), MOST_PCS, pc_data=c.addressof(rows))
        data.rows = rows
        self._keep += [rows, data]
        return data


class Records:
    """CUPTI's activity records of some kinds, read in its own callbacks: counts, and the order of calls and kernels.

    `registers`: False leaves CUPTI's records to drumline, and counts none.
    """

    def __init__(self, calls: Calls, registers: bool = True) -> None:
        self.calls, self.counts, self._registers = calls, Counter(), registers
        self._order: list[tuple[str, int]] = []
        self._buffers: dict[int, c.Array] = {}
        request = c.CFUNCTYPE(None, c.POINTER(Pointer), c.POINTER(Size), c.POINTER(Size))
        complete = c.CFUNCTYPE(None, Pointer, U32, Pointer, Size, Size)
        self._request, self._complete = request(self._give), complete(self._take)
        if registers:
            calls("cuptiActivityRegisterCallbacks", self._request, self._complete)

    def switch(self, on: bool, kinds: tuple[int, ...]) -> None:
        """Switch kinds on or off."""
        for kind in kinds:
            self.calls("cuptiActivityEnable" if on else "cuptiActivityDisable", kind)

    def flush(self) -> dict[str, int]:
        """Return the counts since the last flush."""
        if self._registers:
            self.calls("cuptiActivityFlushAll", 1)
        counts, self.counts = dict(self.counts), Counter()
        return counts

    def order(self) -> dict[str, int]:
        """Return how many kernels have calls of their correlation id, and whether those came before them."""
        places: dict[str, dict[int, int]] = {"kernel": {}, "driver": {}, "runtime": {}}
        for place, (kind, correlation) in enumerate(self._order):
            places[kind].setdefault(correlation, place)
        result = {"kernels": len(places["kernel"])}
        for kind in ("driver", "runtime"):
            both = places["kernel"].keys() & places[kind].keys()
            result[f"with {kind}"] = len(both)
            result[f"{kind} first"] = sum(places[kind][number] < places["kernel"][number] for number in both)
        return result

    def _give(self, buffer: object, size: object, most: object) -> None:
        memory = c.create_string_buffer(BUFFER_BYTES + 8)
        address = (c.addressof(memory) + 7) // 8 * 8
        self._buffers[address] = memory
        buffer[0], size[0], most[0] = address, BUFFER_BYTES, 0

    def _take(self, context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        record = Pointer(0)
        while self.calls.library.cuptiActivityGetNextRecord(Pointer(buffer), Size(valid), c.byref(record)) == 0:
            kind = U32.from_address(record.value).value
            name = NAMES.get(kind, str(kind))
            self.counts[name] += 1
            if kind in CORRELATION:
                self._order.append((name, U32.from_address(record.value + CORRELATION[kind]).value))
        self._buffers.pop(buffer, None)


def privileges() -> dict[str, object]:
    """Return who this process is, and what the driver says of profiling by others than root."""
    text = Path("/proc/driver/nvidia/params")
    try:
        lines = [line for line in text.read_text().splitlines() if "RmProfilingAdmin" in line]
    except OSError as error:
        lines = [str(error)]
    return {"uid": os.getuid(), "driver": lines}
