"""Versions of schemas: `python -m drumline.schemas.release --check | --add | --freeze`.

avro/lock.json has id and hash of every version. A release of drumline freezes the newest ones (`make release`): the
copy under avro/released/ never changes, its id is never given to another schema, and all schemas after it read it.
Until then a change of the schema is one of its newest version.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from drumline.schemas.batch import Batch, decode, encode
from drumline.schemas.columns import LOGICAL_TYPE
from drumline.schemas.compatibility import breaking
from drumline.schemas.counters import COUNTERS, GpmMetric
from drumline.schemas.errors import BadRecord, BadSchema
from drumline.schemas.model import AVRO, RecordModel, fingerprint, parse_model
from drumline.schemas.topics import Topic

Lock = dict[str, list[dict[str, Any]]]


def _models(root: Path) -> dict[str, RecordModel]:
    paths = sorted(root.glob("*.avsc"))
    return {path.stem: parse_model(path.stem, path.read_text()) for path in paths}


def write_counters(root: Path = AVRO) -> None:
    """Write the counters of the table (counters.py) into the schema of GPU samples: their docs, and new fields."""
    path = root / f"{Topic.DEVICE}.avsc"
    schema = json.loads(path.read_text())
    fields = {field["name"]: field for field in schema["fields"]}
    for counter in COUNTERS:
        dtype = "<f8" if isinstance(counter.source, GpmMetric) else "<i8"
        kind = {"type": "bytes", "logicalType": LOGICAL_TYPE, "dtype": dtype, "encoding": "plain", "fill": -1}
        fields.setdefault(counter.name, {"name": counter.name, "type": kind, "default": ""})["doc"] = counter.doc
    head = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in schema.items() if name != "fields"]
    lines = ",\n".join(f"    {json.dumps(field, ensure_ascii=False)}" for field in fields.values())
    path.write_text("\n".join(["{", *head, '  "fields": [', lines, "  ]", "}", ""]))


def _read(root: Path) -> Lock:
    path = root / "lock.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _write(root: Path, lock: Lock) -> None:
    lines = []
    for topic, versions in lock.items():
        entries = ",\n".join(f"    {json.dumps(version)}" for version in versions)
        lines.append(f"  {json.dumps(topic)}: [\n{entries}\n  ]")
    (root / "lock.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _against(old: RecordModel, new: RecordModel) -> list[str]:
    """Return the errors of `new` as a successor of `old`: by the rules, and by reading a real record."""
    if faults := breaking(old, new):
        return faults
    required = {name: [] if "<" in kind else "" for name, kind in old.envelope.items() if name not in old.defaults}
    dictionaries = {name: ["a"] for name in old.dictionaries}
    try:
        decode(old, encode(old, Batch(old.topic, {**required, **dictionaries, "rows": 1})), new)
    except BadRecord as error:
        return [str(error)]
    return []


def check(root: Path = AVRO) -> list[str]:
    """Return the errors in lock, released files and current schemas; empty if there are none."""
    lock, models, faults = _read(root), _models(root), []
    seen: set[int] = set()
    for topic, versions in lock.items():
        current = models.get(topic)
        if current is None:
            faults.append(f"{topic}.avsc: deleted, but released")
        for place, version in enumerate(versions, 1):
            path = root / version["file"]
            if version["version"] != place or version["id"] in seen:
                faults.append(f"{topic} version {version['version']}: version or id {version['id']} is out of order")
            seen.add(version["id"])
            if place == len(versions) and not path.exists():
                continue  # not frozen yet
            if not path.is_file() or fingerprint(path.read_text()) != version["sha256"]:
                faults.append(f"{version['file']}: a released schema was changed or removed; restore it")
            elif current is not None:
                old = parse_model(topic, path.read_text())
                faults += [f"{topic} against version {place}: {fault}" for fault in _against(old, current)]
        if current is not None and current.fingerprint != versions[-1]["sha256"]:
            faults.append(f"{topic}.avsc: not as in the lock; run python -m drumline.schemas.release --add")
    return faults + [f"{topic}.avsc: not in the lock; add it with --add" for topic in models if topic not in lock]


def add(root: Path = AVRO) -> list[str]:
    """Note every changed schema in the lock, that of GPU samples with all counters; return the versions noted.

    It is the next version after a frozen one; a version that is not frozen yet is replaced, under its id. Raises
    BadSchema, and leaves the lock as it is, where a schema cannot read a frozen version.
    """
    write_counters(root)
    lock, models, done = _read(root), _models(root), []
    number = max((version["id"] for versions in lock.values() for version in versions), default=0)
    for topic, current in models.items():
        versions = lock.setdefault(topic, [])
        if versions and current.fingerprint == versions[-1]["sha256"]:
            continue
        if versions and not (root / versions[-1]["file"]).exists():
            noted = versions.pop()
        else:
            number += 1
            place = len(versions) + 1
            noted = {"version": place, "id": number, "file": f"released/{topic}.{place}.avsc"}
        for version in versions:
            old = parse_model(topic, (root / version["file"]).read_text())
            if faults := _against(old, current):
                raise BadSchema(f"{topic} against version {version['version']}: {'; '.join(faults)}")
        versions.append({**noted, "sha256": current.fingerprint})
        done.append(f"{topic} version {noted['version']}, id {noted['id']}")
    _write(root, lock)
    return done


def freeze(root: Path = AVRO) -> list[str]:
    """Keep a copy of every newest version for ever, for a release; return the new copies. Raises BadSchema."""
    if faults := check(root):
        raise BadSchema("; ".join(faults))
    (root / "released").mkdir(exist_ok=True)
    newest = {topic: root / versions[-1]["file"] for topic, versions in _read(root).items()}
    new = {topic: copy for topic, copy in newest.items() if not copy.exists()}
    for topic, copy in new.items():
        copy.write_text((root / f"{topic}.avsc").read_text())
    return [copy.name for copy in new.values()]


def main(arguments: list[str] | None = None, root: Path = AVRO) -> int:
    """Run the command; return 0 without errors, otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m drumline.schemas.release", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="verify frozen files, ids and compatibility")
    action.add_argument("--add", action="store_true", help="note changed schemas in the lock")
    action.add_argument("--freeze", action="store_true", help="keep the newest versions for ever; for a release")
    options = parser.parse_args(arguments)
    try:
        lines = check(root) if options.check else freeze(root) if options.freeze else add(root)
    except BadSchema as error:
        print(error, file=sys.stderr)
        return 1
    for line in lines:
        print(line, file=sys.stderr if options.check else sys.stdout)
    return 1 if options.check and lines else 0


if __name__ == "__main__":
    sys.exit(main())
