"""Gathers the events of one Kineto file into columns, run by run: Python holds the objects of one run at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from drumline.producers.derive.nccl import names as nccl
from drumline.producers.foreign.kineto.copy_names import copied
from drumline.producers.foreign.kineto.typed_events import Args, Event
from drumline.schemas.columns import Array

KERNEL, COPY, LAUNCH, RANGE, OPERATOR = "kernel", "copy", "launch", "range", "operator"
#: Runtime calls in which the host waits for the GPU, by the end of their names (CUDA and HIP).
WAIT, SYNCHRONIZE = "wait", "Synchronize"
#: Category of an event -> what it is read as; PyTorch before 2.0 wrote the second form.
CATEGORIES = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": COPY,
    "Memcpy": COPY,
    "Memset": COPY,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "Runtime": LAUNCH,
    "user_annotation": RANGE,
    "cpu_op": OPERATOR,
    "Operator": OPERATOR,
}
#: Operator that names the operation and its process group.
COMMUNICATION = "record_param_comms"
#: Begin of an annotation that names the operation.
ANNOTATION = "nccl:"
#: Times beyond it are no times; us.
MOST_US = float(1 << 53)
_NO_ARGS = Args()


class NcclArgs(NamedTuple):
    """Holds what an event states of an NCCL operation; "" and 0 = nothing. `group`: name and ranks."""

    operation: str
    group: tuple[str, str]
    bytes: int


#: Bytes of an element by the name of its type, as c10 writes them.
ELEMENT_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "signed char": 1, "unsigned char": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "half": 2, "bfloat16": 2, "short": 2, "c10::half": 2, "c10::bfloat16": 2,
    "int": 4, "float": 4, "long": 8, "long int": 8, "double": 8, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


class EventColumns:
    """Holds the events that count, by kind, as runs of NumPy columns.

    Attributes:
        left_out: reason -> number of events.
        devices, pids: of kernels and of launches -> number of events.
    """

    def __init__(self) -> None:
        self.left_out, self.devices, self.pids = Counter[str](), Counter[int](), Counter[int]()
        self.names, self.range_names = dict[str, int](), dict[str, int]()
        self._threads, self._is_nccl = dict[object, int](), dict[str, bool]()
        self.nccl_args = dict[NcclArgs, int]()
        self._rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in _COLUMNS}
        self._runs: dict[str, list[dict[str, Array]]] = {kind: [] for kind in _COLUMNS}

    def add(self, events: Iterable[Event]) -> None:
        """Take one run of events."""
        for event in events:
            kind = CATEGORIES.get(event.cat or "")
            if kind is None or (kind is OPERATOR and event.name != COMMUNICATION):
                continue
            ts, dur = event.ts, event.dur
            if ts is None or dur is None or not (0 <= ts < MOST_US and 0 <= dur < MOST_US):
                self.left_out[f"{kind}: its time is missing or impossible"] += 1
                continue
            args = event.args or _NO_ARGS
            if kind is LAUNCH:
                if event.name and event.name.endswith(SYNCHRONIZE):
                    self._rows[WAIT].append((ts, dur))
                elif args.correlation:
                    self._rows[LAUNCH].append((ts, dur, args.correlation, self._thread(event)))
                    if type(event.pid) is int:
                        self.pids[event.pid] += 1
            elif kind is KERNEL:
                self._kernel(event, args)
            elif kind is COPY:
                ids = (args.correlation or 0, _whole(args.stream))
                self._rows[COPY].append((ts, dur, *ids, *copied(event.name or ""), _whole(args.bytes)))
            else:
                self._range(event, args)
        for kind, rows in self._rows.items():
            if rows:
                self._runs[kind].append(_as_columns(rows, _COLUMNS[kind]))
                rows.clear()

    def columns(self, kind: str) -> dict[str, Array]:
        """Return the columns of one kind; times: `start_us` whole microseconds, `start_ns` the rest, `duration_ns`."""
        runs = self._runs[kind] or [_as_columns([], _COLUMNS[kind])]
        return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}

    def _kernel(self, event: Event, args: Args) -> None:
        name = event.name or ""
        if name not in self.names:
            self.names[name] = len(self.names)
            self._is_nccl[name] = bool(nccl.is_kernel([name])[0])
        grid, block = _three(args.grid), _three(args.block)
        stated = self._stated(args, "") if self._is_nccl[name] else -1
        self.devices[args.device if args.device is not None else -1] += 1
        ids = (args.correlation or 0, _whole(args.stream), self.names[name])
        resources = (args.registers or 0, args.shared or 0)
        self._rows[KERNEL].append((event.ts, event.dur, *ids, *grid, *block, *resources, stated))

    def _range(self, event: Event, args: Args) -> None:
        name = event.name or ""
        thread = self._thread(event)
        if name == COMMUNICATION or name.startswith(ANNOTATION):
            stated = self._stated(args, name.removeprefix(ANNOTATION) if name != COMMUNICATION else "")
            self._rows[OPERATOR].append((event.ts, event.dur, thread, stated))
            return
        number = self.range_names.setdefault(name, len(self.range_names))
        self._rows[RANGE].append((event.ts, event.dur, number))

    def _thread(self, event: Event) -> int:
        return self._threads.setdefault(event.tid, len(self._threads))

    def _stated(self, args: Args, operation: str) -> int:
        """Return the index of what an event states of its NCCL operation."""
        group = args.group_name if args.group_name is not None else args.group_id
        ranks = args.group_ranks
        text = ",".join(map(str, ranks)) if isinstance(ranks, list) else (ranks or "").strip("[] ").replace(" ", "")
        size = (args.elements or 0) * ELEMENT_BYTES.get((args.dtype or "").lower(), 0)
        fields = NcclArgs(args.collective or operation, ("" if group is None else str(group), text), max(0, size))
        return self.nccl_args.setdefault(fields, len(self.nccl_args))


_TIMES = ("start_us", "start_ns", "duration_ns")
_COLUMNS: dict[str, tuple[str, ...]] = {
    KERNEL: (
        "correlation", "stream", "name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers",
        "shared", "stated",
    ),
    COPY: ("correlation", "stream", "kind", "src_kind", "dst_kind", "is_async", "bytes"),
    LAUNCH: ("correlation", "thread"),
    WAIT: (),
    RANGE: ("name",),
    OPERATOR: ("thread", "stated"),
}  # fmt: skip


def _as_columns(rows: Sequence[tuple[Any, ...]], names: tuple[str, ...]) -> dict[str, Array]:
    if not rows:
        return {name: np.empty(0, np.int64) for name in (*_TIMES, *names)}
    ts, dur, *parts = zip(*rows, strict=True)
    start = np.array(ts, np.float64)
    whole = np.floor(start)
    times = (whole, np.rint((start - whole) * 1000), np.rint(np.array(dur, np.float64) * 1000))
    values = [time.astype(np.int64) for time in times] + [np.array(column, np.int64) for column in parts]
    return dict(zip((*_TIMES, *names), values, strict=True))


def _whole(value: int | str | None) -> int:
    """Return an id as a number; 0 where it is none."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return 0
        return value if abs(value) < 1 << 62 else 0
    return value or 0


def _three(values: list[int] | None) -> tuple[int, int, int]:
    return (values[0], values[1], values[2]) if values is not None and len(values) == 3 else (0, 0, 0)
