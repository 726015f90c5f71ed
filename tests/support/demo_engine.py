"""An engine of its own that has the demo's job, with four injected faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import migrated_database

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.clickhouse_settings import ClickHouseSettings, RetentionSettings
from drumline.infra.config.settings import Settings
from drumline.infra.localstack.clickhouse.engine import temporary_engine
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.lab.bench.direct_load import JobCopy, load

RECORDING = Path(__file__).parents[2] / "lab" / "demo" / "ddp-gpu-bound"
#: Rank -> cause that was injected (phases of the recording).
FAULTS = {0: "host_stall", 1: "slow_compute", 2: "slow_compute", 3: "slow_copy"}
FOR_EVER = RetentionSettings(**dict.fromkeys(RetentionSettings.model_fields, 0))


@contextmanager
def demo_engine(state: Path) -> Iterator[Settings]:
    """Settings of the engine while it runs."""
    settings = ephemeral_settings(state, clickhouse=ClickHouseSettings(retention=FOR_EVER))
    with temporary_engine(settings):
        migrated_database.create(settings)
        client = clickhouse.connect(settings)
        load(client, settings, JobCopy(RECORDING, "demo", "r1"))
        client.close()
        yield settings
