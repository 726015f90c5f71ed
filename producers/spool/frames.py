"""Binary format of a spool segment: a magic number and frames.

A segment is SEGMENT_MAGIC, then frames. A frame is HEADER, topic, key, body. Numbers are little-endian.

DATA  one batch: `body` is its Avro body without the schema id, `rows` their number
LOSS  evicted batches of one topic and key: `body` is the envelope of the last one (see `envelope_end`), `rows` the rows
      lost with them, `batches` the number of their consecutive sequence numbers
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from drumline.schemas.model import ENVELOPE

SEGMENT_MAGIC = b"DRUMSPL1"
FRAME_MAGIC = b"DRF1"
#: magic, kind, bytes of topic, bytes of key, rows, batches, bytes of body, CRC-32 of all the rest of the frame.
HEADER = struct.Struct("<4sBBHQIII")
_CRC = struct.Struct("<I")
DATA, LOSS = 0, 1
#: Longer bodies are not written, and read as damage. Kafka's limit for a record is 1 MB.
MAX_BODY = 8 << 20


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

    Bytes that are no frame are skipped up to the next frame. `complete`: nothing will follow, so an incomplete frame is
    damage (its writer was killed).
    """
    at = 0
    while at < len(data):
        frame = _frame(data, at)
        if isinstance(frame, Frame):
            yield frame
            at = frame.end
        elif frame is None and not complete:
            return
        else:
            after = data.find(FRAME_MAGIC, at + 1)
            while after >= 0 and not isinstance(_frame(data, after), Frame):
                after = data.find(FRAME_MAGIC, after + 1)
            if after < 0 and not complete:
                return  # a good frame may still come
            end = after if after >= 0 else len(data)
            yield Damage(end - at, end)
            at = end


def _frame(data: bytes, at: int) -> Frame | bool | None:
    """Return the frame at `at`, None if its end is missing, False if there is none."""
    if not data.startswith(FRAME_MAGIC[: len(data) - at], at):
        return False
    if len(data) - at < HEADER.size:
        return None
    _, kind, topic_size, key_size, rows, batches, size, crc = HEADER.unpack_from(data, at)
    if kind > LOSS or size > MAX_BODY:
        return False
    names = at + HEADER.size
    body = names + topic_size + key_size
    end = body + size
    if end > len(data):
        return None
    view = memoryview(data)
    before = zlib.crc32(view[names:body], zlib.crc32(view[at : names - _CRC.size]))
    if zlib.crc32(view[body:end], before) != crc:
        return False
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
