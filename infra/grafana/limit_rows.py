"""Reads and writes `alert_limits`: the limits that some jobs have of their own. Calls block.

All raise TransientError (retry later) or PermanentError of infra/clickhouse/client.py.
"""

from __future__ import annotations

from typing import Any

from drumline.infra.clickhouse.client import Client, command, rows


def current(client: Client) -> list[dict[str, Any]]:
    """Return the limits in force: name, job, label, value, note, changed (UTC)."""
    return rows(
        client,
        "SELECT name, job, label, value, note, toString(changed) AS changed FROM alert_limits "
        "ORDER BY name, job, label",
    )


def write(client: Client, limit: dict[str, Any], *, cleared: bool = False) -> None:
    """Set a limit (name, job, label, value, note), or clear it. A repetition changes nothing but the time."""
    command(
        client,
        "INSERT INTO alert_limits_versions (name, job, label, value, note, changed, cleared) SELECT {name:String}, "
        "{job:String}, {label:String}, {value:Float64}, {note:String}, now64(3, 'UTC'), {cleared:UInt8}",
        {**limit, "cleared": int(cleared)},
    )
