"""Encode all parts of merged records at once, to the bytes that were merged: a column costs once, not once a part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby, pairwise

import numpy as np

from drumline.schemas.batch import encode, max_rows
from drumline.schemas.columns import Array, Column
from drumline.schemas.confluent import avro_length, header
from drumline.schemas.envelope import LIMITS
from drumline.schemas.errors import BadEnvelope, Unencodable
from drumline.schemas.parts.merged import NUMBERS, SHARED
from drumline.schemas.parts.table import MergedTable
from drumline.schemas.record_table import Ints

_LISTS = "array<string>"
#: Bits before each byte of a number, 7 in each of 10; the least numbers that need a second one, a third one, ...
_SHIFTS = np.arange(0, 70, 7, dtype=np.uint64)
_LEAST = np.uint64(1) << _SHIFTS[1:]


def part_values(of: MergedTable, id: int) -> list[bytes]:
    """Return the Kafka value of each part: the wire format's header with the schema's id, and the Avro body.

    Raises BadRecord for parts that no producer can have encoded.
    """
    frame = header(id)
    of.check_widths()
    try:
        return encoded(of, frame) or [encode(of.writer, of.written(part), frame) for part in range(of.parts)]
    except Unencodable as error:
        raise BadEnvelope(f"a part of it: {error}", topic=of.topic) from None


def encoded(of: MergedTable, frame: bytes) -> list[bytes] | None:
    """Return the value of each part: `frame` and the Avro body, byte by byte as `batch.encode` returns it.

    None where that may raise: it names the field. Call `check_widths` before. Raises BadEnvelope for a text that is no
    list.
    """
    if not _are_encodable(of):
        return None
    chunks, values = [[frame] * of.parts], _differences(of)
    places = [(name, of.layout.columns.get(name)) for name in of.writer.fields]
    for dtype, run in groupby(places, lambda place: _stored_as(place[1])):
        names = [name for name, _ in run]
        if dtype is None:
            chunks += _fields(of, names)
        else:
            begin = of.layout.line[names[0]]
            chunks.append(_packed(values[begin : begin + len(names)], dtype, of.counts))
    return list(map(b"".join, zip(*chunks, strict=True)))


def _are_encodable(of: MergedTable) -> bool:
    kinds = of.layout.kinds
    if not {*kinds.values()} <= {*NUMBERS, "string", _LISTS}:
        return False
    for line, kind in enumerate(kinds.values()):
        if kind in NUMBERS and not LIMITS[kind][0] <= of.lowest[line] <= of.highest[line] <= LIMITS[kind][1]:
            return False
    if of.highest[of.layout.line["rows"]] > max_rows(of.writer):
        return False
    for column in (column for column in of.writer.columns if column.dictionary and of.rows):
        ends = np.repeat([len(items) for items in of.lists(column.dictionary)], of.counts)
        indices = of.values[of.layout.line[column.name]]
        if not ((indices >= 0) & (indices < ends)).all():
            return False
    return True


def _differences(of: MergedTable) -> Ints:
    """Return the values of all rows, where a column has differences those within its part, as `pack` has them."""
    delta = of.layout.delta
    if not len(delta) or not of.rows:
        return of.values
    values, has_rows = of.values.copy(), of.counts > 0
    begins = np.array(of.ends[:-1])[has_rows]
    before = np.zeros((len(delta), of.rows), np.int64)
    before[:, 1:] = of.values[delta, :-1]
    before[:, begins] = 0
    has_base = np.flatnonzero([column.base for column in of.writer.columns if column.delta])
    before[np.ix_(has_base, begins)] = of.number("base_time_ns")[has_rows]
    values[delta] -= before
    return values


def _stored_as(column: Column | None) -> str | None:
    """Return the dtype to which the 64 bits of a column's values are cut; None for a field that is no column."""
    if column is None:
        return None
    return column.dtype.str if column.dtype == np.float32 else f"<i{column.dtype.itemsize}"


def _packed(values: Ints, dtype: str, counts: Ints) -> list[bytes]:
    """Return some columns that follow each other, of each part: of each its length and its values."""
    cut: Array = values.view(np.float64) if dtype == "<f4" else values
    cut = np.ascontiguousarray(cut, dtype)
    chunks, ends = [b""] * len(counts), np.cumsum(counts)
    sizes = np.unique(counts)
    for count in sizes.tolist():
        parts = np.flatnonzero(counts == count)
        of_parts = cut if len(sizes) == 1 else cut.take((ends[parts][:, None] + np.arange(-count, 0)).ravel(), 1)
        length = np.frombuffer(avro_length(count * cut.itemsize), np.uint8)
        block = np.empty((len(parts), len(cut), len(length) + count * cut.itemsize), np.uint8)
        block[:, :, : len(length)] = length
        of_parts = of_parts.view(np.uint8).reshape(len(cut), len(parts), count * cut.itemsize)
        block[:, :, len(length) :] = of_parts.transpose(1, 0, 2)
        for part, chunk in zip(parts.tolist(), _pieces(block.tobytes(), [block[0].nbytes] * len(parts)), strict=True):
            chunks[part] = chunk
    return chunks


def _fields(of: MergedTable, names: Iterable[str]) -> list[list[bytes]]:
    """Return some fields, of each part."""
    fields, kinds, texts = list(names), of.layout.kinds, dict[tuple[int, bool], bytes]()
    numbers = [of.layout.line[name] for name in fields if kinds.get(name) in NUMBERS]
    equal = [line for line in numbers if of.lowest[line] == of.highest[line]]
    other = [line for line in numbers if of.lowest[line] < of.highest[line]]
    of_numbers = dict(zip(other, _numbers(of.fields[other]), strict=True))
    of_numbers |= {line: chunk * of.parts for line, chunk in zip(equal, _numbers(of.fields[equal, :1]), strict=True)}
    chunks = list[list[bytes]]()
    for name in fields:
        if name in SHARED:
            chunks.append([_text(of.job if name == "job" else of.run)] * of.parts)
        elif kinds[name] in NUMBERS:
            chunks.append(of_numbers[of.layout.line[name]])
        else:
            is_list, of_parts = kinds[name] == _LISTS, of.fields[of.layout.line[name]].tolist()
            for index in set(of_parts):
                if (index, is_list) not in texts:
                    texts[index, is_list] = _list(of.list_of(index)) if is_list else _text(of.texts[index])
            chunks.append([texts[index, is_list] for index in of_parts])
    return chunks


def _numbers(values: Ints) -> list[list[bytes]]:
    """Return each line's values as Avro numbers: zigzag, then LEB128."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)[..., None]
    lengths = 1 + (zigzag >= _LEAST).sum(-1)
    septets = ((zigzag >> _SHIFTS) & np.uint64(0x7F)).astype(np.uint8)
    at = np.arange(len(_SHIFTS))
    septets[at < lengths[..., None] - 1] |= 0x80
    pieces = _pieces(septets[at < lengths[..., None]].tobytes(), lengths.ravel().tolist())
    return [pieces[begin : begin + values.shape[1]] for begin in range(0, values.size, values.shape[1])]


def _pieces(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    return [data[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]


def _text(text: str) -> bytes:
    data = text.encode()
    return avro_length(len(data)) + data


def _list(items: Sequence[str]) -> bytes:
    """Return an array of texts: the number of its items, the items, and the end."""
    return b"".join([avro_length(len(items)), *map(_text, items), b"\0"]) if items else b"\0"
