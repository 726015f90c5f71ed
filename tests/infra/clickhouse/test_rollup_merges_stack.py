"""Merges of rollups on the local engine, within its memory."""

from contextlib import closing

import pytest
from support import migrated_database

from drumline.infra.clickhouse.client import command, connect, rows

pytestmark = pytest.mark.stack


def test_parts_with_the_widest_sketches_of_kernels_are_merged(clean_stack):
    # A sketch has a bin for each percent between its least and its largest value: these take 9 kB, three a row.
    migrated_database.create(clean_stack)
    sketch = "quantilesDDState(0.01, 0.5, 0.95, 0.99)(length) AS"
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        for part in range(8):
            command(
                client,
                "INSERT INTO kernels_per_minute (job, run, rank, minute, name, launches, durations, blocks, "
                f"threads_per_block) SELECT 'wide', 'r1', toInt32({part} * 16 + intDiv(number, 512)), "
                f"toStartOfMinute(now()), toString(number % 512), 1, {sketch} durations, {sketch} blocks, "
                f"{sketch} threads FROM (SELECT number, arrayJoin([toUInt64(1), 100000]) AS length FROM numbers(8192)) "
                "GROUP BY number",
            )
        command(client, "OPTIMIZE TABLE kernels_per_minute FINAL")
        [stored] = rows(client, "SELECT count() AS rows, sum(launches) AS launches FROM kernels_per_minute")
        assert stored == {"rows": 65_536, "launches": 65_536}
