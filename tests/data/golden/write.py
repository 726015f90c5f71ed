"""Write what is missing here: the bytes of one record per released schema version, beside what they must decode to.

`python tests/data/golden/write.py [--amend]`, after `python -m drumline.schemas.release --add` (`--amend`). Files
that are here stay as they are for ever; --amend rewrites the newest version of each topic, for schemas that were
never merged. The worked example in docs/reference/record-format.md is written too.
"""

from __future__ import annotations

import json
import sys
import zlib
from io import BytesIO
from pathlib import Path

import fastavro
import numpy as np

from drumline.schemas.batch import Batch, encode
from drumline.schemas.columns import fit, pack
from drumline.schemas.confluent import avro_length, header
from drumline.schemas.envelope import checked
from drumline.schemas.model import AVRO, RecordModel, model, parse_model
from drumline.schemas.registry import lock_file_registry

FOLDER = Path(__file__).parent
FORMATS = FOLDER.parents[2] / "docs" / "reference" / "record-format.md"
BEGIN, END = "<!-- example: written by tests/data/golden/write.py -->\n", "<!-- end of example -->\n"
EXAMPLE_TOPIC = "gpu.collective.v1"
ROWS = 5


def versions() -> list[tuple[str, dict]]:
    lock = json.loads((AVRO / "lock.json").read_text())
    return [(topic, version) for topic, released in lock.items() for version in released]


def released(topic: str, version: dict) -> RecordModel:
    return parse_model(topic, (AVRO / version["file"]).read_text())


def sample(record: RecordModel) -> Batch:
    """A batch with the limits of every dtype in it; the same for the same schema."""
    rng = np.random.default_rng(zlib.crc32(record.topic.encode()))
    sample_values = {"string": "é{}", "int": 7, "long": 1 << 40, "double": 0.5, "boolean": True}
    envelope: dict = {}
    for number, (name, kind) in enumerate(record.envelope.items()):
        inner = kind.split("<")[-1].rstrip(">")
        value = (
            sample_values[inner].format(name)
            if inner == "string"
            else sample_values[inner] + number * (inner in ("int", "long"))
        )
        envelope[name] = (
            [value, value] if kind.startswith("array") else {"k": value} if kind.startswith("map") else value
        )
    envelope |= {name: ["", "ß", "x" * 100] for name in record.dictionaries}
    envelope["rows"] = ROWS if record.columns else 1
    columns = {}
    for column in record.columns:
        if column.dictionary:
            columns[column.name] = rng.integers(0, 3, ROWS).astype(column.dtype)
        elif column.dtype.kind == "f":
            columns[column.name] = np.array([0.0, -1.5, 1e300, 5e-324, 0.1]).astype(column.dtype)
        else:
            low, high = np.iinfo(column.dtype).min, np.iinfo(column.dtype).max
            rest = rng.integers(low, high, ROWS - 2, dtype=column.dtype)
            columns[column.name] = np.concatenate([np.array([low, high], column.dtype), rest])
    return Batch(record.topic, envelope, columns)


def example() -> tuple[Batch, bytes]:
    """The record of docs/reference/record-format.md."""
    base = 1_763_000_000_000_000_000
    envelope = {
        "job": "demo",
        "run": "r1",
        "rank": 1,
        "rows": 2,
        "base_time_ns": base,
        "communicator": "00c0ffee00c0ffee",
        "operations": ["AllReduce"],
    }
    columns = {
        "bytes": [4096, 8192],
        "step": [7, 8],
        "start_ns": [base + 1000, base + 66000],
        "duration_ns": [250, 300],
        "covered_ns": [0, 120],
    }
    batch = Batch(EXAMPLE_TOPIC, envelope, {name: np.array(values) for name, values in columns.items()})
    return batch, encode(model(EXAMPLE_TOPIC), batch, header(lock_file_registry().id_of(EXAMPLE_TOPIC)))


def render() -> str:
    """The example as a table: the bytes of each field. Put together field by field, not by the product's `encode`."""
    batch, value = example()
    record = model(EXAMPLE_TOPIC)
    full = checked(record, batch.envelope)
    columns = {column.name: column for column in record.columns}
    lines = [
        "| field | bytes (hex) | value |",
        "|---|---|---|",
        f"| (frame) | `{value[:5].hex(' ')}` | id {value[4]} |",
    ]
    whole = value[:5]
    for field in json.loads(record.text)["fields"]:
        name = field["name"]
        if name in columns:
            column = columns[name]
            values = fit(column, batch.columns.get(name, np.zeros(batch.rows, column.dtype)), "")
            data = pack(column, values, full["base_time_ns"]).tobytes()
            part, shown = avro_length(len(data)) + data, values.tolist()
        else:
            out = BytesIO()
            fastavro.schemaless_writer(out, {"type": "record", "name": "P", "fields": [field]}, {name: full[name]})
            part, shown = out.getvalue(), json.dumps(full[name])
        whole += part
        lines.append(f"| {name} | `{part.hex(' ')}` | {shown} |")
    assert whole == value
    return "\n".join([*lines, "", "All of it:", "", "```hex", *_folded(value.hex()), "```", ""])


def _folded(text: str) -> list[str]:
    return [text[start : start + 96] for start in range(0, len(text), 96)]


def main(amend: bool) -> None:
    newest = dict(versions())
    for topic, version in versions():
        stem = FOLDER / f"{topic}.{version['version']}"
        if stem.with_name(stem.name + ".bin").exists() and not (amend and newest[topic] == version):
            continue
        record = released(topic, version)
        batch = sample(record)
        stem.with_name(stem.name + ".bin").write_bytes(encode(record, batch, header(version["id"])))
        columns = {name: values.tolist() for name, values in batch.columns.items()}
        expected = {"schema": version["sha256"], "envelope": batch.envelope, "columns": columns}
        stem.with_name(stem.name + ".json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
    text = FORMATS.read_text()
    FORMATS.write_text(text[: text.index(BEGIN) + len(BEGIN)] + "\n" + render() + text[text.index(END) :])


if __name__ == "__main__":
    main("--amend" in sys.argv[1:])
