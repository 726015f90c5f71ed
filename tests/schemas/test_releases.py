"""Released schema versions never change, the current schemas read all of them, and the docs describe the bytes."""

import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

from drumline.schemas import release as lock
from drumline.schemas.batch import Batch, decode, encode
from drumline.schemas.codec import Codec
from drumline.schemas.envelope import ENVELOPE
from drumline.schemas.errors import REASONS, BadSchema
from drumline.schemas.model import AVRO, model, parse_model
from drumline.schemas.registry import LockFileRegistry

ROOT = Path(__file__).parents[2]
WRITE = runpy.run_path(str(ROOT / "tests/data/golden/write.py"))
FORMATS = (ROOT / "docs/reference/record-format.md").read_text()
TOPIC = "gpu.range.v1"


def test_golden_bytes_of_every_frozen_version_decode_for_ever():
    check_golden(ROOT / "tests/data/golden", AVRO)


def test_a_release_writes_golden_bytes_of_every_version_once(avro, tmp_path):
    WRITE["write_golden"](tmp_path, avro)
    assert len(list(tmp_path.glob("*.bin"))) == len(list(avro.glob("*.avsc")))
    check_golden(tmp_path, avro)
    [first, *_] = sorted(tmp_path.glob("*.bin"))
    first.write_bytes(b"kept")
    WRITE["write_golden"](tmp_path, avro)
    assert first.read_bytes() == b"kept"


def check_golden(folder, root):
    """Decode the golden bytes of all frozen versions."""
    for topic, version in WRITE["versions"](root):
        if not (root / version["file"]).exists():
            continue
        stem = folder / f"{topic}.{version['version']}"
        expected = json.loads(Path(f"{stem}.json").read_text())
        assert expected["schema"] == version["sha256"], "golden bytes of another schema; see reference/record-format.md"
        batch = Codec().decode(topic, Path(f"{stem}.bin").read_bytes(), bounded=False)
        assert {name: batch.envelope[name] for name in expected["envelope"]} == expected["envelope"]
        for name, values in expected["columns"].items():
            assert batch.columns[name].tolist() == values, name


def test_the_lock_agrees_with_the_schemas():
    assert lock.check() == []


def test_every_released_version_has_an_id_of_its_own():
    """Two changes that are made side by side may both take the next one."""
    ids = [version["id"] for _, version in WRITE["versions"]()]
    assert sorted(ids) == sorted(set(ids))


@pytest.fixture
def avro(tmp_path):
    """A copy of the schemas that a test may spoil, of which a release was made."""
    copy = Path(shutil.copytree(AVRO, tmp_path / "avro"))
    assert lock.main(["--freeze"], copy) == 0
    return copy


def edit(avro, change, file=f"{TOPIC}.avsc"):
    schema = json.loads((avro / file).read_text())
    change(schema["fields"])
    (avro / file).write_text(json.dumps(schema))


def field(fields, name):
    return next(field for field in fields if field["name"] == name)


def column(name, **kind):
    kind = {"type": "bytes", "logicalType": "drumline-column", "dtype": "<i8", "encoding": "plain", **kind}
    return {"name": name, "type": kind, "default": ""}


def test_an_edited_released_version_is_reported(avro):
    edit(avro, lambda fields: fields.pop(), f"released/{TOPIC}.1.avsc")
    assert any("restore it" in fault for fault in lock.check(avro))


def test_an_unreleased_change_is_reported_and_then_released_under_a_new_id(avro):
    before = json.loads((avro / "lock.json").read_text())
    edit(avro, lambda fields: fields.append(column("color", fill=-1)))
    assert lock.main(["--check"], avro) == 1
    assert lock.main(["--add"], avro) == 0
    assert lock.main(["--check"], avro) == 0
    after = json.loads((avro / "lock.json").read_text())
    assert after[TOPIC][: len(before[TOPIC])] == before[TOPIC]
    assert after[TOPIC][-1]["id"] > max(v["id"] for versions in before.values() for v in versions)
    assert {t: v for t, v in after.items() if t != TOPIC} == {t: v for t, v in before.items() if t != TOPIC}


def test_a_version_that_no_release_has_changes_under_its_id(avro):
    before = json.loads((avro / "lock.json").read_text())[TOPIC]
    (avro / before[-1]["file"]).unlink()
    edit(avro, lambda fields: fields.append(column("color")))
    assert lock.main(["--add"], avro) == 0
    after = json.loads((avro / "lock.json").read_text())[TOPIC]
    assert [(v["version"], v["id"]) for v in after] == [(v["version"], v["id"]) for v in before]
    assert lock.check(avro) == []
    assert lock.main(["--freeze"], avro) == 0
    assert json.loads((avro / before[-1]["file"]).read_text())["fields"][-1]["name"] == "color"


