"""ClickHouse engines with a Keeper, whose tables a user may make replicated."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.replicated import process
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import Settings
from drumline.infra.localstack.clickhouse.config import prepare_engine
from drumline.infra.localstack.clickhouse.engine import answers, log_tail, wait_until
from drumline.infra.localstack.ephemeral import ephemeral_settings

#: A table's place in Keeper is found by its name, so a statement of one replica makes the same table on another.
CONFIG = """<zookeeper>
        <node><host>127.0.0.1</host><port>{keeper}</port></node>
        <session_timeout_ms>20000</session_timeout_ms>
        <sessions_path>/clickhouse/sessions/{name}</sessions_path>
    </zookeeper>
    <macros><shard>1</shard><replica>{name}</replica></macros>
    <default_replica_path>/clickhouse/tables/{{shard}}/{{database}}/{{table}}</default_replica_path>
    <default_replica_name>{{replica}}</default_replica_name>
    <max_server_memory_usage>"""


@contextmanager
def replicating_engine(first: Settings, folder: Path, keeper: int, name: str) -> Iterator[Settings]:
    """Run the replica `name` inside the block, with the Kafka of `first`; gives its settings. `keeper`: a port."""
    private = ephemeral_settings(folder, first.local.cache)
    kafka = first.kafka.model_copy(update={"bootstrap": first.bootstrap})
    settings = private.model_copy(update={"kafka": kafka, "sink": first.sink, "stream": first.stream})
    child = prepare_engine(settings)
    child.argv[1:3] = [process.__file__]
    assert child.argv[0] == sys.executable
    conf = settings.local.state / "clickhouse" / "conf"
    config, users = conf / "config.xml", conf / "users.xml"
    more = CONFIG.format(keeper=keeper, name=name)
    config.write_text(config.read_text().replace("<max_server_memory_usage>", more))
    rights = "GRANT SYSTEM RESTORE REPLICA, SYSTEM DROP REPLICA, CREATE TEMPORARY TABLE,"
    users.write_text(users.read_text().replace("GRANT CREATE TEMPORARY TABLE,", rights))
    child.start(time.monotonic())
    running = child.process
    try:
        assert running is not None
        started = wait_until(lambda: answers(settings), WAIT_S, lambda: running.poll() is None)
        assert started, log_tail(Path(child.log), 20)
        yield settings
    finally:
        child.end()
