"""The newest progress of one process, as gpu.progress.v1 has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from drumline.schemas.batch import Batch

#: Columns that change when a process moves, or another one has to be named.
_MOVING = ("called", "begun", "ended", "closed", "peer", "communicator")
_TEXTS = {
    "communicator": "communicators",
    "operation": "operations",
    "datatype": "datatypes",
    "last_operation": "last_operations",
    "last_datatype": "last_datatypes",
}


class ProgressRow(NamedTuple):
    """Holds a row of gpu.progress.v1: a communicator, or, with `peer` >= 0, the sends to it or the receives from it."""

    communicator: str
    comm_rank: int
    ranks: int
    peer: int
    called: int
    begun: int
    ended: int
    exact: int
    closed: int
    operation: str
    datatype: str
    elements: int
    bytes: int
    last_operation: str
    last_datatype: str
    last_elements: int
    step: int


@dataclass(slots=True)
class ProcessProgress:
    """Holds the newest record of a process.

    Attributes:
        state: running, stopped, killed or exited.
        quiet_ns: time for which the process had not moved, by its own clock.
        seen_ns: worker's clock at the record, 0 = restored.
        mark: changes when the process moves.
    """

    rank: int
    host: str
    gpu_uuid: str
    sequence: int
    state: str
    quiet_ns: int
    seen_ns: int
    mark: bytes
    rows: tuple[ProgressRow, ...] = ()
    batch: Batch | None = field(default=None, repr=False)

    @classmethod
    def of(cls, batch: Batch, now_ns: int) -> ProcessProgress:
        """Return the progress in a batch that has rows."""
        envelope, columns = batch.envelope, batch.columns
        return cls(
            int(envelope["rank"]),
            envelope["host"],
            envelope["gpu_uuid"],
            int(envelope["sequence"]),
            str(batch.strings("state", "states")[0]),
            int(columns["quiet_ns"][0]),
            now_ns,
            b"".join(
                (
                    *(columns[name].tobytes() for name in _MOVING),
                    *(text.encode() for name in ("communicators", "states") for text in envelope[name]),
                )
            ),
            batch=batch,
        )

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.state in ("killed", "exited")

    def progress(self) -> tuple[ProgressRow, ...]:
        """Return the rows; converted at the first call, as they are of no use while the job moves."""
        if self.batch is not None:
            batch = self.batch
            lists = [
                batch.strings(name, _TEXTS[name]).tolist() if name in _TEXTS else batch.columns[name].tolist()
                for name in ProgressRow._fields
            ]
            self.rows, self.batch = tuple(ProgressRow(*values) for values in zip(*lists, strict=True)), None
        return self.rows

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        names = ("rank", "host", "gpu_uuid", "sequence", "state", "quiet_ns")
        return {**{name: getattr(self, name) for name in names}, "rows": [list(row) for row in self.progress()]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ProcessProgress:
        """Return what `to_json` gave."""
        rows = tuple(ProgressRow(*row) for row in value["rows"])
        return cls(**{**value, "rows": rows, "seen_ns": 0, "mark": b""})
