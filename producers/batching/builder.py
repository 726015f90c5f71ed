"""Envelope and columns of one batch, for recorded and live processes alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drumline.producers.activity.table import Table, compact_dictionary
from drumline.producers.identity import CUPTI, NCCL, Identity
from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import cut
from drumline.schemas.bounds.limits import bounds
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Column by which the rows of a batch are sorted, where it is not start_ns.
TIME_COLUMN = {Topic.DEVICE: "time_ns"}


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """Envelope fields that change from batch to batch.

    Attributes:
        sequence: number of the batch in its (topic, key).
        dropped_before: rows lost since the batch before.
        closed_ns: time at which the batch was closed; ns since the epoch.
        watermark_ns: no row of a later batch starts before it.
        communicator: hash text, for collectives only.
        complete_step: newest step without rows to come, -1 = none; for steps and collectives only.
        steps_from: source of the steps (derive.steps), for steps only.
    """

    sequence: int
    dropped_before: int
    closed_ns: int
    watermark_ns: int
    communicator: str = ""
    complete_step: int = -1
    steps_from: str = ""


def make_batch(topic: Topic, identity: Identity, header: BatchHeader, rows: Table | None) -> Batch:
    """Return a batch with the given rows, sorted by their time column; None makes a heartbeat without columns.

    Columns of `rows` that the topic does not have are left out. Dictionaries hold only the strings that occur, cut to
    the length that the contract allows.
    """
    envelope: dict[str, Any] = {
        **identity.envelope(),
        "sequence": header.sequence,
        "dropped_before": header.dropped_before,
        "rows": rows.rows if rows else 0,
        "base_time_ns": int(rows[time_column(topic)][0]) if rows and rows.rows else header.closed_ns,
        "watermark_ns": header.watermark_ns,
        "sent_ns": header.closed_ns,
    }
    if topic in (Topic.STEP, Topic.COLLECTIVE, Topic.PROGRESS):
        envelope["process_start_ns"] = identity.start_ns
    if topic is Topic.COLLECTIVE:
        envelope["communicator"] = header.communicator
    if topic in (Topic.STEP, Topic.COLLECTIVE):
        envelope["complete_step"] = header.complete_step
        envelope["source"] = NCCL if identity.source == NCCL else CUPTI
    if topic is Topic.STEP:
        envelope["steps_from"] = header.steps_from
    if topic is Topic.DEVICE:
        envelope["gpu_index"] = identity.gpu_index
    columns: dict[str, Array] = {}
    for column in model(topic).columns if rows else ():
        assert rows is not None
        values = rows[column.name].astype(column.dtype, copy=False)
        if column.dictionary:
            values, texts = compact_dictionary(values, rows.dictionaries[column.dictionary])
            length = bounds(topic)[column.dictionary].length
            envelope[column.dictionary] = [cut(text, length) for text in texts]
        columns[column.name] = values
    return Batch(topic, envelope, columns)


def time_column(topic: Topic) -> str:
    """Return the name of the column that holds the time of a row."""
    return TIME_COLUMN.get(topic, "start_ns")
