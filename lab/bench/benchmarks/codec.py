"""Measures packed batches beside Avro arrays and one record per message; one core, no broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import cramjam
import fastavro
import numpy as np

from drumline.lab.bench.data import kernel_batches
from drumline.lab.bench.result import BenchReport, Progress
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.model import RecordModel, model
from drumline.schemas.tenants import KEY_BYTES, signed_headers
from drumline.schemas.topics import Topic

ROWS = 4_096
TARGET = 10e6
#: The design's limit of the CPU time that the bounds add to decoding, as a multiple of decoding without them.
BOUNDS_TARGET = 1.10
#: Times that decoding is measured without and with bounds, in turns. The result is the median of the turns' ratios:
#: what else the machine does changes from turn to turn, and disturbs both halves of one alike.
ROUNDS = 75


def avro_type(dtype: np.dtype[Any]) -> str:
    """Return the smallest Avro number that holds a dtype (u8 as long: recorded values fit)."""
    if dtype.kind == "f":
        return "float" if dtype.itemsize == 4 else "double"
    return "int" if dtype.itemsize < 4 or dtype == np.dtype("<i4") else "long"


def _other_fields(spec: RecordModel) -> list[dict[str, Any]]:
    names = {column.name for column in spec.columns}
    bare = ("name", "type")
    return [{key: field[key] for key in bare} for field in spec.parsed["fields"] if field["name"] not in names]


def array_schema(spec: RecordModel) -> Any:
    """Return the schema of the record with each column as an Avro array of numbers."""
    columns = [{"name": c.name, "type": {"type": "array", "items": avro_type(c.dtype)}} for c in spec.columns]
    return fastavro.parse_schema({"type": "record", "name": "arrays", "fields": [*_other_fields(spec), *columns]})


def row_schema(spec: RecordModel) -> Any:
    """Return the schema of one kernel with the identity of its process; dictionary columns are text."""
    identity = [f for f in _other_fields(spec) if f["name"] not in spec.dictionaries]
    columns = [{"name": c.name, "type": "string" if c.dictionary else avro_type(c.dtype)} for c in spec.columns]
    return fastavro.parse_schema({"type": "record", "name": "row", "fields": [*identity, *columns]})


def write(schema: Any, record: Any) -> bytes:
    """Encode one record without a schema header."""
    out = BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def rows_of(batch: Batch, spec: RecordModel) -> list[dict[str, Any]]:
    """Return the batch as one dict a row."""
    shared = {name: value for name, value in batch.envelope.items() if name not in spec.dictionaries}
    shared = {**spec.defaults, **shared}
    columns = {
        c.name: (batch.strings(c.name, c.dictionary) if c.dictionary else batch.columns[c.name]).tolist()
        for c in spec.columns
    }
    return [{**shared, **dict(zip(columns, values, strict=True))} for values in zip(*columns.values(), strict=True)]


def rate(work: Callable[[Any], object], inputs: Sequence[Any], rows: int, seconds: float) -> float:
    """Return rows per CPU second of this thread: `work` runs over the inputs for at least `seconds` of CPU."""
    work(inputs[0])
    began, done = time.thread_time(), 0
    while True:
        for item in inputs:
            work(item)
            done += 1
            if (spent := time.thread_time() - began) >= seconds:
                return done * rows / spent


def _zstd(data: bytes) -> int:
    """Return the size as producers send it: zstd, level 3."""
    return len(cramjam.zstd.compress(data, 3))


def bench_codec(
    folder: Path, seconds: float = 3.0, rows: int = ROWS, progress: Progress = lambda _: None
) -> BenchReport:
    """Measure encoding and decoding per CPU second. Batches and arrays decode to numpy columns, single records to
    dicts.
    """
    report = BenchReport(
        "codec",
        f"recorded kernels, {rows:,} a batch",
        "each column an Avro array; one Avro record a message (single records)",
    )
    spec, codec = model(Topic.KERNEL), Codec()
    batches = kernel_batches(folder, rows)
    arrays, single = array_schema(spec), row_schema(spec)
    defaults = spec.defaults

    def packed_values() -> list[bytes]:
        return [codec.encode(batch) for batch in batches]

    def encode_arrays(batch: Batch) -> bytes:
        columns = {name: values.tolist() for name, values in batch.columns.items()}
        return write(arrays, {**defaults, **batch.envelope, **columns})

    def decode_arrays(value: bytes) -> dict[str, Any]:
        record: Any = fastavro.schemaless_reader(BytesIO(value), arrays, None)
        return {c.name: np.array(record[c.name], dtype=c.dtype) for c in spec.columns}

    def encode_rows(batch: list[dict[str, Any]]) -> list[bytes]:
        return [write(single, row) for row in batch]

    def decode_rows(values: list[bytes]) -> list[Any]:
        return [fastavro.schemaless_reader(BytesIO(value), single, None) for value in values]

    progress("packed batches")
    packed = packed_values()
    encode = rate(codec.encode, batches, rows, seconds)
    decode = rate(lambda value: codec.decode(Topic.KERNEL, value), packed, rows, seconds)
    progress("decoding with and without bounds")
    unbounded, bounded, ratio = _decode_rates(codec, batches, packed, rows, seconds)
    progress("Avro arrays")
    in_arrays = [encode_arrays(batch) for batch in batches[:8]]
    encode_a, decode_a = (
        rate(f, x, rows, seconds) for f, x in ((encode_arrays, batches[:8]), (decode_arrays, in_arrays))
    )
    progress("one record a message")
    in_rows = [rows_of(batch, spec) for batch in batches[:2]]
    messages = [encode_rows(batch) for batch in in_rows]
    encode_r, decode_r = (rate(f, x, rows, seconds) for f, x in ((encode_rows, in_rows), (decode_rows, messages)))
    for name, packed_rate, array_rate, row_rate in (
        ("encode", encode, encode_a, encode_r),
        ("decode", decode, decode_a, decode_r),
    ):
        report.add(f"{name}, Avro arrays", packed_rate, "rows/CPU s", array_rate, target=TARGET)
        report.add(f"{name}, single records", packed_rate, "rows/CPU s", row_rate)
        report.add(f"{name}: CPU per million rows", 1e6 / packed_rate, "s", 1e6 / row_rate)
    report.add("decode with bounds: CPU per million rows", 1e6 / bounded, "s", 1e6 / unbounded)
    report.add("decode with bounds, of without", ratio, "x", target=BOUNDS_TARGET, at_most=True)
    _add_sizes(report, rows, packed[0], in_arrays[0], b"".join(messages[0]))
    report.notes.append(
        "Baselines are fastavro with numpy's tolist() and array(). One record a message is given its best case: all "
        "rows compressed together, no Kafka framing."
    )
    report.notes.append(
        f"Decoding with bounds has a key, headers and the time at which Kafka took the record in, as sinks and workers "
        f"give them; its baseline is `bounded=False`. Medians of {ROUNDS} turns, of the ratio too."
    )
    return report


def _decode_rates(
    codec: Codec, batches: Sequence[Batch], packed: Sequence[bytes], rows: int, seconds: float
) -> tuple[float, float, float]:
    """Return rows per CPU second without and with bounds, measured in turns, and the ratio of the CPU time."""
    key = str(batches[0].envelope["process_id"]).encode()
    headers = signed_headers("tenant", bytes(KEY_BYTES), Topic.KERNEL, key, packed[0])
    appended_ms = batches[-1].envelope["base_time_ns"] // 1_000_000

    def decode(value: bytes, bounded: bool) -> Batch:
        return codec.decode(Topic.KERNEL, value, appended_ms, bounded=bounded, key=key, headers=headers)

    works = [partial(decode, bounded=bounded) for bounded in (False, True)]
    measured = []
    for iteration in range(ROUNDS):  # the order changes, so that neither half is always the later one
        order = (0, 1) if iteration % 2 else (1, 0)
        rates_of = {half: rate(works[half], packed, rows, seconds / ROUNDS) for half in order}
        measured.append((rates_of[0], rates_of[1]))
    without, bounded_rate = (float(np.median(rates)) for rates in zip(*measured, strict=True))
    return without, bounded_rate, float(np.median([before / after for before, after in measured]))


def _add_sizes(report: BenchReport, rows: int, packed_value: bytes, array_value: bytes, row_values: bytes) -> None:
    report.add("bytes a row, Avro arrays", len(packed_value) / rows, "B", len(array_value) / rows)
    report.add("bytes a row, single records", len(packed_value) / rows, "B", len(row_values) / rows)
    report.add("zstd bytes a row, Avro arrays", _zstd(packed_value) / rows, "B", _zstd(array_value) / rows)
    report.add("zstd bytes a row, single records", _zstd(packed_value) / rows, "B", _zstd(row_values) / rows)
