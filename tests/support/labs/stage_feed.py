"""Batches of a job as the straggler stage sees them."""

from __future__ import annotations

from drumline.streams.offline import latest


def seen(published):
    out = {}
    for where, batch in latest(published).items():
        envelope = {
            k: v for k, v in batch.envelope.items() if not k.endswith("_ns") and k not in ("revision", "sequence")
        }
        out[where] = (envelope, {name: column.tolist() for name, column in batch.columns.items()})
    return out
