"""Add Kafka's jars to a CycloneDX bill of materials: `make release` lists them beside the Python packages.

`python -m drumline.infra.localstack.kafka.bom FILE` rewrites the file. Names, versions and hashes come from
`jars.sha256`, the list that each start of the broker verifies the jars with.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from drumline.infra.localstack.kafka.jars import SUMS

#: Artifact, or what it begins with -> Maven's group. The list of hashes does not name groups.
GROUPS = {
    "HdrHistogram": "org.hdrhistogram",
    "argparse4j": "net.sourceforge.argparse4j",
    "caffeine": "com.github.ben-manes.caffeine",
    "commons-beanutils": "commons-beanutils",
    "commons-collections": "commons-collections",
    "commons-digester": "commons-digester",
    "commons-logging": "commons-logging",
    "commons-validator": "commons-validator",
    "hash4j": "com.dynatrace.hash4j",
    "jackson-dataformat-": "com.fasterxml.jackson.dataformat",
    "jackson-datatype-": "com.fasterxml.jackson.datatype",
    "jackson-": "com.fasterxml.jackson.core",
    "jopt-simple": "net.sf.jopt-simple",
    "jose4j": "org.bitbucket.b_c",
    "jspecify": "org.jspecify",
    "kafka": "org.apache.kafka",
    "log4j-": "org.apache.logging.log4j",
    "lz4-java": "at.yawk.lz4",
    "metrics-core": "com.yammer.metrics",
    "pcollections": "org.pcollections",
    "re2j": "com.google.re2j",
    "scala-logging": "com.typesafe.scala-logging",
    "scala-": "org.scala-lang",
    "slf4j-api": "org.slf4j",
    "snakeyaml": "org.yaml",
    "snappy-java": "org.xerial.snappy",
    "zstd-jni": "com.github.luben",
}


def components() -> list[dict[str, Any]]:
    """Return the jars as components of CycloneDX. Raises ValueError for a jar whose group is not known."""
    out = []
    for line in SUMS.read_text().splitlines():
        digest, name = line.split()
        known = re.fullmatch(r"(.+?)-(\d[\d.]*(?:-\d+)?)\.jar", name)
        group = next((group for begin, group in GROUPS.items() if name.startswith(begin)), "")
        if known is None or not group:
            raise ValueError(f"{name}: its Maven group or its version is not known; add it to GROUPS")
        purl = f"pkg:maven/{group}/{known[1]}@{known[2]}"
        hashes = [{"alg": "SHA-256", "content": digest}]
        named = {"type": "library", "group": group, "name": known[1], "version": known[2]}
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
