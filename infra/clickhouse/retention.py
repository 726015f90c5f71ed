"""Retention and tiers of tables: statements for those that differ from the settings."""

from __future__ import annotations

from drumline.infra.clickhouse.client import Client, rows
from drumline.infra.config.settings import Settings

_TABLES = (
    "kernels", "memcpys", "collectives", "ranges", "steps", "device_samples", "host_samples", "network_samples",
    "checks", "transfers", "stacks", "launches", "launch_counts", "stalls", "iterations", "requests",
    "kernel_frequency_versions", "memcpy_bandwidth_versions", "lateness_versions", "stragglers_versions",
    "processes_versions", "progress_versions", "hangs_versions", "ledger",
)  # fmt: skip
_ROLLUPS = (
    "ranks_per_second", "steps_per_second", "kernels_per_minute", "memcpys_per_minute", "devices_per_minute",
    "evaluations",
)  # fmt: skip
#: table -> the column that retention counts from: when Kafka got a row's record, or the last one that a rollup's row
#: counts. By the time of the rows, what arrives late would be deleted as it comes in; by the time of the insert, a
#: range that is inserted again would differ.
RETENTION_CLOCK = {
    **dict.fromkeys(_TABLES, "published"),
    **dict.fromkeys(_ROLLUPS, "last_published"),
    "records_per_minute": "minute",  # in which Kafka got them
}

#: The cheaper volume of a storage policy.
COLD = "cold"
#: Tables whose old rows may move to a cheaper volume: the large ones.
TIERED = frozenset({"kernels", "memcpys", "collectives", "ranges", "device_samples", "host_samples"})


def retention_changes(client: Client, settings: Settings) -> list[tuple[str, str]]:
    """Return (description, statement) for every table whose retention or tiers differ from the settings'."""
    database, tiers = settings.clickhouse.database, settings.clickhouse.tiering
    tables = rows(
        client,
        "SELECT name, extract(engine_full, ' TTL (.*?)( SETTINGS |$)') AS ttl, storage_policy AS policy "
        "FROM system.tables WHERE database = {d:String}",
        {"d": database},
    )
    now = {str(row["name"]): row for row in tables}
    out = []
    for table, clock in RETENTION_CLOCK.items():
        if table not in now:
            continue
        name, days = f"{database}.{table}", settings.clickhouse.retention.of(table)
        tiered = bool(tiers.storage_policy) and table in TIERED and not 0 < days <= tiers.after
        rules = [f"toDateTime({clock}) + toIntervalDay({tiers.after}) TO VOLUME '{COLD}'"] * tiered
        rules += [f"toDateTime({clock}) + toIntervalDay({days})"] * bool(days)
        if tiered and now[table]["policy"] != tiers.storage_policy:
            change = f"ALTER TABLE {name} MODIFY SETTING storage_policy = '{tiers.storage_policy}'"
            out.append((f"{table}: storage policy {tiers.storage_policy}", change))
        if now[table]["ttl"] == ", ".join(rules):
            continue
        text = f"keep {days} days" if days else "keep for ever"
        text += f", on volume {COLD} after {tiers.after}" if tiered else ""
        change = f"MODIFY TTL {', '.join(rules)}" if rules else "REMOVE TTL"
        out.append((f"{table}: {text}", f"ALTER TABLE {name} {change}"))
    return out
