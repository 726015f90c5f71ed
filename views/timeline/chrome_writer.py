"""Writer of Chrome's trace events as JSON: for chrome://tracing, Speedscope, and tools that read PyTorch's traces.

Times are microseconds with three decimals. What Chrome has no form for is left out: the weight of a sampled stack is an
argument of an instant.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from itertools import count
from typing import Any

from drumline.views.timeline.lanes import Span, edges


class ChromeWriter:
    """Collects a trace in memory, then returns its bytes: JSON in gzip. For one thread."""

    def __init__(self, start_ns: int) -> None:
        """`start_ns`: a time of the trace, ns since the epoch: all times are UTC, and written as time since it."""
        self._start_ns = start_ns
        self._events: list[dict[str, Any]] = []
        self._tracks = count(1)
        self._process_of: dict[int, int] = {}
        self._flows: set[int] = set()
        self.slices = 0

    def process(self, name: str, number: int, labels: Iterable[str]) -> int:
        """Add a process; return its track. Processes are shown in the order of their numbers."""
        track = next(self._tracks)
        self._process_of[track] = number
        for kind, of_kind in (
            ("process_name", {"name": name}),
            ("process_sort_index", {"sort_index": number}),
            ("process_labels", {"labels": ", ".join(labels)}),
        ):
            self._add(ph="M", name=kind, pid=number, args=of_kind)
        return track

    def track(self, parent: int, name: str, order: int) -> int:
        """Add a track below a process or its track, in the place that `order` gives; return it."""
        track, number = next(self._tracks), self._process_of[parent]
        self._process_of[track] = number
        self._add(ph="M", name="thread_name", pid=number, tid=track, args={"name": name})
        self._add(ph="M", name="thread_sort_index", pid=number, tid=track, args={"sort_index": order})
        return track

    def spans(self, parent: int, name: str, order: int, spans: Iterable[Span], *, nests: bool = False) -> None:
        """Add a track with spans. What overlaps without nesting gets more tracks of the same name."""
        lanes: list[int] = []
        for lane, time, span in edges(spans, nests=nests):
            if lane == len(lanes):
                lanes.append(self.track(parent, name, order))
            place = {"pid": self._process_of[parent], "tid": lanes[lane], "ts": self._us(time)}
            if span is None:
                self._add(ph="E", **place)
                continue
            self.slices += 1
            self._add(ph="B", name=span.name, cat=name, args=dict(span.notes), **place)
            if span.flow:
                self._add(ph="t" if span.flow in self._flows else "s", id=span.flow, name="joined", cat="flow", **place)
                self._flows.add(span.flow)

    def counter(self, parent: int, name: str, unit: str, order: int, values: Iterable[tuple[int, float]]) -> None:
        """Add a counter over time; none, if there is no value."""
        for time, value in values:
            self._add(
                ph="C", name=f"{name}, {unit}", pid=self._process_of[parent], ts=self._us(time), args={name: value}
            )

    def sample(self, track: int, time: int, frames: Iterable[tuple[str, str, int]], count: int) -> None:
        """Add `count` samples of a call stack. frames: function, file and line, the outermost first."""
        stack = [f"{name} ({file}:{line})" for name, file, line in frames]
        self._add(
            ph="i", s="t", name=stack[-1] if stack else "no frame", pid=self._process_of[track], tid=track,
            ts=self._us(time), args={"samples": count, "stack": stack},
        )  # fmt: skip

    def serialized(self) -> bytes:
        """Return the trace; the same events give the same bytes."""
        trace = {"displayTimeUnit": "ns", "baseTimeNanoseconds": self._start_ns, "traceEvents": self._events}
        return gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0)

    def _add(self, **event: Any) -> None:
        self._events.append(event)

    def _us(self, time_ns: int) -> float:
        return round((time_ns - self._start_ns) / 1000, 3)
