"""Rows of a spool that nobody has published yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, Frame, scan
from drumline.schemas.batch import decode
from drumline.schemas.model import model


def spool_rows(root: Path, topic: str) -> list[dict[str, Any]]:
    """Rows of a topic, texts for indices, and the process's id as `process`."""
    rows, record = [], model(topic)
    for path in sorted(root.glob("*/*.seg")):
        for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :], complete=True):
            if isinstance(frame, Frame) and frame.kind == DATA and frame.topic == topic:
                batch = decode(record, frame.body)
                for at in range(batch.rows):
                    row = {
                        c.name: batch.envelope[c.dictionary][int(batch.columns[c.name][at])]
                        if c.dictionary
                        else batch.columns[c.name][at].item()
                        for c in record.columns
                    }
                    rows.append({**row, "process": batch.envelope["process_id"]})
    return rows
