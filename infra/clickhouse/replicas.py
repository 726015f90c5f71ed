"""Choice of the replica that readers ask: the first that answers and lacks nothing that another one has."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from drumline.infra.clickhouse.client import ClickHouseFailed, Client, connect_to, rows
from drumline.infra.clickhouse.error_codes import NOT_MIGRATED
from drumline.infra.config.replica_settings import of_each
from drumline.infra.config.settings import Settings
from drumline.infra.telemetry.insecure import warn_once

#: Time for a connection, where another replica may answer instead; s.
CONNECT_S = 2
#: How long a comparison holds: `drumline top` connects every two seconds; s.
COMPARED_S = 30.0
#: Records of the last two days are counted, which Kafka still has (three days at least), without those of the last two
#: minutes: the rollup counts by minute.
OLDEST_S, NEWEST_S = 2 * 86_400, 120
#: A replica whose newest record of a topic is so much older than another's is behind: three times as long as sinks
#: collect rows by default (`bulk_flush_s`), and longer than they collect rolling windows; s.
BEHIND_S = 30.0
_STATE = (
    "SELECT topic, sumIf(records, minute < toDateTime({newest})) AS n, max(last_published) AS last "
    "FROM {name}.records_per_minute WHERE minute >= toDateTime({oldest}) GROUP BY topic"
)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A replica's records of a topic, and when Kafka got the newest; s since the epoch."""

    records: int = 0
    newest_s: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class Lack:
    """The records that a replica lacks of those that the fullest one has, and the time that it is behind; s."""

    records: int
    behind_s: float

    def __bool__(self) -> bool:
        return bool(self.records or self.behind_s)


#: Addresses -> when they were compared (monotonic, s), and the names in the order in which to ask them.
_compared: dict[tuple[str, ...], tuple[float, list[str]]] = {}


def connect_reader(settings: Settings, timeout_s: int, database: str) -> Client:
    """Connect the reader to the best replica, and warn, once each, of those that do not answer or lack records.

    Raises:
        TransientError: no replica answers; retry later.
        PermanentError: fatal.
    """
    replicas = of_each(settings)
    key = tuple(replica.clickhouse_url for replica in replicas.values())
    compared_at, names = _compared.get(key, (-math.inf, []))
    if time.monotonic() - compared_at > COMPARED_S:
        compared_at, names = time.monotonic(), _by_completeness(replicas)
    failed: ClickHouseFailed | None = None
    for name in names:
        try:
            client = connect_to(
                replicas[name], reader=True, timeout_s=timeout_s, database=database, connect_s=CONNECT_S
            )
        except ClickHouseFailed as error:
            failed = failed or error
            continue
        if failed is None:
            _compared[key] = (compared_at, names)
        else:
            _compared.pop(key, None)  # compared again by the next one
        return client
    _compared.pop(key, None)
    assert failed is not None
    raise failed


def _by_completeness(replicas: dict[str, Settings]) -> list[str]:
    """Return the names: those that lack least first, then in the order of the settings; last what does not answer."""
    counted: dict[str, dict[str, TopicState]] = {}
    now_s = int(time.time())  # one for all: the clocks of servers differ
    for name, settings in replicas.items():
        try:
            client = connect_to(settings, reader=True, timeout_s=CONNECT_S, connect_s=CONNECT_S)
            try:
                counted[name] = _state(client, settings.clickhouse.database, now_s)
            finally:
                client.close()
        except ClickHouseFailed as error:
            if error.code in NOT_MIGRATED:
                counted[name] = {}
            warn_once(f"replica {name} at {settings.clickhouse_url} is not read: {error}")
    lacking = {name: missing(state, counted) for name, state in counted.items()}
    for name, lack in lacking.items():
        if lack:
            lacking_text = f"{lack.records} records" if lack.records else "the newest records"
            warn_once(
                f"replica {name} at {replicas[name].clickhouse_url} is behind: it lacks {lacking_text}, and is read "
                "only if no other answers (`drumline audit --compare`)"
            )
    order = sorted(counted, key=lambda name: lacking[name])
    return [*order, *(name for name in replicas if name not in counted)]


def _state(client: Client, database: str, now_s: int) -> dict[str, TopicState]:
    sql = _STATE.format(name=database, oldest=now_s - OLDEST_S, newest=now_s - NEWEST_S)
    return {str(row["topic"]): TopicState(int(row["n"]), row["last"].timestamp()) for row in rows(client, sql)}


def missing(state: Mapping[str, TopicState], counted: Mapping[str, Mapping[str, TopicState]]) -> Lack:
    """Return what a replica lacks of the topics that any has; `counted`: the states of all."""
    nothing, records, behind_s = TopicState(), 0, 0.0
    for topic in {topic for states in counted.values() for topic in states}:
        has, all_have = state.get(topic, nothing), [states.get(topic, nothing) for states in counted.values()]
        records += max(have.records for have in all_have) - has.records
        behind_s = max(behind_s, max(have.newest_s for have in all_have) - has.newest_s)
    return Lack(records, behind_s if behind_s > BEHIND_S else 0.0)