def test_a_release_with_a_schema_that_the_lock_does_not_know_is_refused(avro):
    edit(avro, lambda fields: fields.append(column("color")))
    assert lock.main(["--freeze"], avro) == 1


def test_changed_docs_need_no_version(avro):
    edit(avro, lambda fields: field(fields, "rank").update(doc="another text"))
    assert lock.check(avro) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.remove(field(fields, "depth")),
        lambda fields: field(fields, "depth")["type"].update(dtype="<u4"),
        lambda fields: field(fields, "depth")["type"].update(encoding="delta"),
        lambda fields: field(fields, "start_ns")["type"].pop("base"),
        lambda fields: field(fields, "name")["type"].update(dictionary="domains"),
        lambda fields: field(fields, "depth").update(type="int", default=0),
        lambda fields: fields.append({"name": "color", "type": "string"}),
        lambda fields: fields.append(column("color", dtype="<u4", dictionary="names")),
        lambda fields: fields.extend(
            [
                {"name": "colors", "type": {"type": "array", "items": "string"}, "default": []},
                column("color", dtype="<u4", dictionary="colors"),
            ]
        ),
    ],
)
def test_changes_that_old_records_would_not_survive_are_refused(avro, change):
    edit(avro, change)
    before = (avro / "lock.json").read_text()
    assert lock.main(["--add"], avro) == 1
    assert (avro / "lock.json").read_text() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.pop(0),
        lambda fields: fields.insert(0, fields.pop(3)),
        lambda fields: fields.append(column("color", dtype="|O")),
        lambda fields: fields.append(column("color", encoding="gzip")),
        lambda fields: fields.append(column("color", dtype="<f8", encoding="delta")),
        lambda fields: fields.append(column("color", base=True)),
        lambda fields: fields.append(column("color", dtype="<u4", dictionary="colors")),
        lambda fields: fields.append(column("color", dtype="<i4", dictionary="names")),
        lambda fields: fields.append(column("color", dtype="<u1", fill=-1)),
        lambda fields: fields.append({"name": "color", "type": ["null", "string"], "default": None}),
    ],
)
def test_schemas_outside_the_rules_do_not_parse(avro, change):
    edit(avro, change)
    with pytest.raises(BadSchema):
        parse_model(TOPIC, (avro / f"{TOPIC}.avsc").read_text())


def test_old_rows_show_the_fill_value_and_an_empty_word_in_columns_added_later(avro):
    old = model(TOPIC)
    dictionary = {"name": "colors", "type": {"type": "array", "items": "string"}, "default": [""]}
    added = [dictionary, column("color", dtype="<u4", dictionary="colors"), column("load", fill=-1)]
    edit(avro, lambda fields: fields.extend(added))
    new = parse_model(TOPIC, (avro / f"{TOPIC}.avsc").read_text())
    body = encode(old, Batch(TOPIC, {"rows": 2, "names": ["a"], "domains": [""]}, {"duration_ns": np.array([1, 2])}))
    batch = decode(old, body, new)
    assert batch.strings("color", "colors").tolist() == ["", ""]
    assert batch.columns["load"].tolist() == [-1, -1]
    assert batch.columns["duration_ns"].tolist() == [1, 2]
    batch.envelope["colors"].append("spoiled")
    assert decode(old, body, new).envelope["colors"] == [""]  # not the schema's own list


def test_a_schema_newer_than_its_lock_is_not_written(avro, monkeypatch):
    edit(avro, lambda fields: fields.append(column("color")))
    changed = parse_model(TOPIC, (avro / f"{TOPIC}.avsc").read_text())
    monkeypatch.setattr("drumline.schemas.registry.model", lambda topic: changed)
    with pytest.raises(BadSchema, match="--add"):
        LockFileRegistry(avro).id_of(TOPIC)


def test_formats_documents_the_envelope_as_it_is():
    docs = {field["name"]: field for field in json.loads(model(TOPIC).text)["fields"]}
    for name, kind in ENVELOPE.items():
        assert f"| `{name}` | {kind} | {docs[name]['doc']} |" in FORMATS


def test_the_example_is_what_the_codec_writes():
    page = WRITE["PAGE"].read_text()
    assert page == WRITE["render"](), "python tests/data/golden/write.py writes it"
    value = bytes.fromhex(page.split("```hex\n")[1].split("```")[0])
    scope = {}
    exec((ROOT / "docs/reference/decoder.py").read_text(), scope)
    record = scope["decode"](value, json.loads(model(WRITE["EXAMPLE_TOPIC"]).text))
    assert record["operation"] == ["AllReduce", "AllReduce"]
    assert record["step"] == [7, 8]
    assert record["start_ns"] == [1_763_000_000_000_001_000, 1_763_000_000_000_066_000]


def test_formats_documents_every_reason():
    assert all(f"| `{reason}` |" in FORMATS for reason in REASONS)
