"""Segments that no writer of drumline leaves: their claims cost no time beyond their size, and all of it is counted."""

import zlib

import pytest
from support.labs.spool import KERNEL, body

from drumline.producers.spool import segment_format as frames
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.segment_format import DATA, HEADER, LOSS, SEGMENT_MAGIC, Damage, Frame, head, scan

GOOD = head(DATA, KERNEL, "k", 10, 1, body(1)) + body(1)


def claims(size, step=HEADER.size):
    """Headers, one every `step` bytes, each of a frame that reaches to the end, with a wrong checksum."""
    pieces = (
        HEADER.pack(b"DRF1", DATA, 0, 0, 1, 1, min(size - at - HEADER.size, 8 << 20), 0)[:step]
        for at in range(0, size - HEADER.size, step)
    )
    return b"".join(pieces)


@pytest.mark.parametrize(
    "written",
    [lambda: claims(1 << 18), lambda: claims(1 << 20, 4), lambda: b"DRF1" * (1 << 18)],
    ids=["28", "4", "magic"],
)
@pytest.mark.parametrize("complete", [False, True])
def test_frames_that_each_claim_the_rest_are_checked_in_linear_time(monkeypatch, written, complete):
    data, checked = written(), 0

    def crc32(part, before=0):
        nonlocal checked
        checked += len(part)
        return zlib.crc32(part, before)

    checks, check = 0, frames._frame

    def frame(*arguments):
        nonlocal checks
        checks += 1
        return check(*arguments)

    monkeypatch.setattr(frames, "zlib", type("counted", (), {"crc32": staticmethod(crc32)}))
    monkeypatch.setattr(frames, "_frame", frame)
    damage = [item.bytes for item in scan(data, complete)]
    assert sum(damage) >= len(data) - HEADER.size - (1 << 20) * (not complete)
    assert checked <= 5 * (1 << 20)
    assert checks <= 5 << 10


def test_a_good_frame_behind_a_few_bad_ones_is_found():
    bad = bytearray(GOOD)
    bad[-1] ^= 1
    items = list(scan(bytes(bad) * 3 + GOOD))
    assert [type(item) for item in items] == [Damage, Frame]
    assert items[0].bytes == 3 * len(GOOD)


def test_bytes_that_are_no_frame_are_damage_at_once_and_the_frame_behind_them_is_read(tmp_path):
    (tmp_path / "000000000000.taken").write_bytes(SEGMENT_MAGIC)
    with (tmp_path / "000000000000.taken").open("r+b") as file:
        file.truncate(32 << 20)
        file.seek(0, 2)
        file.write(GOOD[:3])
        segment, read = Segment(SpoolDirectory(tmp_path), "000000000000.taken"), []
        while items := segment.read(complete=False):
            read += items
        file.write(GOOD[3:])
        file.flush()
        read += segment.read(complete=True)
    assert sum(item.bytes for item in read[:-1]) == (32 << 20) - len(SEGMENT_MAGIC)
    assert isinstance(read[-1], Frame)
    segment.close()


@pytest.mark.parametrize(("kind", "rows", "batches"), [(DATA, 1, 0), (DATA, 1, 2), (LOSS, 1, 0), (LOSS, 2**64 - 1, 1)])
def test_counts_that_no_writer_writes_are_damage(kind, rows, batches):
    whole = head(kind, KERNEL, "k", rows, batches, body(1)) + body(1)
    assert [item.bytes for item in scan(whole + GOOD) if isinstance(item, Damage)] == [len(whole)]
    most = head(LOSS, KERNEL, "k", 1 << 53, 1, body(1)) + body(1)
    assert isinstance(next(scan(most)), Frame)
