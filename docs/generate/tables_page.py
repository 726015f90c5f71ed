"""Write docs/reference/tables.md: ClickHouse's schema after the migrations, retention, families of kernels."""

from __future__ import annotations

import tempfile
from pathlib import Path

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import Client, rows
from drumline.infra.clickhouse.kernel_names import FAMILIES, OTHER
from drumline.infra.clickhouse.migrate import migrate
from drumline.infra.clickhouse.retention import RETENTION_CLOCK, TIERED
from drumline.infra.config.servers import RetentionSettings, TieringSettings
from drumline.infra.localstack.clickhouse.engine import temporary_engine
from drumline.infra.localstack.ephemeral import ephemeral_settings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tables.md"
HEAD = """# Tables and views

The tables and views of the database `gpu` (`DRUMLINE_CLICKHOUSE__DATABASE`), from the comments of the schema.
`DESCRIBE TABLE kernels` shows the same. Times are UTC; `_ns` are nanoseconds. Questions to begin with:
[cookbook.md](cookbook.md).

- **Events** have a row for each thing that happened, stored exactly once.
- **Results** are views of what the stream worker found, the newest version of each row. Windows overlap by half: sum
  over every other one. What is behind them is called `..._versions`.
- **Rollups** count events per minute or second. A key can have several rows that are not merged yet, so always
  aggregate: the comment names the function. Their quantiles are sketches, within 1% of the value; for exact ones
  ask the events, `quantileExactInclusive(0.99)(duration_ns)`. ClickHouse's `quantile` is neither: it takes a sample.
- `rank`, `host` and `gpu_uuid` are those of the rank that a row is about; `rank` is -1 where it is about none; the
  comment then states it.
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
RETENTION = """## How the schema changes

`drumline migrate` applies the numbered files of `infra/clickhouse/migrations`, each once, and notes their checksums.
With
the first release they freeze: a change is then a new file, and one that adds a rollup fills it from the rows that are
there. Until then files still change; `drumline migrate` refuses a database that was made from other ones, and it is
dropped and created again.

## How long they are kept

`DRUMLINE_CLICKHOUSE__RETENTION__KERNELS` and so on: days, 0 = for ever; `drumline migrate` applies it. What is older
goes away when ClickHouse merges.

| table | default, days | counted from |
|---|---|---|"""
TIERS = """
Older rows of {tables} can move to a cheaper volume.
`DRUMLINE_CLICKHOUSE__TIERING__STORAGE_POLICY` (default: none) names a storage policy of the server. The policy must
have the volume `default` too. Rows move to its volume `{volume}` (`..._TIERING__VOLUME`) after {after} days
(`..._TIERING__AFTER`).
"""
NAMES = """## Families of kernels

A kernel's `family` is guessed from its name. The name's identifiers (function, namespaces, template arguments,
parameter types) are joined by spaces. The first pattern that matches them decides (Python's `re`, case ignored).
Without a match the family is `{other}`. When the patterns change, `drumline migrate` updates the stored names.

| family | pattern |
|---|---|"""


def retention() -> str:
    """Defaults from settings: table, days, the column that they count from."""
    kept = RetentionSettings()
    lines = [RETENTION]
    for table, clock in RETENTION_CLOCK.items():
        name = table.removesuffix("_versions")
        lines.append(f"| `{name}` | {getattr(kept, name)} | `{clock}` |")
    tiers = TieringSettings()
    tables = ", ".join(f"`{name}`" for name in RETENTION_CLOCK if name in TIERED)
    return "\n".join([*lines, TIERS.format(tables=tables, volume=tiers.volume, after=tiers.after)])


def families() -> str:
    """The rules of kernel_names.py, in the order in which they are tried."""
    rules = [f"| {family} | `{pattern.replace('|', chr(92) + '|')}` |" for family, pattern in FAMILIES]
    return "\n".join([NAMES.format(other=OTHER), *rules, ""])


def page(client: Client, database: str) -> str:
    """The page's text. Raises KeyError on a table that the page has no place for, ValueError where a comment lacks."""
    described = rows(
        client,
        "SELECT table, name, type, comment FROM system.columns WHERE database = {d:String} ORDER BY table, position",
        {"d": database},
    )
    columns: dict[str, list[tuple[str, str, str]]] = {}
    for row in described:
        columns.setdefault(row["table"], []).append((row["name"], row["type"], row["comment"]))
    about = rows(client, "SELECT name, comment FROM system.tables WHERE database = {d:String}", {"d": database})
    comments = {row["name"]: row["comment"] for row in about}
    placed = {name for names in GROUPS.values() for name in names}
    left = {n for n in columns if not n.startswith("schema_") and "_from_" not in n}
    if lost := left - placed - {f"{name}_versions" for name in placed}:
        raise KeyError(f"no place for {sorted(lost)}")
    parts = [HEAD]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        for name in names:
            parts.append(f"### {name}\n\n{_sentence(comments[name])}\n\n| column | type | |\n|---|---|---|")
            for column, kind, text in columns[name]:
                if not text:
                    raise ValueError(f"{name}.{column} has no comment")
                parts.append(f"| `{column}` | {_short(kind)} | {text.replace('|', chr(92) + '|')} |")
            parts.append("")
    return "\n".join([*parts, retention(), families()])


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _short(kind: str) -> str:
    """Return a type without its encoding."""
    for long, short in (("LowCardinality(String)", "String"), (", 'UTC')", ")"), ("DateTime('UTC')", "DateTime")):
        kind = kind.replace(long, short)
    if kind.startswith("SimpleAggregateFunction("):
        kind = kind.split(", ", 1)[1].removesuffix(")")
    return "state" if kind.startswith("AggregateFunction(") else kind


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="drumline-tables-") as folder:
        settings = ephemeral_settings(Path(folder))
        with temporary_engine(settings):
            client = clickhouse.connect(settings)
            migrate(client, settings)
            PAGE.write_text(page(client, settings.clickhouse.database))
    print(f"{PAGE} is written")


if __name__ == "__main__":
    main()
