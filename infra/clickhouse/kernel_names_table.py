"""The table `kernel_names`: one row per name. All writers write equal rows, so a repetition changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from drumline.infra.clickhouse.client import Client, insert_once, rows
from drumline.infra.clickhouse.demangle import demangled
from drumline.infra.clickhouse.kernel_names import RULES, kernel_name

TABLE = "kernel_names_versions"


def write_names(client: Client, database: str, names: Sequence[str]) -> None:
    """Insert names under the current rules, as one block. Raises TransientError or PermanentError."""
    lines = []
    for name, plain in zip(names, demangled(names), strict=True):
        readable = kernel_name(name)
        line = {"name": name, "short": readable.short, "family": readable.family, "demangled": plain, "rules": RULES}
        lines.append(json.dumps(line))
    block = "\n".join(lines).encode()
    digest = hashlib.sha256(block).hexdigest()
    insert_once(client, f"{database}.{TABLE}", block, f"names:{digest}", "JSONEachRow")


def rename(client: Client, database: str) -> int:
    """Rename the kernels stored under older rules and return their number. Raises TransientError or PermanentError."""
    old = rows(
        client,
        f"SELECT name FROM {database}.kernel_names WHERE rules < {{rules:UInt32}} ORDER BY name",
        {"rules": RULES},
    )
    if old:
        write_names(client, database, [str(row["name"]) for row in old])
    return len(old)
