"""Comments of columns name the values that the programs write: their own lists, so that none is missing or stale."""

import re
from collections.abc import Iterable

import pytest
from support import migrated_database

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import rows
from drumline.infra.clickhouse.kernel_names import FAMILIES, OTHER
from drumline.producers.derive.nccl.kernel_names import OPERATIONS
from drumline.producers.derive.steps.steps import API, INFERRED, MARKER, OPTIMIZER
from drumline.producers.identity import CUPTI, NCCL
from drumline.producers.rings.progress import STATES as PROCESS_STATES
from drumline.producers.rings.ring_file import DATATYPES, FUNCTIONS
from drumline.schemas.counters import CLOCK_REASONS
from drumline.sinks.tables.tables import SEVERITIES
from drumline.streams.hangs.named_ranks import Reason
from drumline.streams.lateness.collective_rows import EXCHANGE, PIPELINE
from drumline.streams.lateness.collective_rows import OPERATIONS as COMPARED
from drumline.streams.stragglers.alarm import STATES

#: As CUPTI numbers them.
COPIES = "1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP"
MEMORY = "1 pageable, 2 pinned, 3 device, 4 array, 5 managed"
LISTS: dict[str, Iterable[str]] = {
    "stragglers.severity": SEVERITIES,
    "stragglers.state": STATES,
    "stragglers.confidence": ("none", "low", "medium", "high"),
    "hangs.reason": [reason.value for reason in Reason],
    "hangs.operation": FUNCTIONS,
    "hangs.datatype": DATATYPES,
    "hangs_now.operation": FUNCTIONS,
    "hangs_now.datatype": DATATYPES,
    "progress.state": PROCESS_STATES,
    "lateness.worst_operation": COMPARED,
    "lateness.point_to_point": (EXCHANGE, PIPELINE),
    "collectives.operation": OPERATIONS,
    "collectives.source": (CUPTI, NCCL),
    "steps.source": (CUPTI, NCCL),
    "steps.steps_from": (API, MARKER, OPTIMIZER, INFERRED),
    "processes.source": ("replay", "agent", CUPTI, NCCL),
    "memcpys.kind": COPIES.split(", "),
    "memcpys.src_kind": MEMORY.split(", "),
    "memcpy_bandwidth.kind": COPIES.split(", "),
    "memcpy_bandwidth.src_kind": MEMORY.split(", "),
    "device_samples.throttle_reasons": [", ".join(CLOCK_REASONS.values())],  # in the order of the bits
    "kernel_names.family": {OTHER, *(family for family, _ in FAMILIES)},
}


def unnamed(values: Iterable[str], comment: str) -> list[str]:
    """Return the values that a comment lacks."""
    return [value for value in values if not re.search(rf"(?<![\w.]){re.escape(value)}(?!\w)", comment)]


def listed(comment: str) -> set[str]:
    """Return the values that a comment lists behind its first colon."""
    text = re.sub(r"empty = \w+", "", comment.split(":", 1)[1])
    return {value for part in re.split(r"[;,]\s*|\w+: ", text) if (value := part.strip())}


@pytest.mark.stack
def test_comments_name_every_value_and_none_that_is_not_written(clean_stack):
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    migrated_database.create(clean_stack)
    described = rows(client, f"SELECT table, name, type, comment FROM system.columns WHERE database = '{database}'")
    comments = {f"{row['table']}.{row['name']}": row["comment"] for row in described}
    texts = {f"{row['table']}.{row['name']}": f"{row['type']} {row['comment']}" for row in described}
    lacking = {column: missing for column, values in LISTS.items() if (missing := unnamed(values, texts[column]))}
    assert not lacking, "add a migration that changes these comments"
    assert listed(comments["hangs.datatype"]) <= set(DATATYPES)
    assert listed(comments["collectives.operation"]) <= set(OPERATIONS)


def test_the_bits_of_throttle_reasons_are_in_order_without_a_gap():
    assert list(CLOCK_REASONS) == [1 << place for place in range(len(CLOCK_REASONS))]
