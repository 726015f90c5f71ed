"""Counts of traces, taken while they are read: processes without their activity, and what was left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from drumline.producers.activity.activity import Activity
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nvtx import ranges
from drumline.producers.derive.steps.steps import marked_steps
from drumline.producers.foreign.process_trace import ProcessTrace

#: Ranks that a sentence lists one by one.
LISTED = 12


@dataclass
class TraceSummary:
    """Holds the processes that were read, without their activity, and counts.

    Attributes:
        rows: kernels, copies, collectives -> number.
        left_out: reason -> number of records.
        notes: sentence on what was assumed -> number of files.
        sampled: some steps of a process were recorded, and others between them were not.
        first_step, last_step: numbers of marked steps; -1 = none.
    """

    processes: list[ProcessTrace] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    sampled: bool = False
    first_step: int = -1
    last_step: int = -1

    def add(self, trace: ProcessTrace) -> None:
        """Count one process; its activity is not kept."""
        kernels = trace.activity.kernels
        is_nccl = nccl.is_kernel(kernels.dictionaries["names"])
        self.rows["kernels"] += kernels.rows
        self.rows["copies"] += trace.activity.copies.rows
        self.rows["collectives"] += int(is_nccl[kernels["name"]].sum()) if kernels.rows else 0
        self.left_out.update(trace.left_out)
        self.notes.update(trace.notes)
        steps, _ = marked_steps(ranges(trace.activity.markers)[0])
        self.sampled = self.sampled or bool((np.diff(steps.number) > 1).any())
        if len(steps.number):
            first, last = int(steps.number[0]), int(steps.number[-1])
            self.first_step = first if self.first_step < 0 else min(self.first_step, first)
            self.last_step = max(self.last_step, last)
        self.processes.append(replace(trace, activity=Activity()))

    @property
    def ranks(self) -> list[int]:
        """Return the ranks, rising."""
        return sorted(process.rank for process in self.processes)

    @property
    def world_size(self) -> int:
        """Return the ranks of the job: as stated, at least up to the largest one."""
        return max((max(p.world_size, p.rank + 1) for p in self.processes), default=0)

    @property
    def gpu_model(self) -> str:
        """Return the model of the GPUs; "" where it is unknown."""
        return next((p.gpu_model for p in self.processes if p.gpu_model), "")

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of libraries, as the first process states them."""
        return dict(self.processes[0].versions) if self.processes else {}

    @property
    def formats(self) -> list[str]:
        """Return the formats, each once."""
        return sorted({str(p.format) for p in self.processes})

    @property
    def is_light(self) -> bool:
        """Return whether no process has kernels other than NCCL's, by its format."""
        return bool(self.processes) and all(p.is_light for p in self.processes)

    def missing(self) -> str:
        """Return a sentence on ranks of the job without a file; "" where all have one."""
        absent = sorted(set(range(self.world_size)) - set(self.ranks)) if self.world_size < 1 << 16 else []
        count = self.world_size - len(self.processes)
        if not count:
            return ""
        listed = f": {', '.join(map(str, absent[:LISTED]))}" + (", ..." if len(absent) > LISTED else "")
        return f"{count} of the job's {self.world_size} ranks have no file{listed if absent else ''}"

    def as_json(self) -> dict[str, Any]:
        """Return the counts, for --json."""
        return {
            "formats": self.formats,
            "ranks": self.ranks,
            "world_size": self.world_size,
            **{name: self.rows[name] for name in ("kernels", "copies", "collectives")},
            "first_step": self.first_step,
            "last_step": self.last_step,
            "left_out": dict(self.left_out),
            "notes": dict(self.notes),
        }
