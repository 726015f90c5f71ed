"""One probe of SASS instruction metrics beside kernel records, for deep_probe.py: deep_sass_job.py OPTIONS (JSON).

Options: how (sass: CUPTI patches the instructions; range: the range profiler; pm: PM sampling of the GPU), records
(kernel records are on). Prints a JSON object after each stage, with the result of each call by name.
"""

import ctypes as c
import json
import sys
import time
from collections.abc import Callable

import torch
from deep_cupti import KERNEL, U32, U64, Calls, Pointer, Records, Size, current_context, privileges, struct

options = json.loads(sys.argv[1])
#: Metrics: instructions by the hardware's counters, and by patches of the code.
COUNTED, PATCHED = b"smsp__sass_inst_executed_op_global.sum", b"smsp__sass_inst_executed"
BEGAN = time.monotonic()
Bytes = c.c_char_p


class Metric(c.Structure):
    _fields_ = [("id", U64), ("name", Bytes), ("description", Bytes)]


class Config(c.Structure):
    _fields_ = [("id", U64), ("granularity", c.c_uint8)]


class Value(c.Structure):
    _fields_ = [("id", U64), ("value", U64)]


class Instruction(c.Structure):
    _fields_ = [
        ("size", Size), ("private", Pointer), ("crc", U32), ("function", U32), ("name", Bytes), ("pc", U32),
        ("values", c.POINTER(Value)),
    ]  # fmt: skip


def report(**values: object) -> None:
    print(json.dumps({"s": round(time.monotonic() - BEGAN, 1), **values}, default=str), flush=True)


