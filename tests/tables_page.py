"""Writes docs/tables.md from the comments of the schema, as ClickHouse has them after the migrations."""

from __future__ import annotations

import tempfile
from pathlib import Path

from drumline.infra import clickhouse
from drumline.infra.clickhouse import Client, rows
from drumline.infra.engine import temporary_engine
from drumline.infra.migrate import migrate
from drumline.infra.private import private_settings

PAGE = Path(__file__).parent.parent / "docs" / "tables.md"
HEAD = """# Tables and views

What a reader sees in the database `gpu` (`DRUMLINE_CLICKHOUSE__DATABASE`), as the schema itself says it:
`DESCRIBE TABLE kernels` shows the same. Times are UTC; `_ns` are nanoseconds. Questions to begin with:
[cookbook.md](cookbook.md).

- **Events** have a row for each thing that happened, stored exactly once.
- **Results** are views of what the stream worker found, the newest version of each row. Windows overlap by half: sum
  over every other one. What is behind them is called `..._versions`.
- **Rollups** count events per minute or second. A key can have several rows that are not merged yet, so always
  aggregate: the comment says with which function.
- `job` comes first in every key: name it, and a time range, and little is read.
"""
GROUPS = {
    "Events": ("kernels", "memcpys", "collectives", "steps", "ranges", "device_samples"),
    "Results": ("stragglers", "lateness", "kernel_frequency", "memcpy_bandwidth"),
    "Dimensions": ("jobs", "processes", "kernel_names"),
    "Rollups": (
        "kernels_per_minute",
        "ranks_per_second",
        "memcpys_per_minute",
        "devices_per_minute",
        "records_per_minute",
    ),
    "Bookkeeping": ("ledger",),
}


def page(client: Client, database: str) -> str:
    """The page's text. Raises KeyError on a table that the page has no place for, ValueError where a comment lacks."""
    found = rows(
        client,
        "SELECT table, name, type, comment FROM system.columns WHERE database = {d:String} ORDER BY table, position",
        {"d": database},
    )
    columns: dict[str, list[tuple[str, str, str]]] = {}
    for row in found:
        columns.setdefault(row["table"], []).append((row["name"], row["type"], row["comment"]))
    about = rows(client, "SELECT name, comment FROM system.tables WHERE database = {d:String}", {"d": database})
    said = {row["name"]: row["comment"] for row in about}
    placed = {name for names in GROUPS.values() for name in names}
    left = {n for n in columns if not n.startswith("schema_") and "_from_" not in n}
    if lost := left - placed - {f"{name}_versions" for name in placed}:
        raise KeyError(f"no place for {sorted(lost)}")
    parts = [HEAD]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        for name in names:
            behind = f"{name}_versions"
            comments = {column: text for column, _, text in columns.get(behind, [])}
            parts.append(f"### {name}\n\n{_sentence(said[name] or said[behind])}\n\n| column | type | |\n|---|---|---|")
            for column, kind, text in columns[name]:
                text = text or comments.get(column, "")
                if not text:
                    raise ValueError(f"{name}.{column} has no comment")
                parts.append(f"| `{column}` | {_short(kind)} | {text.replace('|', chr(92) + '|')} |")
            parts.append("")
    return "\n".join(parts)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _short(kind: str) -> str:
    """Types as people say them: how a column is encoded is not what it is."""
    for long, short in (("LowCardinality(String)", "String"), (", 'UTC')", ")"), ("DateTime('UTC')", "DateTime")):
        kind = kind.replace(long, short)
    if kind.startswith("SimpleAggregateFunction("):
        kind = kind.split(", ", 1)[1].removesuffix(")")
    return "state" if kind.startswith("AggregateFunction(") else kind


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="drumline-tables-") as folder:
        settings = private_settings(Path(folder))
        with temporary_engine(settings):
            client = clickhouse.connect(settings)
            migrate(client, settings)
            PAGE.write_text(page(client, settings.clickhouse.database))
    print(f"{PAGE} is written")


if __name__ == "__main__":
    main()
