"""Retention and tiers of tables: statements for those that differ from the settings."""

from __future__ import annotations

from drumline.infra.clickhouse.client import Client, rows
from drumline.infra.config.settings import Settings

#: table -> the column that retention counts from.
RETENTION_CLOCK = {
    "kernels": "start", "memcpys": "start", "collectives": "start", "ranges": "start", "steps": "start",
    "device_samples": "time", "host_samples": "time", "network_samples": "time", "checks": "time", "stacks": "time",
    "launches": "start", "stalls": "start",
    "kernel_frequency_versions": "window_start", "memcpy_bandwidth_versions": "window_start",
    "lateness_versions": "published", "stragglers_versions": "published", "processes_versions": "published",
    "progress_versions": "published", "hangs_versions": "published",
    "ledger": "published", "ranks_per_second": "second", "steps_per_second": "second",
    "kernels_per_minute": "minute", "memcpys_per_minute": "minute", "devices_per_minute": "minute",
    "records_per_minute": "minute",
}  # fmt: skip

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
        name, days = f"{database}.{table}", getattr(settings.clickhouse.retention, table.removesuffix("_versions"))
        tiered = bool(tiers.storage_policy) and table in TIERED and not 0 < days <= tiers.after
        rules = [f"toDateTime({clock}) + toIntervalDay({tiers.after}) TO VOLUME '{tiers.volume}'"] * tiered
        rules += [f"toDateTime({clock}) + toIntervalDay({days})"] * bool(days)
        if tiered and now[table]["policy"] != tiers.storage_policy:
            change = f"ALTER TABLE {name} MODIFY SETTING storage_policy = '{tiers.storage_policy}'"
            out.append((f"{table}: storage policy {tiers.storage_policy}", change))
        if now[table]["ttl"] == ", ".join(rules):
            continue
        text = f"keep {days} days" if days else "keep for ever"
        text += f", on volume {tiers.volume} after {tiers.after}" if tiered else ""
        change = f"MODIFY TTL {', '.join(rules)}" if rules else "REMOVE TTL"
        out.append((f"{table}: {text}", f"ALTER TABLE {name} {change}"))
    return out