def work() -> float:
    """Run a few kernels; ms."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(20):
        torch.add(x, 1.0, out=y)
        torch.lgamma(y[: 1 << 20])
    torch.cuda.synchronize()
    return round(1e3 * (time.perf_counter() - begin), 2)


def call(function: str, bytes_less: int = 0, /, **fields: object) -> c.Structure | None:
    """Call a function with a struct of these fields, whose size is that up to its last one; None where it failed."""
    kinds = [(key, value[0] if isinstance(value, tuple) else type(value)) for key, value in fields.items()]
    values = {key: value[1] if isinstance(value, tuple) else value for key, value in fields.items()}
    kind = struct(function, *kinds)
    last = getattr(kind, kinds[-1][0])
    parameters = kind(last.offset + last.size - bytes_less, None, **values)
    return parameters if calls(function, c.byref(parameters)) else None


def pointer(memory: object) -> tuple[object, int]:
    return Pointer, c.addressof(memory)


def patched() -> None:
    number = call("cuptiSassMetricsGetNumOfMetrics", chip=(Bytes, chip), count=(Size, 0))
    names: list[str] = []
    if number:
        metrics = (Metric * number.count)()
        call("cuptiSassMetricsGetMetrics", chip=(Bytes, chip), count=(Size, number.count), metrics=pointer(metrics))
        names = [(metric.name or b"").decode() for metric in metrics]
    report(stage="metrics", count=len(names), names=names[:80], results=calls.results)
    metric = call("cuptiSassMetricsGetProperties", chip=(Bytes, chip), name=(Bytes, PATCHED), metric=(Metric, Metric()))
    if not metric:
        return
    configs = (Config * 1)(Config(metric.metric.id, 0))
    call("cuptiSassMetricsSetConfig", count=(Size, 1), configs=pointer(configs), device=(U32, 0))
    call("cuptiSassMetricsEnable", context=(Pointer, context), lazy=(c.c_uint8, 1))
    first = work()
    report(stage="patched", first_ms=first, ms=work(), results=calls.results)
    about = call(
        "cuptiSassMetricsGetDataProperties", context=(Pointer, context), instructions=(Size, 0), instances=(Size, 0)
    )
    if about and about.instructions:
        rows = (Instruction * about.instructions)()
        kept = []
        for row in rows:
            values = (Value * about.instances)()
            row.size, row.values = c.sizeof(Instruction), values
            kept.append(values)
        # Its size does not count the last field (cupti_sass_metrics.h).
        call(
            "cuptiSassMetricsFlushData", 8, context=(Pointer, context), instructions=(Size, about.instructions),
            instances=(Size, about.instances), data=pointer(rows),
        )  # fmt: skip
        totals: dict[str, int] = {}
        for row in rows:
            name = (row.name or b"?").decode()[:80]
            totals[name] = totals.get(name, 0) + sum(value.value for value in row.values[: about.instances])
        report(stage="instructions", instructions=about.instructions, totals=totals)
    call("cuptiSassMetricsDisable", context=(Pointer, context), dropped=(Size, 0))
    call("cuptiSassMetricsUnsetConfig", device=(U32, 0))


def configuration(kind: int) -> object:
    """Return the image of a configuration with the metric; None where it failed."""
    image = None
    if kind:
        size = call("cuptiPmSamplingGetCounterAvailability", device=(Size, 0), bytes=(Size, 0), image=(Pointer, None))
        if size:
            image = c.create_string_buffer(size.bytes)
            call(
                "cuptiPmSamplingGetCounterAvailability",
                device=(Size, 0),
                bytes=(Size, size.bytes),
                image=pointer(image),
            )
    else:
        size = call(
            "cuptiProfilerGetCounterAvailability", context=(Pointer, context), bytes=(Size, 0), image=(Pointer, None)
        )
        if size:
            image = c.create_string_buffer(size.bytes)
            call(
                "cuptiProfilerGetCounterAvailability", context=(Pointer, context), bytes=(Size, size.bytes),
                image=pointer(image),
            )  # fmt: skip
    host = call(
        "cuptiProfilerHostInitialize", kind=(c.c_int, kind), chip=(Bytes, chip),
        image=pointer(image) if image else (Pointer, None), host=(Pointer, None),
    )  # fmt: skip
    if not host:
        return None
    call("cuptiProfilerHostConfigAddMetrics", host=(Pointer, host.host), names=pointer(names), count=(Size, 1))
    size = call("cuptiProfilerHostGetConfigImageSize", host=(Pointer, host.host), bytes=(Size, 0))
    if not size:
        return None
    built = c.create_string_buffer(size.bytes)
    call("cuptiProfilerHostGetConfigImage", host=(Pointer, host.host), bytes=(Size, size.bytes), image=pointer(built))
    passes = call("cuptiProfilerHostGetNumOfPasses", bytes=(Size, size.bytes), image=pointer(built), passes=(Size, 0))
    report(stage="configured", bytes=size.bytes, passes=passes and passes.passes, results=calls.results)
    return host.host, built, size.bytes


def ranged() -> None:
    """One pass over a range of the user, so that no kernel is replayed."""
    built = configuration(0)
    enabled = call("cuptiRangeProfilerEnable", context=(Pointer, context), profiler=(Pointer, None))
    report(stage="enabled", results=calls.results)
    if not built or not enabled:
        return
    host, image, size = built
    of = {"profiler": (Pointer, enabled.profiler)}
    sized = call(
        "cuptiRangeProfilerGetCounterDataSize", **of, names=pointer(names), count=(Size, 1), ranges=(Size, 20),
        nodes=(U32, 20), bytes=(Size, 0),
    )  # fmt: skip
    counters = c.create_string_buffer(sized.bytes)
    call("cuptiRangeProfilerCounterDataImageInitialize", **of, bytes=(Size, sized.bytes), data=pointer(counters))
    call(
        "cuptiRangeProfilerSetConfig", **of, config_bytes=(Size, size), config=pointer(image),
        bytes=(Size, sized.bytes), data=pointer(counters), range=(c.c_int, 2), replay=(c.c_int, 3), most=(Size, 20),
        levels=(c.c_uint16, 1), lowest=(c.c_uint16, 1), number=(Size, 0), target=(c.c_uint16, 1),
    )  # fmt: skip
    call("cuptiRangeProfilerStart", **of)
    call("cuptiRangeProfilerPushRange", **of, name=(Bytes, b"work"))
    took = work()
    call("cuptiRangeProfilerPopRange", **of)
    call("cuptiRangeProfilerStop", **of, number=(Size, 0), target=(Size, 0), submitted=(c.c_uint8, 0))
    call("cuptiRangeProfilerDecodeData", **of, dropped=(Size, 0))
    values = (c.c_double * 1)()
    call(
        "cuptiProfilerHostEvaluateToGpuValues", host=(Pointer, host), data=pointer(counters), bytes=(Size, sized.bytes),
        range=(Size, 0), names=pointer(names), count=(Size, 1), values=pointer(values),
    )  # fmt: skip
    report(stage="ranged", ms=took, value=values[0], results=calls.results)
    call("cuptiRangeProfilerDisable", **of)


def pm() -> None:
    """Sample the GPU's counters each 100 us; they belong to a time, not to a kernel."""
    built = configuration(1)
    enabled = call("cuptiPmSamplingEnable", device=(Size, 0), sampler=(Pointer, None))
    report(stage="enabled", results=calls.results)
    if not built or not enabled:
        return
    host, image, size = built
    of = {"sampler": (Pointer, enabled.sampler)}
    call(
        "cuptiPmSamplingSetConfig", **of, config_bytes=(Size, size), config=pointer(image), hardware=(Size, 64 << 20),
        interval=(U64, 100_000), trigger=(c.c_int, 1), append=(c.c_int, 0),
    )  # fmt: skip
    sized = call(
        "cuptiPmSamplingGetCounterDataSize", **of, names=pointer(names), count=(Size, 1), most=(U32, 5_000),
        bytes=(Size, 0),
    )  # fmt: skip
    if not sized:
        return
    counters = c.create_string_buffer(sized.bytes)
    call("cuptiPmSamplingCounterDataImageInitialize", **of, bytes=(Size, sized.bytes), data=pointer(counters))
    call("cuptiPmSamplingStart", **of)
    took = work()
    call("cuptiPmSamplingStop", **of)
    decoded = call(
        "cuptiPmSamplingDecodeData", **of, data=pointer(counters), bytes=(Size, sized.bytes), why=(c.c_int, 0),
        overflow=(c.c_uint8, 0),
    )  # fmt: skip
    about = call(
        "cuptiPmSamplingGetCounterDataInfo", data=pointer(counters), bytes=(Size, sized.bytes), total=(Size, 0),
        populated=(Size, 0), completed=(Size, 0),
    )  # fmt: skip
    values, total = (c.c_double * 1)(), 0.0
    for number in range(about.completed if about else 0):
        call(
            "cuptiProfilerHostEvaluateToGpuValues", host=(Pointer, host), data=pointer(counters),
            bytes=(Size, sized.bytes), range=(Size, number), names=pointer(names), count=(Size, 1),
            values=pointer(values),
        )  # fmt: skip
        total += values[0]
    samples = about and about.completed
    report(stage="sampled", ms=took, samples=samples, overflow=decoded and decoded.overflow, value=total)
    call("cuptiPmSamplingDisable", **of)


torch.cuda.init()
x = torch.ones(1 << 24, device="cuda")
y = torch.empty_like(x)
plain = [work() for _ in range(3)]
calls, context = Calls(), current_context()
calls("cuptiProfilerInitialize", c.byref(struct("Initialize")(16, None)))  # without it CUPTI 13.0 crashes in the next
named = call("cuptiDeviceGetChipName", device=(Size, 0), chip=(Bytes, None))
chip = named.chip if named else b"?"
names = (Bytes * 1)(COUNTED)
records = Records(calls)
report(stage="begun", cupti=calls.version(), chip=chip.decode(), plain_ms=plain, **privileges())
if options["records"]:
    records.switch(True, (KERNEL,))
    took = work()
    report(stage="with records", ms=took, records=records.flush())
how: dict[str, Callable[[], None]] = {"sass": patched, "range": ranged, "pm": pm}
try:
    how[options["how"]]()
except Exception as error:
    report(stage="failed", error=f"{type(error).__name__}: {error}", results=calls.results)
report(stage="records of the same time", records=records.flush(), results=calls.results)
report(stage="after", ms=work(), records=records.flush(), results=calls.results)
