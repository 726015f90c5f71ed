"""Binary format of a spool segment: a magic number and frames.

A segment is SEGMENT_MAGIC, then frames. A frame is HEADER, topic, key, body. Numbers are little-endian.

DATA  one batch: `body` is its Avro body without the schema id, `rows` their number
KEPT  a batch whose rows stay on the host: it publishes windows of them, and the rows when they are asked for
PULLED  a KEPT batch that was asked for
LOSS  evicted batches of one topic and key: `body` is the envelope of the last one (see `envelope_end`), `rows` the rows
      lost with them, `batches` the number of their consecutive sequence numbers
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from drumline.schemas.envelope import ENVELOPE

SEGMENT_MAGIC = b"DRUMSPL1"
FRAME_MAGIC = b"DRF1"
#: magic, kind, bytes of topic, bytes of key, rows, batches, bytes of body, CRC-32 of all the rest of the frame.
HEADER = struct.Struct("<4sBBHQIII")
_CRC = struct.Struct("<I")
DATA, LOSS, KEPT, PULLED = range(4)
#: Longer bodies are not written, and read as damage: Kafka's limit for a record (schemas/topics.py).
MAX_BODY = 1 << 20
#: More rows are read as damage: counts of them stay exact, also as Avro longs.
MAX_ROWS = 1 << 53
#: Bytes that failed checks of one scan may cost, in multiples of what is scanned; what a check costs beside its bytes;
#: and the least to scan. So frames that each claim the rest of a segment cost no quadratic time.
SCAN_WORK, CHECK_BYTES, LEAST_SCAN = 4, 1_024, 1 << 20


class Frame(NamedTuple):
    """A decoded frame. `end`: offset of the next frame in the scanned bytes."""

    kind: int
    topic: str
    key: str
    rows: int
    batches: int
    body: bytes
    end: int


class Damage(NamedTuple):
    """Bytes that are no frame. `bytes`: their number. `end`: offset behind them."""

    bytes: int
    end: int


@dataclass(slots=True)
class Loss:
    """Counts evicted batches of one topic and key: sequences `last` - `batches` + 1 .. `last`.

    `envelope`: of the last batch. `rows`: of the batches, and those dropped before them.
    """

    batches: int
    rows: int
    envelope: bytes

    def add(self, later: Loss) -> None:
        """Append the loss of the batches that follow."""
        self.batches += later.batches
        self.rows += later.rows
        self.envelope = later.envelope


#: (topic, key) -> loss, in order of the first one.
Losses = dict[tuple[str, str], Loss]


def add_losses(into: Losses, later: Losses) -> None:
    """Append `later` to `into`, key by key."""
    for key, loss in later.items():
        if key in into:
            into[key].add(loss)
        else:
            into[key] = Loss(loss.batches, loss.rows, loss.envelope)


def head(kind: int, topic: str = "", key: str = "", rows: int = 0, batches: int = 0, body: bytes = b"") -> bytes:
    """Return a frame without its body. Raises struct.error or ValueError for a part that is too long."""
    names = topic.encode() + key.encode()
    if len(body) > MAX_BODY:
        raise ValueError(f"a body of {len(body)} bytes, at most {MAX_BODY}")
    lengths = (len(topic.encode()), len(key.encode()), rows, batches, len(body))
    bare = HEADER.pack(FRAME_MAGIC, kind, *lengths, 0)[: -_CRC.size] + names
    return bare[: HEADER.size - _CRC.size] + _CRC.pack(zlib.crc32(body, zlib.crc32(bare))) + names


def loss_frames(losses: Losses) -> bytes:
    """Return the LOSS frames of some losses."""
    return b"".join(
        head(LOSS, topic, key, loss.rows, loss.batches, loss.envelope) + loss.envelope
        for (topic, key), loss in losses.items()
    )


def scan(data: bytes, complete: bool = False) -> Iterator[Frame | Damage]:
    """Yield the frames of `data`, which begins with one. Stops before a frame that is incomplete.

    Bytes that are no frame are skipped up to the next one, or to the end where failed checks cost too much. `complete`:
    nothing will follow, so an incomplete frame is damage (its writer was killed).
    """
    at, work = 0, SCAN_WORK * max(len(data), LEAST_SCAN)
    while at < len(data):
        frame, end = _frame(data, at), at
        while not isinstance(frame, Frame):
            if frame is None and not complete:
                break  # the rest of it may still come
            work -= CHECK_BYTES + (frame or 0)
            if (after := data.find(FRAME_MAGIC, end + 1) if work > 0 else -1) < 0:
                end = len(data) if complete or work <= 0 else max(at, len(data) - _begun(data))
                break
            frame, end = _frame(data, after), after
        if end > at:
            yield Damage(end - at, end)
        if not isinstance(frame, Frame):
            return
        yield frame
        at = frame.end


def _begun(data: bytes) -> int:
    """Return how many of the last bytes may be the beginning of the next frame's magic number."""
    return next(size for size in range(len(FRAME_MAGIC) - 1, -1, -1) if data.endswith(FRAME_MAGIC[:size]))


def _frame(data: bytes, at: int) -> Frame | int | None:
    """Return the frame at `at`, None if its end is missing, or the number of bytes checked if there is none."""
    if not data.startswith(FRAME_MAGIC[: len(data) - at], at):
        return 0
    if len(data) - at < HEADER.size:
        return None
    _, kind, topic_size, key_size, rows, batches, size, crc = HEADER.unpack_from(data, at)
    if kind > PULLED or size > MAX_BODY or rows > MAX_ROWS or not batches or (kind != LOSS and batches > 1):
        return 0
    names = at + HEADER.size
    body = names + topic_size + key_size
    end = body + size
    if end > len(data):
        return None
    view = memoryview(data)
    before = zlib.crc32(view[names:body], zlib.crc32(view[at : names - _CRC.size]))
    if zlib.crc32(view[body:end], before) != crc:
        return int(end - at)
    topic, key = data[names : names + topic_size], data[names + topic_size : body]
    return Frame(kind, topic.decode(errors="replace"), key.decode(errors="replace"), rows, batches, data[body:end], end)


def _long(data: bytes, at: int) -> tuple[int, int]:
    """An Avro int or long at `at`, and where it ends (Avro 1.12, "Binary encoding": zigzag, 7 bits a byte)."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def envelope_end(body: bytes) -> tuple[int, int]:
    """Return the end of the envelope in an Avro body, and its `dropped_before`. Raises IndexError if too short."""
    at = dropped = 0
    for name, kind in ENVELOPE.items():
        number, at = _long(body, at)
        if kind == "string":
            at += number
        elif name == "dropped_before":
            dropped = number
    if at > len(body):
        raise IndexError("an envelope cut short")
    return at, dropped


def lost(topic: str, key: str, rows: int, body: bytes) -> Losses:
    """Return one batch as a loss. Raises IndexError if `body` is no batch."""
    end, dropped = envelope_end(body)
    return {(topic, key): Loss(1, rows + dropped, bytes(body[:end]))}
