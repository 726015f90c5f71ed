"""What a spool segment holds, byte by byte: frames. Pure: bytes in, bytes out.

A segment is SEGMENT_MAGIC, then frames. A frame is HEADER, topic, key, body. Numbers are little-endian.

DATA  one batch: `body` is its Avro body without the schema id, `rows` what it holds
LOSS  batches of one topic and key that were thrown away: `body` is the envelope of the last of them (see
      `envelope_end`), `rows` the rows lost with them, `batches` how many consecutive sequence numbers they had
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
#: Longer ones are not written, and read as damage. Kafka's limit for a record of ours is 1 MB.
MAX_BODY = 8 << 20


class Frame(NamedTuple):
    """`end`: where the next frame begins, in the bytes that were scanned."""

    kind: int
    topic: str
    key: str
    rows: int
    batches: int
    body: bytes
    end: int


class Damage(NamedTuple):
    """`bytes` that are no frame, up to `end`."""

    bytes: int
    end: int


@dataclass(slots=True)
class Loss:
    """Batches of one topic and key that were thrown away, as one run: sequences `last` - `batches` + 1 .. `last`.
    `envelope`: of the last one. `rows`: theirs, and those that had been dropped before them."""

    batches: int
    rows: int
    envelope: bytes

    def add(self, later: Loss) -> None:
        self.batches += later.batches
        self.rows += later.rows
        self.envelope = later.envelope


#: (topic, key) -> loss, in order of the first one.
Losses = dict[tuple[str, str], Loss]


def add_losses(into: Losses, later: Losses) -> None:
    """Put `later` behind `into`, key by key."""
    for key, loss in later.items():
        if key in into:
            into[key].add(loss)
        else:
            into[key] = Loss(loss.batches, loss.rows, loss.envelope)


def head(kind: int, topic: str = "", key: str = "", rows: int = 0, batches: int = 0, body: bytes = b"") -> bytes:
    """Everything of a frame but its body. Raises struct.error or ValueError where something is too long."""
    names = topic.encode() + key.encode()
    if len(body) > MAX_BODY:
        raise ValueError(f"a body of {len(body)} bytes, at most {MAX_BODY}")
    lengths = (len(topic.encode()), len(key.encode()), rows, batches, len(body))
    bare = HEADER.pack(FRAME_MAGIC, kind, *lengths, 0)[: -_CRC.size] + names
    return bare[: HEADER.size - _CRC.size] + _CRC.pack(zlib.crc32(body, zlib.crc32(bare))) + names


def loss_frames(losses: Losses) -> bytes:
    """LOSS frames, ready to be written."""
    return b"".join(
        head(LOSS, topic, key, loss.rows, loss.batches, loss.envelope) + loss.envelope
        for (topic, key), loss in losses.items()
    )


def scan(data: bytes, complete: bool = False) -> Iterator[Frame | Damage]:
    """Frames at the beginning of `data`, which starts where a frame does. Ends before one that is not all there.

    `complete`: nothing will follow, so what is left over is damage (a process was killed while it wrote). Bytes that
    are no frame are skipped up to the next that is one.
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
                return  # a good one may still come
            end = after if after >= 0 else len(data)
            yield Damage(end - at, end)
            at = end


def _frame(data: bytes, at: int) -> Frame | bool | None:
    """The frame at `at`; None if its end is not there yet, False if it is none."""
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
    """(where the fields end that every record starts with, `dropped_before`). Raises IndexError on a body too short."""
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
    """One batch as a loss. Raises IndexError where `body` is no batch."""
    end, dropped = envelope_end(body)
    return {(topic, key): Loss(1, rows + dropped, bytes(body[:end]))}
