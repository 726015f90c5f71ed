"""Gathers the events of one Kineto file into columns, run by run: Python holds the objects of one run at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.foreign.kineto.copy_names import copied
from drumline.producers.foreign.kineto.typed_events import Args, Event
from drumline.schemas.columns import Array

KERNEL, COPY, LAUNCH, RANGE, OPERATOR = "kernel", "copy", "launch", "range", "operator"
#: Runtime calls in which the host waits for the GPU, by the end of their names (CUDA and HIP).
WAIT, SYNCHRONIZE = "wait", "Synchronize"
#: Category of an event -> what it is read as; PyTorch before 2.0 wrote the second form.
CATEGORIES: dict[str | None, str] = {
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
_NO_ARGS, _NO_SIZE = Args(), (0, 0, 0)


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


class _Numbers(dict[Any, int]):
    """Numbers values from 0 in the order in which they are first looked up."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class EventColumns:
    """Holds the events that count, by kind, as runs of NumPy columns.

    Attributes:
        left_out: reason -> number of events.
        devices, pids: of kernels and of launches -> number of events.
        streams: of kernels.
    """

    def __init__(self) -> None:
        self.left_out, self.devices, self.pids = Counter[str](), Counter[int](), Counter[int]()
        self.streams = set[int]()
        self.names, self.range_names, self.nccl_args = _Numbers(), _Numbers(), _Numbers()
        self._threads, self._copies = _Numbers(), dict[str, tuple[int, int, int, int]]()
        self._is_nccl: Array = np.zeros(0, dtype=bool)
        self._runs: dict[str, list[dict[str, Array]]] = {kind: [] for kind in _COLUMNS}

    def add(self, events: Iterable[Event]) -> None:
        """Take one run of events, column by column: a tuple for each event takes three times as long."""
        of_kind: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            if (kind := CATEGORIES.get(event.cat)) is not None and (
                kind is not OPERATOR or event.name == COMMUNICATION
            ):
                of_kind[kind].append(event)
        for kind, chosen in of_kind.items():
            timed, times = self._timed(kind, chosen)
            if timed:
                _TAKE[kind](self, timed, times)

    def columns(self, kind: str) -> dict[str, Array]:
        """Return the columns of one kind and forget them, which bounds memory.

        Times: `start_us` whole microseconds, `start_ns` the rest, `duration_ns`.
        """
        runs, none = self._runs.pop(kind, []), [np.empty(0, np.int64)]
        return {name: np.concatenate([run.pop(name) for run in runs] or none) for name in (*_TIMES, *_COLUMNS[kind])}

    def _timed(self, kind: str, events: list[Event]) -> tuple[list[Event], Array]:
        """Return the events with possible times, and these as rows of start and duration in us; count the others."""
        times = np.array([[event.ts for event in events], [event.dur for event in events]], np.float64)
        with np.errstate(invalid="ignore"):
            good = np.all((times >= 0) & (times < MOST_US), axis=0)
        if good.all():
            return events, times
        self.left_out[f"{kind}: its time is missing or impossible"] += int((~good).sum())
        return [event for event, is_good in zip(events, good, strict=True) if is_good], times[:, good]

    def _append(self, kind: str, times: Array, *values: Sequence[int] | Array) -> None:
        start, duration = times
        whole = np.floor(start)
        parts = (whole, np.rint((start - whole) * 1000), np.rint(duration * 1000))
        columns = [np.asarray(column).astype(np.int64) for column in (*parts, *values)]
        self._runs[kind].append(dict(zip((*_TIMES, *_COLUMNS[kind]), columns, strict=True)))

    def _kernels(self, events: list[Event], times: Array) -> None:
        args = [event.args or _NO_ARGS for event in events]
        names = np.array([self.names[event.name or ""] for event in events])
        new = tuple(islice(self.names, len(self._is_nccl), None))
        self._is_nccl = np.concatenate([self._is_nccl, nccl.is_kernel(new)])
        stated = np.full(len(events), -1)
        for at in np.flatnonzero(self._is_nccl[names]).tolist():
            stated[at] = self._stated(args[at], "")
        streams = _wholes([a.stream for a in args])
        self.streams.update(np.unique(streams).tolist())
        self.devices.update(-1 if a.device is None else a.device for a in args)
        self._append(
            KERNEL,
            times,
            [a.correlation or 0 for a in args],
            streams,
            names,
            *_triples([a.grid for a in args]),
            *_triples([a.block for a in args]),
            [a.registers or 0 for a in args],
            [a.shared or 0 for a in args],
            stated,
        )

    def _copied(self, events: list[Event], times: Array) -> None:
        known = self._copies
        for name in {event.name or "" for event in events} - known.keys():
            known[name] = copied(name)
        args = [event.args or _NO_ARGS for event in events]
        kinds = np.array([known[event.name or ""] for event in events]).T
        ids = ([a.correlation or 0 for a in args], _wholes([a.stream for a in args]))
        self._append(COPY, times, *ids, *kinds, _wholes([a.bytes for a in args]))

    def _launches(self, events: list[Event], times: Array) -> None:
        synchronised = np.array([(event.name or "").endswith(SYNCHRONIZE) for event in events])
        self._append(WAIT, times[:, synchronised])
        correlations = np.array([(event.args or _NO_ARGS).correlation or 0 for event in events])
        launched = np.flatnonzero(~synchronised & (correlations != 0))
        chosen = [events[at] for at in launched.tolist()]
        self.pids.update(event.pid for event in chosen if type(event.pid) is int)
        threads = [self._threads[event.tid] for event in chosen]
        self._append(LAUNCH, times[:, launched], correlations[launched], threads)

    def _ranges(self, events: list[Event], times: Array) -> None:
        """Take annotations and operators; those that name an operation of NCCL are operators."""
        named = np.array([event.name == COMMUNICATION or (event.name or "").startswith(ANNOTATION) for event in events])
        operators = [events[at] for at in np.flatnonzero(named).tolist()]
        threads = [self._threads[event.tid] for event in operators]
        self._append(OPERATOR, times[:, named], threads, [self._stated_by(event) for event in operators])
        ranges = [events[at] for at in np.flatnonzero(~named).tolist()]
        self._append(RANGE, times[:, ~named], [self.range_names[event.name or ""] for event in ranges])

    def _stated_by(self, event: Event) -> int:
        name = event.name or ""
        return self._stated(event.args or _NO_ARGS, "" if name == COMMUNICATION else name.removeprefix(ANNOTATION))

    def _stated(self, args: Args, operation: str) -> int:
        """Return the index of what an event states of its NCCL operation."""
        group = args.group_name if args.group_name is not None else args.group_id
        ranks = args.group_ranks
        text = ",".join(map(str, ranks)) if isinstance(ranks, list) else (ranks or "").strip("[] ").replace(" ", "")
        size = (args.elements or 0) * ELEMENT_BYTES.get((args.dtype or "").lower(), 0)
        fields = NcclArgs(args.collective or operation, ("" if group is None else str(group), text), max(0, size))
        return self.nccl_args[fields]


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


#: What takes the events of a kind.
_TAKE = {
    KERNEL: EventColumns._kernels,
    COPY: EventColumns._copied,
    LAUNCH: EventColumns._launches,
    RANGE: EventColumns._ranges,
    OPERATOR: EventColumns._ranges,
}


def _whole(value: int | str | None) -> int:
    """Return an id as a number; 0 where it is none."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return 0
        return value if abs(value) < 1 << 62 else 0
    return value or 0


def _wholes(values: list[int | str | None]) -> Array:
    """Return ids as numbers."""
    return np.array([value if type(value) is int else _whole(value) for value in values], np.int64)


def _triples(values: list[tuple[int, ...] | None]) -> Array:
    """Return three columns; 0 where an event has not three numbers."""
    number_of = _Numbers()
    numbers = [number_of[value] for value in values]  # few are different
    sizes = [value if value is not None and len(value) == 3 else _NO_SIZE for value in number_of]
    result: Array = np.array(sizes, np.int64)[numbers].T
    return result
