"""Replicas of ClickHouse: servers without a common Keeper, each filled from Kafka by a sink group of its own.

The primary is DRUMLINE_CLICKHOUSE__URL with the group DRUMLINE_SINK__GROUP. A replica of the name `b` has the group
`drumline-sink-b`, and its sink sends dead letters only of rows that this server rejects: the primary's sends the rest.
"""

from __future__ import annotations

from drumline.infra.config.clickhouse_settings import PRIMARY
from drumline.infra.config.settings import Settings


class NoSuchReplica(ValueError):
    """A name that is no replica of the settings. The message has those that are."""


def of_replica(settings: Settings, name: str) -> Settings:
    """Return the settings of one replica's programs: its address and sink group, and no other replicas.

    Raises NoSuchReplica.
    """
    clickhouse, sink = settings.clickhouse, settings.sink
    if name == PRIMARY:
        return settings.model_copy(update={"clickhouse": clickhouse.model_copy(update={"replicas": {}})})
    if name not in clickhouse.replicas:
        known = ", ".join([PRIMARY, *clickhouse.replicas])
        raise NoSuchReplica(f"no replica is called {name!r}; there are {known} (DRUMLINE_CLICKHOUSE__REPLICAS)")
    return settings.model_copy(
        update={
            "clickhouse": clickhouse.model_copy(update={"url": clickhouse.replicas[name], "replicas": {}}),
            "sink": sink.model_copy(update={"group": f"{sink.group}-{name}"}),
        }
    )


def of_each(settings: Settings) -> dict[str, Settings]:
    """Return name -> settings of each replica, the primary first."""
    return {name: of_replica(settings, name) for name in (PRIMARY, *settings.clickhouse.replicas)}
