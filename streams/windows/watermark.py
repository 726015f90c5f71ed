"""Event time of one process: the panes and windows of a row, late rows, and the end of a window."""

from __future__ import annotations

from drumline.schemas.batch import Batch
from drumline.streams.windows.config import Array, WindowConfig


def latest_plausible(batch: Batch, now_ns: int, config: WindowConfig) -> int:
    """Return the latest plausible start of a row in this batch.

    An activity is recorded after it began, so it cannot begin after the batch was sent, or after now where the batch
    has no time.
    """
    sent_ns = int(batch.envelope["sent_ns"])
    return (min(sent_ns, now_ns) if sent_ns > 0 else now_ns) + config.horizon_ns


def accepted(starts: Array, latest: int, watermark_ns: int, config: WindowConfig) -> Array:
    """Return bool[n]: the rows to count. The others are late (their pane is closed) or their clock is broken."""
    good = starts <= latest
    if not good.any():
        return good
    newest = int(starts[good].max())
    good &= starts >= newest - config.horizon_ns
    good &= config.pane_of(starts) + (config.hop_ns + config.grace_ns) > watermark_ns
    return good


def advanced(watermark_ns: int, batch: Batch, latest: int) -> int:
    """Return the watermark after a batch: it never falls, and never exceeds the latest plausible start."""
    return max(watermark_ns, min(int(batch.envelope["watermark_ns"]), latest))
