"""Define the header that fences stream workers: the epoch of a record's writer, and the state that it wrote from.

A worker gets a new, higher epoch with every partition that it is assigned: the broker's time in ms, or one more than
the last one. One that was halted while its partitions moved continues with its old epoch, so readers can ignore what it
writes behind its successor. The header is data: records of all versions share it.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

from drumline.schemas.bounds.limits import AHEAD_NS
from drumline.schemas.dead_letters import HEADER_PREFIX, Header

#: Value: `EPOCH`, and in results ` SOURCE` behind it: the changelog partition that only one worker may write.
EPOCH_HEADER = f"{HEADER_PREFIX}epoch"
#: Epochs fit into an Int64 of the ledger.
MAX_EPOCH = (1 << 63) - 1
#: Characters of a source; the name of a topic in Kafka has at most 249.
MAX_SOURCE = 300


def write_epoch(epoch: int, source: str = "") -> Header:
    """Return the header of an epoch."""
    return EPOCH_HEADER, f"{epoch} {source}".rstrip().encode()


def read_epoch(headers: Iterable[Header] | None) -> tuple[int | None, str]:
    """Return (epoch, source) of a record; (None, "") without the header, or with one that drumline did not write."""
    for name, value in headers or ():
        if name == EPOCH_HEADER:
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
            number, _, source = text.partition(" ")
            written = number.isascii() and number.isdecimal() and len(number) <= len(str(MAX_EPOCH))
            if written and int(number) <= MAX_EPOCH and len(source) <= MAX_SOURCE:
                return int(number), source
    return None, ""


def is_ahead(epoch: int | None, appended_ms: float) -> bool:
    """Return True for an epoch more than a day after Kafka took its record in: no worker wrote it.

    Believed, it would fence all workers of the coming years. `appended_ms` <= 0: unknown.
    """
    return epoch is not None and 0 < appended_ms < epoch - AHEAD_NS // 1_000_000


def is_fenced(highest: MutableMapping[str, int], epoch: int | None, source: str) -> bool:
    """Return True if a result comes from a worker that had lost its partition; otherwise note its epoch in `highest`.

    `highest`: source -> highest epoch in the records before this one. Results without the header are never fenced: no
    stream worker wrote them.
    """
    if epoch is None or not source:
        return False
    if epoch < highest.get(source, 0):
        return True
    highest[source] = epoch
    return False
