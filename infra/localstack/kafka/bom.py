"""Add Kafka's jars to a CycloneDX bill of materials: `make release` lists them beside the Python packages.

`python -m drumline.infra.localstack.kafka.bom FILE` rewrites the file. Names, versions and hashes come from
`jars.sha256`, the list that each start of the broker verifies the jars with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from drumline.infra.localstack.kafka.jars import listed


def components() -> list[dict[str, Any]]:
    """Return the jars as components of CycloneDX."""
    out = []
    for path, digest in listed().items():  # GROUP/ARTIFACT/VERSION/FILE, the group with slashes for dots
        *group, name, version, _ = path.split("/")
        purl = f"pkg:maven/{'.'.join(group)}/{name}@{version}"
        hashes = [{"alg": "SHA-256", "content": digest}]
        named = {"type": "library", "group": ".".join(group), "name": name, "version": version}
        out.append({**named, "bom-ref": purl, "purl": purl, "hashes": hashes})
    return out


def add_jars(path: Path) -> None:
    """Add the jars to the bill of materials at `path`."""
    bill = json.loads(path.read_text())
    jars = components()
    bill["components"] = [*bill["components"], *jars]
    bill["dependencies"] = [*bill.get("dependencies", []), *({"ref": jar["bom-ref"]} for jar in jars)]
    path.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    add_jars(Path(sys.argv[1]))
